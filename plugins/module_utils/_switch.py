# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Switches a box from what it serves to a generation, or back: a transaction that survives being killed anywhere.

Bringing a generation into being is one function, and each of its steps may be done again: what leaves is stopped before
anything is started, files are placed while their units are down, and what serves already is left alone. A marker on the
disk says where the box is going; whoever finds it there (systemd after a kill, the next boot) goes on. Going back after
a failed proof is the same function with the generation that served before.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import contextlib
import dataclasses
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _converge,
    _deploy_record,
    _docker,
    _files,
    _generation,
    _instance,
    _proof,
    _watch_timers,
)

_STEP_S: t.Final = 5.0
# In these the box may have gone down because of what was being started.
_RISKY: t.Final = frozenset({"starting", "proving"})

Prove = c.Callable[[_generation.Member, bool], _proof.Proof]
Tell = c.Callable[[str], None]


class SwitchError(Exception):
    """An instance did not come up, or its proof failed. The text says which, and why."""


class StuckError(Exception):
    """A switch has come to its end, and the box takes no word of that. The text says how it ended, and why."""


# The unit of the daemon beside each rank of a serving group.
_PEER_UNIT: t.Final = f"/{_instance.UNIT_FOLDER}/gb10-fleet-peer@.service"

# What systemd says of a box that is not being shut down (`systemctl is-system-running`, systemctl(1)).
_UP: t.Final = frozenset({"initializing", "starting", "running", "degraded", "maintenance"})

# How often it is tried again where something on the box is in the way: ten minutes, with the pauses of its unit.
_TRIES: t.Final = 40

# What fails a switch, and so has the box go back.
FAILURES: t.Final = (SwitchError, _generation.GenerationError, _instance.UnitError, _docker.DockerError, OSError)


