# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a module does of a switch: say what would change, ask for it, and wait for how it ends.

The switch itself is the work of the box's program (_switch.py), run by a systemd unit that the controller may lose
sight of at any time. A request is a marker on the disk, so asking twice, or by two controllers, is one switch.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import hashlib
import pathlib
import typing as t
import uuid

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _converge,
    _deploy_record,
    _docker,
    _files,
    _generation,
    _instance,
    _proof,
    _status,
)

JOB: t.Final = "gb10-fleet-switch"
UNIT: t.Final = f"{JOB}.service"
_BOOT_ID: t.Final = "proc/sys/kernel/random/boot_id"
_POLL_S: t.Final = 0.5
_HASH_ROUNDS: t.Final = 200_000
# What is told of the instances of a good generation.
_SHOWN: t.Final = ("model_role", "port", "image")

Diff = list[dict[str, str]]


class DeploymentError(Exception):
    """What was asked for cannot be done. Nothing was changed, and the text says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a step. ``last`` says how the switch ended, once it has."""

    changed: bool
    message: str
    generation: str = ""
    finished: bool = True
    failed: bool = False
    diff: Diff = dataclasses.field(default_factory=list)
    last: _generation.Last | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Deployment:
    """The deployment of a box: its store of generations, and how to act on it."""

    box: _converge.Box
    store: _generation.Store
    keep: int = 3

    def serve(
        self, wanted: _generation.Generation, *, begin: bool, step_s: float, prove: c.Callable[..., _proof.Proof]
    ) -> Outcome:
        """Serve exactly a generation: nothing where the box does, and then it has to prove it; or a switch."""
        diff: Diff = []
        if begin and not self._joins(wanted.id):
            diff = self.differences(wanted)
            if not diff:
                return self._prove(wanted.members, prove, wanted)
            if self.box.check_mode:
                return Outcome(True, f"generation {wanted.id} would serve {wanted.about}", wanted.id, diff=diff)
            self.store.stage(wanted)
            self._ask(wanted)
        return dataclasses.replace(self._reach(wanted.id, step_s), diff=diff)

    def ask_untouched(self, wanted: _generation.Generation, prove: c.Callable[..., _proof.Proof]) -> Outcome:
        """Prove what a switch to a generation would not touch: what is wrong before it must not be blamed on it.

        Where there is nothing to switch, nothing is asked: whoever has it served asks all of it.
        """
        if self._joins(wanted.id) or not self.differences(wanted):
            return Outcome(False, f"generation {wanted.id} needs no switch", wanted.id)
        found = self._prove(self._untouched(wanted), prove, wanted)
        if not found.failed:
            return Outcome(False, "what the switch would not touch answers", wanted.id)
        message = f"{found.message} Nothing was done about the other engines of this box either."
        return dataclasses.replace(found, message=message)

    def go_back(self, name: str, *, undo: bool, begin: bool, step_s: float) -> Outcome:
        """Serve a good generation again: that of a name, else the previous one.

        With ``undo`` it is the one that the last switch came from, and an empty box where there was none.
        """
        if not begin:
            return self._reach(name, step_s)
        ledger = self.store.ledger()
        target = name or (self._undone(ledger.last) if undo else ledger.previous)
        if not target and not undo:
            raise DeploymentError("there is no good generation before the one that serves; nothing was changed.")
        wanted = self.store.load(target) if target else _generation.Generation()
        if target and target not in ledger.good and target != ledger.last.before:
            raise DeploymentError(f"generation {target} was never proven on this box; nothing was changed.")
        if not name and not undo:
            self._check_soaks(wanted)
        self._check_things(wanted)
        diff = [] if self._joins(wanted.id) else self.differences(wanted)
        if not diff and not self._joins(wanted.id):
            return Outcome(False, f"generation {wanted.id} serves already: {wanted.about}", wanted.id)
        if self.box.check_mode:
            return Outcome(True, f"generation {wanted.id} would serve again: {wanted.about}", wanted.id, diff=diff)
        if not self._joins(wanted.id):
            self.store.stage(wanted)
            self._ask(wanted, undo=undo, return_to=True)
        return dataclasses.replace(self._reach(wanted.id, step_s), diff=diff)

    def _undone(self, last: _generation.Last) -> str:
        """Return what served before the last switch; where it proved anew what served, what served before that."""
        if last.before != last.to:
            return last.before
        before = str(self.store.proof(last.to).get("before", ""))
        return before if self.store.has(before) else last.to

    def settle(self, *, begin: bool, step_s: float) -> Outcome:
        """Wait for a switch that an earlier run has begun, having it finished where nobody is at it."""
        marker = self.store.marker()
        if begin:
            if marker is None:
                if self.store.unreadable and not self.box.check_mode:
                    self._run_unit()  # it puts that aside, and says so
                return Outcome(False, "no switch is under way")
            if self.box.check_mode:
                return Outcome(True, f"the switch to generation {marker.to} would be finished first", marker.to)
            self._run_unit()
        outcome = self.wait(marker.to if marker else "", step_s)
        if outcome.finished and outcome.last:  # however it ended: what comes next decides what is to be done about it
            return dataclasses.replace(outcome, failed=False, message=outcome.last.message)
        return outcome

    def _reach(self, name: str, step_s: float) -> Outcome:
        """Wait for the end of the switch to a generation; another one may have begun and ended since the last look."""
        outcome = self.wait(name, step_s)
        if outcome.last is None or not name or outcome.last.to == name:
            return outcome
        message = (
            f"another run has switched this box to generation {outcome.last.to} meanwhile, and not to {name}, which "
            f"was asked for here; see to it that both runs want the same, and run this again. How that one ended: "
            f"{outcome.last.message}"
        )
        return dataclasses.replace(outcome, message=message, failed=True)

    def wait(self, name: str, step_s: float) -> Outcome:
        """Wait up to ``step_s`` seconds for the end of the switch that is under way."""
        deadline = self.box.clock() + step_s
        while True:
            # Asked in this order: a switch that ends between the two questions has removed its marker before.
            unit = _instance.show(self.box.run, UNIT)
            marker = self.store.marker()
            said = _status.StatusFile(JOB, self.box.status_folder).read()
            if marker is None:
                last = self.store.ledger().last
                return Outcome(True, last.message, name, failed=last.outcome != "served", last=last)
            if unit.active_state in {"inactive", "failed"}:
                why = f": {said.message}" if said and said.failed else ""
                message = f"the switch to generation {marker.to} is not finished, and nobody is at it{why}; "
                return Outcome(True, f"{message}see `journalctl -u {JOB}`, and run this again.", name, failed=True)
            if self.box.clock() >= deadline:
                return Outcome(True, said.message if said else "starting", name, finished=False)
            self.box.sleep(_POLL_S)

    def differences(self, wanted: _generation.Generation) -> Diff:
        """Return what a switch would change, as Ansible shows it; nothing where the generation serves."""
        found = [_files.difference(one) for one in map(self.store.wanted, wanted.files) if _files.differs(one)]
        for name in _instance.placed(self.box.sysroot):
            if name not in wanted.specs:
                there = _instance.observe(self.box.run, name, self.box.sysroot)
                found.append(_states(_converge.line(there), f"{there.unit.name}: absent"))
        for name, spec in wanted.specs.items():
            there = _instance.observe(self.box.run, name, self.box.sysroot)
            if not (_converge.serves(there, spec) and there.unit.enabled):
                found.append(_states(_converge.line(there), _converge.wanted_line(there, spec)))
            recorded = str(self.store.record(name).get("spec", ""))
            if recorded != spec:  # lost or damaged: what is in it has to be proven again
                before = _converge.short(recorded) if recorded else "none"
                found.append(_states(f"record of {name}: {before}", f"record of {name}: {_converge.short(spec)}"))
        serving = self.store.ledger().serving
        if found or serving != wanted.id or not self._secrets_in_place(wanted):
            found.append(_states(f"generation: {serving or 'none'}", f"generation: {wanted.id}"))
        return found

    def as_dict(self) -> dict[str, t.Any]:
        """Return what the box says of its deployment, as plain data.

        A damaged generation keeps its place among the good ones: left out, it would be passed over without a word.
        """
        ledger, marker = self.store.ledger(), self.store.marker()
        good = []
        for name in ledger.good:
            damaged = not self.store.has(name)
            instances = [
                {
                    "name": one.name,
                    "spec": one.spec,
                    **{key: one.settings.get(key) for key in _SHOWN},
                    "group": _instance.rank_of(one.settings),
                    **_deploy_record.standing(self.store.record(one.name), one.settings, one.spec),
                }
                for one in (() if damaged else self.store.load(name).members)
            ]
            answered_at = self.store.proof(name).get("at", "")
            good.append({"id": name, "answered_at": answered_at, "damaged": damaged, "instances": instances})
        return {
            "serving": ledger.serving,
            "good": good,
            "last": dataclasses.asdict(ledger.last),
            "under_way": marker.to if marker else "",
        }

    def _untouched(self, wanted: _generation.Generation) -> tuple[_generation.Member, ...]:
        """Return the instances of a generation that run on whatever is done about the others."""
        return tuple(
            one
            for one in wanted.members
            if _converge.serves(_instance.observe(self.box.run, one.name, self.box.sysroot), one.spec)
            and self.store.record(one.name).get("spec") == one.spec
        )

    def _prove(
        self,
        members: c.Iterable[_generation.Member],
        prove: c.Callable[..., _proof.Proof],
        wanted: _generation.Generation,
    ) -> Outcome:
        busy = []
        for one in members:
            proof = prove(one.name, one.settings, booted=False)
            if proof.busy:
                busy.append(f"{proof.reason} It was not touched: nothing of it has changed, and others keep it busy.")
            elif not proof.ok:
                message = (
                    f"{proof.reason} It was not touched: nothing of it has changed. `systemctl restart "
                    f"{_instance.unit_name(one.name)}` starts it anew."
                )
                return Outcome(False, message, wanted.id, failed=True)
        if busy:
            return Outcome(False, " ".join(busy), wanted.id)
        return Outcome(False, f"generation {wanted.id} serves and answers: {wanted.about}", wanted.id)

    def _joins(self, name: str) -> bool:
        """Return whether the switch that is asked for is under way; refuse where another one is."""
        marker = self.store.marker()
        if marker is None or self.box.check_mode:
            return False
        if marker.to != name or marker.back:
            way = f"back from generation {marker.to}" if marker.back else f"to generation {marker.to}"
            raise DeploymentError(f"another switch is under way ({way}); wait until it has ended, and run this again.")
        return True

    def _ask(self, wanted: _generation.Generation, *, undo: bool = False, return_to: bool = False) -> None:
        self._check_secrets(wanted)
        ledger = self.store.ledger()
        before = ledger.serving or next(iter(ledger.good), "")
        if not self._is_whole(before):
            # Where nothing can be adopted either, the switch goes on: somebody wants to get away from there.
            # Without all of it, it stays with the damaged one: what the switch does not touch is spared then.
            before = self._adopt(wholly=bool(before)) or before
        # Enabled before the marker is there: from then on, whatever happens to the box, somebody goes on.
        self._systemctl("enable", UNIT)
        self.store.mark(
            _generation.Marker(
                to=wanted.id,
                before=before,
                boot_id=boot_id(self.box.sysroot),
                asked=uuid.uuid4().hex,
                keep=self.keep,
                undo=undo,
                return_to=return_to,
            )
        )
        self._run_unit()

    def _run_unit(self) -> None:
        if _instance.show(self.box.run, UNIT).active_state not in {"inactive", "failed"}:
            return
        _status.StatusFile(JOB, self.box.status_folder).forget()
        self.box.run(["systemctl", "reset-failed", UNIT])
        self._systemctl("start", UNIT)

    def _adopt(self, *, wholly: bool) -> str:
        """Make a generation of what the box serves without having a whole one of it, so that there is a way back.

        What going back does not bring into being it takes away. So an engine that happens to boot, or has just ended,
        belongs to it as well: whatever systemd would start again. Where ``wholly`` asks for it, nothing is adopted
        unless all of that can be.
        """
        members: list[_generation.Member] = []
        files: list[_generation.File] = []
        root = self.box.sysroot
        there = [_instance.observe(self.box.run, name, root) for name in _instance.placed(root)]
        # What serves is back first, and does not wait for one that may never come up.
        for found in sorted(there, key=lambda one: not one.unit.serving):
            spec = str(found.settings.get("spec", ""))
            if not (found.unit.serving or found.unit.starting or found.unit.enabled):
                continue  # somebody keeps it down, or a switch that failed does
            if not spec or found.running_spec not in {"", spec}:
                if wholly:
                    return ""
                continue
            name = found.name
            places = (f"{_instance.UNIT_FOLDER}/{found.unit.name}", f"{_instance.INSTANCE_FOLDER}/{name}.json")
            files += [_generation.File(f"/{one}", (root / one).read_text(encoding="utf-8")) for one in places]
            secrets = self._adopted_secrets(name)
            members.append(_generation.Member(name, spec, found.settings, secrets=secrets))
        if not members:
            return ""
        adopted = _generation.Generation(tuple(members), tuple(files))
        self.store.stage(adopted)
        ledger = self.store.ledger()
        good = (adopted.id, *(one for one in ledger.good if one != adopted.id and self._is_whole(one)))
        self.store.keep_ledger(dataclasses.replace(ledger, serving=adopted.id, good=good))
        return adopted.id

    def _adopted_secrets(self, name: str) -> dict[str, str]:
        path = self.box.sysroot / _instance.INSTANCE_FOLDER / f"{name}.env"
        if not path.exists():
            return {}
        text = path.read_text(encoding="utf-8")
        digest = hashlib.pbkdf2_hmac("sha256", text.encode(), b"gb10.fleet", _HASH_ROUNDS).hex()
        kept = self.store.folder / "secrets" / f"{digest[:32]}.env"
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _files.write(_files.Wanted(kept, text, 0o600))
        return {"file": f"/{kept.relative_to(self.box.sysroot)}", "hash": digest}

    def _check_things(self, wanted: _generation.Generation) -> None:
        """Refuse a generation that could not start, because something that it needs is not on the box any more."""
        self._check_secrets(wanted)
        for one in wanted.members:
            image = str(one.settings.get("image", ""))
            if image and not _docker.image_id(self.box.run, image):
                raise DeploymentError(
                    f"the image of {one.about} is not on the box any more; `docker pull {image}`, and run this again."
                )

    def _check_soaks(self, wanted: _generation.Generation) -> None:
        """Refuse a generation that nobody has named, and of which a soak has shown that it answers wrong.

        Only what it would bring back counts: an engine that serves now as well goes on in any case.
        """
        serving = self.store.ledger().serving
        running = self.store.load(serving).specs if self.store.has(serving) else {}
        for one in wanted.members:
            if running.get(one.name) == one.spec:
                continue
            said = _deploy_record.standing(self.store.record(one.name), one.settings, one.spec)
            if said["soak"] == "failed":
                raise DeploymentError(
                    f"{one.about} of generation {wanted.id} is not proven: {str(said['because']).rstrip('.')}; name "
                    "the generation to go back to it all the same; nothing was changed."
                )

    def _check_secrets(self, wanted: _generation.Generation) -> None:
        for one in wanted.members:
            if one.secrets:
                self.store.secret_text(one)

    def _is_whole(self, name: str) -> bool:
        """Whether the box still has all of a generation that it could put back."""
        try:
            self._check_secrets(self.store.load(name))
        except _generation.GenerationError:
            return False
        return True

    def _secrets_in_place(self, wanted: _generation.Generation) -> bool:
        try:
            return self.store.in_place(wanted)
        except _generation.GenerationError:  # not even staged yet
            return False

    def _systemctl(self, *arguments: str) -> None:
        code, _out, err = self.box.run(["systemctl", *arguments])
        if code != 0:
            raise _instance.UnitError(f"`systemctl {' '.join(arguments)}` failed: {err.strip()}")


def boot_id(sysroot: pathlib.Path = pathlib.Path("/")) -> str:
    """Return what tells this boot of the box from every other."""
    return (sysroot / _BOOT_ID).read_text(encoding="utf-8").strip()


def _states(before: str, after: str) -> dict[str, str]:
    return {"before": f"{before}\n", "after": f"{after}\n"}