@dataclasses.dataclass(frozen=True, slots=True)
class Switch:
    """The switch that the box's marker asks for. ``boot_id`` tells whether the box has restarted since it was asked."""

    box: _converge.Box
    store: _generation.Store
    prove: Prove
    tell: Tell
    boot_id: str
    now: c.Callable[[], float] = time.time

    def run(self) -> _generation.Last | None:
        """Finish the switch that is under way, and return how it ended; None where there is none."""
        marker = self.store.marker()
        if marker is None:
            if self.store.unreadable:
                self.tell(
                    "nobody can read the marker of a switch any more, so it cannot be finished: it lies in "
                    f"{self.store.set_aside()} now. The box may be half on its way: deploy it (site.yml)."
                )
            return None
        last = self.store.ledger().last
        if last.asked == marker.asked:  # it had ended, and only records and the marker were left
            if last.outcome == "served" and self.store.has(marker.to):
                self._write_records(self.store.load(marker.to))
            self.store.unmark()
            return last
        marker = self._resumed(marker)
        if not marker.back:
            try:
                wanted = self.store.load(marker.to)
                proofs = self._bring(marker, wanted)
            except FAILURES as error:
                if self._goes_down():
                    self._try_again(marker, error)
                marker = self._turned(marker, str(error))
            else:
                said = f"generation {wanted.id} serves and has answered: {wanted.about}"
                return self._ending(marker, said, lambda: self._commit(marker, wanted, proofs))
        return self._go_back(marker)

    def _resumed(self, marker: _generation.Marker) -> _generation.Marker:
        """Take up a switch where it was left, unless what it starts may be what took the box down."""
        if marker.boot_id == self.boot_id:
            return marker
        marker = dataclasses.replace(marker, boot_id=self.boot_id, restarts=marker.restarts + 1, failed_up_s=0.0)
        # Without anything to go back to, one loss of power is forgiven; a box that freezes over it is not asked again.
        elsewhere = marker.before != marker.to if marker.before else marker.restarts > 1
        if not marker.back and marker.step in _RISKY and elsewhere:
            return self._turned(marker, "the box restarted while it was starting.")
        self.store.mark_progress(marker)
        return marker

    def _goes_down(self) -> bool:
        """Whether it is the box that fails, because it is shut down or has no systemd to ask, and no engine."""
        _code, out, _err = self.box.run(["systemctl", "is-system-running"])
        return out.strip() not in _UP

    def _turned(self, marker: _generation.Marker, reason: str) -> _generation.Marker:
        """Decide to go back, for good."""
        self.tell(f"generation {marker.to} failed: {reason}")
        now, up_s = self.now(), self.box.clock()
        marker = dataclasses.replace(marker, back=True, reason=reason, failed_at=now, failed_up_s=up_s, step="asked")
        self.store.mark_progress(marker)
        return marker

    def _bring(self, marker: _generation.Marker, wanted: _generation.Generation) -> dict[str, _proof.Proof]:
        """Serve exactly a generation, and return the proofs of its instances."""
        self._at(marker, "stopping")
        self._stop(wanted)
        self._at(marker, "placing")
        # One that was killed in the middle of placing does not know any more what it has placed.
        peers = marker.step == "placing" or self._differs(wanted, _PEER_UNIT)
        self.store.place(wanted)
        self._systemctl("daemon-reload")
        if peers:
            self._start_peers_anew(wanted)
        if not wanted.members:
            return {}
        self._at(marker, "starting")
        # What has served before is given all the tries that systemd gives it, and is not stopped after them.
        again = marker.before == marker.to
        booted = {one.name for one in wanted.members if self._start(one, keep_trying=again)}
        self._at(marker, "proving")
        proofs = {}
        for one in wanted.members:
            proven = str(self.store.record(one.name).get("spec", "")) == one.spec
            asked = one.name in booted or not proven
            proof = self.prove(one, asked)
            # What was not touched, and is kept busy by others, is as good as it was. Where the box goes back, whatever
            # is wrong with it does not come of that, and is no reason to go anywhere else.
            if not proof.ok and (asked or not (proof.busy or marker.back or marker.return_to)):
                raise SwitchError(f"{proof.reason}")
            proofs[one.name] = proof
        return proofs

    def _stop(self, wanted: _generation.Generation) -> None:
        """Stop what is not wanted, all of it before the first start: the box has to have room again."""
        self._remove_others(wanted.specs)
        for name, spec in wanted.specs.items():
            found = _instance.observe(self.box.run, name, self.box.sysroot)
            right = found.running_spec == spec and (found.unit.serving or found.unit.starting)
            running = not found.unit.down or found.container is not None
            if right or not (running or found.unit.enabled):
                continue
            # Not enabled either, so that a boot in the middle of this does not start what is half replaced.
            self.tell(f"stopping {_instance.container_name(name)}")
            if found.unit.load_state != "not-found":
                _converge.disabled(self.box, found)
            _converge.remove_leftover(self.box.run, name, self.tell)

    def _remove_others(self, names: c.Container[str]) -> None:
        for name in _instance.placed(self.box.sysroot):
            if name not in names:
                self.tell(f"stopping {_instance.container_name(name)}")
                _converge.stopped(self.box, name, remove=True)
                _converge.remove_leftover(self.box.run, name, self.tell)

    def _differs(self, wanted: _generation.Generation, dest: str) -> bool:
        """Whether a file of a generation is not on the box as it has to be."""
        return any(_files.differs(self.store.wanted(file)) for file in wanted.files if file.dest == dest)

    def _start_peers_anew(self, wanted: _generation.Generation) -> None:
        """Have the daemons of ranks run by the unit that was placed: systemd keeps those that run to what that was.

        An engine that runs on is none the worse for it, since a daemon finds the round of its rank in its files. It is
        done before anything is started, so that no rank has to meet the others meanwhile. A daemon that does not run
        is left to the start of its rank.
        """
        for one in wanted.members:
            if not one.settings.get("group"):
                continue
            unit = f"gb10-fleet-peer@{one.name}.service"
            code, _out, err = self.box.run(["systemctl", "try-restart", unit])
            if code != 0:
                self.tell(f"{unit} was changed, and runs as it was until its next start: {err.strip()}")

    def _start(self, member: _generation.Member, *, keep_trying: bool) -> bool:
        """Serve an instance, and return whether it had to be started."""
        begin, booted, said = True, False, ""
        while True:
            outcome = _converge.started(
                self.box, member.name, member.spec, begin=begin, step_s=_STEP_S, keep_trying=keep_trying
            )
            if outcome.failed:
                raise SwitchError(outcome.message)
            # It may have come up between two steps, so that the last one finds it serving.
            booted = booted or outcome.booted
            if outcome.finished:
                return booted
            if outcome.message != said:
                said = outcome.message
                self.tell(f"{_instance.container_name(member.name)}: {said}")
            begin = False

    def _commit(
        self, marker: _generation.Marker, wanted: _generation.Generation, proofs: c.Mapping[str, _proof.Proof]
    ) -> _generation.Last:
        """Write down that a generation serves and is good: from here on it is what a failure goes back to."""
        at = self.now()
        ledger = self.store.ledger()
        before = marker.before if marker.before != wanted.id else str(self.store.proof(wanted.id).get("before", ""))
        proof = {"at": _stamp(at), "before": before, "proofs": {k: dataclasses.asdict(v) for k, v in proofs.items()}}
        self.store.keep_proof(wanted.id, proof)
        last = _generation.Last(
            to=wanted.id,
            before=marker.before,
            outcome="served",
            message=(
                f"generation {wanted.id} serves and has answered: {wanted.about}{self._unproven(wanted)}"
                f"{_untouched_and_wrong(proofs)}{self._watch(wanted)}"
            ),
            at=at,
            asked=marker.asked,
            specs=wanted.specs,
        )
        # A generation that is undone was good for this box alone.
        bad = {wanted.id, marker.before} if marker.undo else {wanted.id}
        # How often an engine is looked at is no engine: an edit of that takes no place, and is none to go back from.
        bad |= self.store.alike(wanted, *ledger.good)
        good = (wanted.id, *(one for one in ledger.good if one not in bad))
        # The ledger first: with it the generation counts, and a record must not tell of one that does not.
        self.store.keep_ledger(_generation.Ledger(wanted.id, good[: marker.keep], last))
        self._write_records(wanted)
        return self._ended()

    def _unproven(self, generation: _generation.Generation) -> str:
        """Return what has answered and is not proven for all that, by what its records are about to say."""
        said = []
        for one in generation.members:
            found = _deploy_record.standing(self.store.record(one.name), one.settings, one.spec)
            if not found["proven"]:
                said.append(f"{_instance.container_name(one.name)} ({str(found['because']).rstrip('.')})")
        return f". Not proven: {', '.join(said)}" if said else ""

    def _watch(self, generation: _generation.Generation) -> str:
        """Have the box watch what serves as its settings say, and return what is to be said of it.

        An engine that was started has brought its timer along; one that runs on has not. Whatever is wrong with a timer
        is no reason to serve something else.
        """
        notes: list[str] = []
        for wanted in (True, False):
            names = [one.name for one in generation.members if bool(one.settings.get("liveness")) == wanted]
            try:
                found = _watch_timers.converge(self.box.run, names, wanted=wanted, check_mode=False)
                notes += found.notes
            except _instance.UnitError as error:
                notes.append(f"the watch of {', '.join(names)} is not as it should be: {error}")
        for note in notes:
            self.tell(note)
        return "".join(f". But {note.rstrip('.')}" for note in notes)

    def _write_records(self, generation: _generation.Generation) -> None:
        """Write the deploy records of a generation that serves, by its proof."""
        found = self.store.proof(generation.id)
        proofs = {name: _proof.Proof(**one) for name, one in found.get("proofs", {}).items()}
        for one in generation.members:
            if one.name in proofs:
                proof = proofs[one.name]
                self._record(one, generation, proof, at=str(found["at"]), before=str(found["before"]))

    def _record(
        self,
        member: _generation.Member,
        generation: _generation.Generation,
        proof: _proof.Proof,
        *,
        at: str,
        before: str,
    ) -> None:
        """Write the deploy record of an instance; one that was not touched keeps what others have added to it."""
        found = self.store.record(member.name)
        kept = found if found.get("spec") == member.spec and not proof.boot else {}
        unit = f"/{_instance.UNIT_FOLDER}/{_instance.unit_name(member.name)}"
        self.store.keep_record(
            member.name,
            {
                "deployed_at": at,
                "boot": dict(proof.boot),
                **kept,
                **_deploy_record.carried(found, member.settings, member.spec),
                "name": member.name,
                "model_role": member.settings.get("model_role", ""),
                "spec": member.spec,
                "image": member.settings.get("image", ""),
                "argv": list(member.argv),
                "plan": dict(member.plan),
                "secrets": dict(member.secrets),
                "unit": next((file.text for file in generation.files if file.dest == unit), ""),
                "generation": generation.id,
                "previous_generation": before,
                **self._proven(found if kept else {}, proof, at),
            },
        )

    @staticmethod
    def _proven(kept: c.Mapping[str, t.Any], proof: _proof.Proof, at: str) -> dict[str, t.Any]:
        """Return what a record says of the proof; where it could not be asked, what it said."""
        if proof.ok or "proof" not in kept:
            return {"proof": dict(proof.probe), "proven_at": at}
        return {"proof": kept["proof"], "proven_at": kept.get("proven_at", "")}

    def _go_back(self, marker: _generation.Marker) -> _generation.Last:
        """Serve again what served before the switch, and prove it again."""
        failed = f"generation {marker.to} failed: {marker.reason}"
        last = _generation.Last(
            marker.to,
            marker.before,
            "down",
            reason=marker.reason,
            asked=marker.asked,
            specs=self._specs(marker.to),
        )
        if marker.before == marker.to:
            message = (
                f"{failed} It is what the box served before, so there is nothing to go back to; what of it runs was "
                "left alone."
            )
            return self._end_back(marker, dataclasses.replace(last, message=message))
        try:
            wanted = self.store.load(marker.before) if marker.before else _generation.Generation()
        except _generation.GenerationError as error:
            message = f"{failed.rstrip('.')}. {self._stop_failed(marker, f'Nothing was restored: {error}.')}"
            return self._end_back(marker, dataclasses.replace(last, message=message))
        self.tell(f"going back to {f'generation {wanted.id}' if marker.before else 'an empty box'}: {wanted.about}")
        try:
            proofs = self._bring(marker, wanted)
        except (SwitchError, _generation.GenerationError, OSError, _instance.UnitError) as error:
            if not isinstance(error, SwitchError | _generation.GenerationError):
                self._try_again(marker, error)
            message = (
                f"{failed} Generation {wanted.id} ({wanted.about}), which served before, could not be restored: "
                f"{str(error).rstrip('.')}. {self._leave(wanted)}"
            )
            return self._end_back(marker, dataclasses.replace(last, message=message))
        if not marker.before:
            message = f"{failed} No generation served before it, so the box serves nothing now."
            return self._end_back(marker, dataclasses.replace(last, message=message))
        took = self._since_failure(marker)
        # Nobody knows how long the box was down where its clock was turned back meanwhile.
        answered = f", answering {took:.0f} s after the failure" if took > 0 else ""
        message = f"{failed} Generation {wanted.id} was restored and serves again{answered}: {wanted.about}."
        if not wanted.members:
            message = f"{failed} The box serves nothing again, as it did before."
        notes = f"{_untouched_and_wrong(proofs)}{self._watch(wanted)}".removeprefix(".")
        message += f"{notes}." if notes else ""
        return self._end_back(
            marker, dataclasses.replace(last, outcome="restored", message=message, restored_s=round(took, 1))
        )

    def _try_again(self, marker: _generation.Marker, error: Exception) -> None:
        """Have systemd run this again, for as long as what is in the way may pass by itself."""
        if marker.tries < _TRIES:
            self.store.mark_progress(dataclasses.replace(self.store.marker() or marker, tries=marker.tries + 1))
            raise error

    def _stop_failed(self, marker: _generation.Marker, why: str) -> str:
        """Stop what failed where nothing takes its place, and return what is to be said of it, and why that is so.

        It must not go on serving. But where nobody knows any more what it was, all that the box has may be of before.
        """
        known = self.store.has(marker.to)
        if known:
            try:
                self._remove_others(self._untouched(marker))
            except (OSError, _instance.UnitError) as trouble:
                self._try_again(marker, trouble)
        left = ", ".join(_instance.placed(self.box.sysroot))
        if not known:
            return (
                f"{why} Nobody can read what failed either, so nothing was stopped. On the box are: {left or 'none'}. "
                "Deploy it (site.yml)."
            )
        rest = f"What the switch had not touched was left alone: {left}." if left else "The box serves nothing now."
        return f"What failed was stopped. {why} {rest}"

    def _untouched(self, marker: _generation.Marker) -> tuple[str, ...]:
        """Return what of the failed generation served before as well, by its records: it runs on as it did."""
        records = {name: self.store.record(name) for name in self._specs(marker.to)}
        return tuple(
            name
            for name, spec in self._specs(marker.to).items()
            if (records[name].get("generation"), records[name].get("spec")) == (marker.before, spec)
        )

    def _leave(self, wanted: _generation.Generation) -> str:
        """Leave to systemd what it can start of a generation that could not be restored, and say what comes of it.

        A unit whose files could not be put back is still the one that failed, and is not started for its name.
        """
        tried, stopped = [], []
        for one in wanted.members:
            unit = _instance.unit_name(one.name)
            if self._is_what_served(wanted, one):
                self.box.run(["systemctl", "start", "--no-block", unit])
                tried.append(unit)
            else:
                with contextlib.suppress(_instance.UnitError):
                    _converge.disabled(self.box, _instance.observe(self.box.run, one.name, self.box.sysroot))
                stopped.append(unit)
        said = [f"systemd goes on with {', '.join(tried)}."] if tried else []
        if stopped:
            said.append(f"Its files are not in place, so this stays stopped and disabled: {', '.join(stopped)}.")
        return " ".join(said)

    def _is_what_served(self, wanted: _generation.Generation, member: _generation.Member) -> bool:
        """Whether a unit on the disk is that of a generation, or runs its engine already."""
        try:
            if self.store.in_place(wanted.part(member)):
                return True
        except (_generation.GenerationError, OSError):
            pass
        return _instance.observe(self.box.run, member.name, self.box.sysroot).running_spec == member.spec

    def _since_failure(self, marker: _generation.Marker) -> float:
        """Return the seconds since the failure, 0 where a wall clock that was turned back is all that knows them."""
        if marker.failed_up_s:
            return self.box.clock() - marker.failed_up_s
        return max(0.0, self.now() - marker.failed_at)

    def _end_back(self, marker: _generation.Marker, last: _generation.Last) -> _generation.Last:
        ledger = self.store.ledger()
        serving = ledger.serving if last.outcome == "restored" or last.before == last.to else ""
        ledger = dataclasses.replace(ledger, serving=serving, last=dataclasses.replace(last, at=self.now()))
        return self._ending(marker, last.message, lambda: self._end(ledger))

    def _ending(self, marker: _generation.Marker, said: str, end: c.Callable[[], _generation.Last]) -> _generation.Last:
        """Write down how a switch has ended: again and again where the disk takes nothing, and not for ever."""
        try:
            return end()
        except OSError as error:
            self._try_again(marker, error)
            raise StuckError(f"{said.rstrip('.')}. But nobody could write that down: {error}.") from error

    def _end(self, ledger: _generation.Ledger) -> _generation.Last:
        self.store.keep_ledger(ledger)
        return self._ended()

    def _ended(self) -> _generation.Last:
        ledger = self.store.ledger()
        # Pruned first: as soon as the marker is gone, another run may stage what it wants.
        self.store.prune(ledger.serving, ledger.last.before)
        self.store.unmark()
        return ledger.last

    def _specs(self, name: str) -> dict[str, str]:
        try:
            return self.store.load(name).specs
        except _generation.GenerationError:
            return {}

    def _at(self, marker: _generation.Marker, step: str) -> None:
        self.store.mark_progress(dataclasses.replace(marker, step=step))

    def _systemctl(self, *arguments: str) -> None:
        code, _out, err = self.box.run(["systemctl", *arguments])
        if code != 0:
            raise _instance.UnitError(f"`systemctl {' '.join(arguments)}` failed: {err.strip()}")


def _untouched_and_wrong(proofs: c.Mapping[str, _proof.Proof]) -> str:
    """Return what is to be said of engines that a box which goes back has not touched, and that fail their proof."""
    wrong = [proof.reason.rstrip(".") for proof in proofs.values() if not (proof.ok or proof.busy)]
    return f". But what runs on as it was is not as it should be: {'; '.join(wrong)}" if wrong else ""


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
