# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where the boxes of a run go back to, which of them go at once, or why none of them may.

What a box served and serves is told by its own generations, never by the inventory, which may name something else by
now. The ranks of a serving group go back together, and to the same deployment of it: a rank that is alone waits for
the others and then fails.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import typing as t

UNTOUCHED: t.Final = "Nothing was changed."
_MANIFEST: t.Final = "/var/lib/gb10-fleet/generations/{}/manifest.json is missing or not what it was"


@dataclasses.dataclass(frozen=True, slots=True)
class Rank:
    """A serving group that an instance is a rank of: its name, its boxes, and what it was deployed as."""

    group: str
    boxes: tuple[str, ...]
    spec: str

    @property
    def deployment(self) -> tuple[str, str]:
        """What has to be the same on all boxes of the group."""
        return self.group, self.spec

    @property
    def about(self) -> str:
        """The deployment of the group, as it is shown."""
        return f"{self.group} as {self.spec[:12]}"


@dataclasses.dataclass(frozen=True, slots=True)
class Good:
    """A generation that has served on a box, and has answered then. Of one that is ``damaged`` nothing else is known.

    ``engines`` are its instances as people tell them apart, ``unproven`` those that are not proven by their deploy
    records, and ``failed`` those of which a soak has failed, each with why. What serves now as well is not among the
    latter: it goes on in any case.
    """

    id: str
    answered_at: str = ""
    instances: tuple[str, ...] = ()
    ranks: tuple[Rank, ...] = ()
    engines: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    damaged: bool = False

    def rank(self, group: str) -> Rank | None:
        """Return the rank of a group that this generation has."""
        return next((one for one in self.ranks if one.group == group), None)

    @classmethod
    def from_plain(cls, data: c.Mapping[str, t.Any], running: c.Container[tuple[str, str]]) -> Good:
        """Take it as vllm_instance_info returns it. ``running`` is what serves now, by name and fingerprint."""
        instances = data["instances"]
        names = tuple(str(one["name"]) for one in instances)
        unproven = [one for one in instances if not one["proven"]]
        return cls(
            str(data["id"]),
            str(data["answered_at"]),
            names,
            _ranks(instances),
            tuple(map(_engine, instances)),
            tuple(map(_lack, unproven)),
            tuple(_lack(one) for one in unproven if one["soak"] == "failed" and _what(one) not in running),
            damaged=bool(data.get("damaged")),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """What a box says: the generation that serves, the good ones (the newest first), and the ranks that it has now."""

    name: str
    serving: str = ""
    good: tuple[Good, ...] = ()
    ranks: tuple[Rank, ...] = ()

    @classmethod
    def from_plain(cls, name: str, observed: c.Mapping[str, t.Any]) -> Box:
        """Take it from what vllm_instance_info returned."""
        deployment = observed["deployment"]
        serving = str(deployment["serving"])
        running = {_what(one) for data in deployment["good"] if data["id"] == serving for one in data["instances"]}
        good = tuple(Good.from_plain(one, running) for one in deployment["good"])
        ranks = dict.fromkeys(rank for one in good if one.id == serving for rank in one.ranks)
        # What lies on the box counts as well: after a switch that could not be undone, no generation serves.
        ranks |= dict.fromkeys(_ranks(observed["instances"].values()))
        return cls(name, serving, good, tuple(ranks))

    @property
    def engines(self) -> tuple[str, ...]:
        """What serves by the box's own account."""
        return next((one.engines for one in self.good if one.id == self.serving), ())

    @property
    def shown(self) -> str:
        """The good generations, as they are shown."""
        return ", ".join(f"{one.id} (damaged)" if one.damaged else one.id for one in self.good) or "none"


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The generation that each box goes back to, the boxes that go at once, and what speaks against all of it."""

    targets: c.Mapping[str, Good]
    together: tuple[tuple[str, ...], ...]
    problems: tuple[str, ...]


def plan(boxes: c.Sequence[Box], wanted: c.Sequence[str], inventory: c.Mapping[str, c.Sequence[str]]) -> Plan:
    """Plan the way back of the boxes of a run, to the ``wanted`` generations or to those before the ones that serve.

    A box goes to the one of the wanted generations that it has. One that has none of them goes where a rank of its
    serving group goes that has. A damaged generation is refused, and not passed over. ``inventory`` are the groups of
    the inventory, by which alone a remedy is worded.
    """
    targets: dict[str, Good] = {}
    damaged: dict[str, Good] = {}
    problems: list[str] = []
    for box in boxes:
        found = [one for one in box.good if (one.id in wanted if wanted else one.id != box.serving)]
        if wanted and len(found) > 1:
            named = ", ".join(one.id for one in found)
            problems.append(f"rollback_to names {named} of {box.name}; name one of them only. {UNTOUCHED}")
        elif found:
            (damaged if found[0].damaged else targets)[box.name] = found[0]
    leading = [rank for target in targets.values() for rank in target.ranks]
    for box in boxes if wanted else ():
        if box.name not in targets | damaged and (target := _following(box, leading)):
            targets[box.name] = target
    stuck = [box for box in boxes if box.name not in targets | damaged and not problems]
    problems += [_stuck(box, wanted, [one.name for one in boxes if one.name in targets]) for box in stuck]
    problems += [] if stuck or problems else list(_unknown(boxes, wanted))
    problems += [_damaged(box, damaged[box.name], wanted, targets) for box in boxes if box.name in damaged]
    problems += [] if wanted else list(_failed(boxes, targets))
    problems += _absent(boxes, targets, inventory)
    problems += _disagreeing(boxes, targets)
    return Plan(targets, tuple(_together(boxes, targets)), tuple(dict.fromkeys(problems)))


def _ranks(instances: c.Iterable[c.Mapping[str, t.Any]]) -> tuple[Rank, ...]:
    groups = [group for one in instances if (group := one.get("group"))]
    return tuple(Rank(str(one["name"]), tuple(map(str, one["boxes"])), str(one["spec"])) for one in groups)


def _engine(instance: c.Mapping[str, t.Any]) -> str:
    """Return an instance by what tells it from another one of the same name: its model role and its image."""
    image = str(instance["image"])
    if "@sha256:" in image:
        image = f"sha256:{image.rpartition('@sha256:')[2][:12]}"
    return f"vllm-{instance['name']} (model role {instance['model_role']}, image {image})"


def _what(instance: c.Mapping[str, t.Any]) -> tuple[str, str]:
    """Return what is the same for one engine in two generations."""
    return str(instance["name"]), str(instance["spec"])


def _lack(instance: c.Mapping[str, t.Any]) -> str:
    return f"vllm-{instance['name']} ({str(instance['because']).rstrip('.')})"


def _failed(boxes: c.Sequence[Box], targets: c.Mapping[str, Good]) -> c.Iterator[str]:
    """Yield which boxes would go back to an engine that a soak has found wrong, though nobody has asked for that."""
    ids = ",".join(dict.fromkeys(one.id for one in targets.values()))
    for box in boxes:
        target = targets.get(box.name, Good(""))
        if target.failed:
            yield (
                f"{box.name} would go back to generation {target.id}, of which this is not proven: "
                f"{', '.join(target.failed)}; name another one (the good ones that it has are {box.shown}), or the "
                f"same to go there nevertheless (-e rollback_to={ids}). {UNTOUCHED}"
            )


def _damaged(box: Box, target: Good, wanted: c.Sequence[str], targets: c.Mapping[str, Good]) -> str:
    """Return that a box would go back to a generation that cannot be read; no other one takes its place unasked."""
    what = f"{box.name} would go back to generation {target.id}, which is damaged: {_MANIFEST.format(target.id)}"
    left = [one.id for one in box.good if not one.damaged and one.id != box.serving]
    if not left:
        return f"{what}; it has no other one, so run site.yml with what it is to serve. {UNTOUCHED}"
    others = dict.fromkeys([one for one in wanted if one != target.id] or [one.id for one in targets.values()])
    ids = ",".join([*(one for one in others if one not in left), " or ".join(left)])
    return f"{what}; name another one to pass over it (-e rollback_to={ids}). {UNTOUCHED}"


def _following(box: Box, leading: c.Sequence[Rank]) -> Good | None:
    """Return the newest generation of a box in which it has its part in what other ranks go back to."""
    asked = {rank.deployment for rank in leading if box.name in rank.boxes}
    return next((one for one in box.good if any(rank.deployment in asked for rank in one.ranks)), None)


def _stuck(box: Box, wanted: c.Sequence[str], others: c.Sequence[str]) -> str:
    there = f"the good ones that it has are {box.shown}, and {box.serving or 'none'} serves now"
    remedy = ""
    if others:
        remedy = f"; run it for the others alone (-l {','.join(others)})"
    if others and wanted and box.good:
        remedy += f", or name one of its own, too (-e rollback_to={','.join(wanted)},ID)"
    return f"{box.name} cannot go back to {', '.join(wanted) or 'an earlier generation'}: {there}{remedy}. {UNTOUCHED}"


def _unknown(boxes: c.Sequence[Box], wanted: c.Sequence[str]) -> c.Iterator[str]:
    known = {one.id for box in boxes for one in box.good}
    for one in wanted:
        if one not in known:
            have = "; ".join(f"{box.name}: {box.shown}" for box in boxes)
            yield f"rollback_to names {one}, which is a good generation of no box of this run ({have}). {UNTOUCHED}"


def _absent(
    boxes: c.Sequence[Box], targets: c.Mapping[str, Good], inventory: c.Mapping[str, c.Sequence[str]]
) -> c.Iterator[str]:
    """Yield which boxes would be left behind by the others of their serving group."""
    playing = {box.name for box in boxes}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for box in boxes:
        target = targets.get(box.name, Good(""))
        for rank in (*box.ranks, *target.ranks):
            absent = [one for one in rank.boxes if one not in playing]
            if not absent or (rank.group, rank.boxes) in seen:
                continue
            seen.add((rank.group, rank.boxes))
            when = "is" if rank in box.ranks else f"would, by going back to generation {target.id}, become"
            yield (
                f"{box.name} {when} a rank of the serving group {rank.group} ({', '.join(rank.boxes)}), whose ranks "
                f"start and stop together only, and {', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not in "
                f"this run; {_together_again(rank, absent, inventory)}. {UNTOUCHED}"
            )


def _together_again(rank: Rank, absent: c.Sequence[str], inventory: c.Mapping[str, c.Sequence[str]]) -> str:
    gone = [box for box in absent if box not in inventory.get("all", ())]
    if gone:
        return f"put {', '.join(gone)} back into the inventory, or say there what to serve instead and run site.yml"
    same = set(inventory.get(rank.group, ())) == set(rank.boxes)
    return f"run it for all of them: -l {rank.group if same else ','.join(rank.boxes)}"


def _disagreeing(boxes: c.Sequence[Box], targets: c.Mapping[str, Good]) -> c.Iterator[str]:
    """Yield where the boxes of a serving group would not go back to the same deployment of it."""
    known = {box.name: box for box in boxes}
    seen: set[str] = set()
    for rank in [rank for box in boxes for rank in targets.get(box.name, Good("")).ranks]:
        # A box that is not in the run, or has nowhere to go back to, is told of already.
        if rank.group in seen or not all(one in targets for one in rank.boxes):
            continue
        ranks = [targets[one].rank(rank.group) for one in rank.boxes]
        if all(one is not None and one.deployment == rank.deployment for one in ranks):
            continue
        seen.add(rank.group)
        ways = [
            f"{box} to {targets[box].id} ({own.about if own else f'no rank of {rank.group}'})"
            for box, own in zip(rank.boxes, ranks, strict=True)
        ]
        yield (
            f"{' and '.join(rank.boxes)} would not go back to the same deployment of the serving group {rank.group}: "
            f"{'; '.join(ways)}; {_in_common([known[one] for one in rank.boxes], rank.group)}. {UNTOUCHED}"
        )


def _in_common(boxes: c.Sequence[Box], group: str) -> str:
    """Return what to type for a deployment of a group that all of its boxes have."""
    had = [{rank.deployment for one in box.good if (rank := one.rank(group))} for box in boxes]
    common = set.intersection(*had)
    head = boxes[0]
    earlier = [one for one in head.good if one.id != head.serving]  # a damaged one has no rank
    ids = [one.id for one in earlier if (rank := one.rank(group)) and rank.deployment in common]
    if ids:
        what = f"name one of {head.name} that the others have, too, and they follow it"
        return f"{what}: -e rollback_to={' or '.join(ids)}"
    have = "; ".join(f"{box.name}: {box.shown}" for box in boxes)
    return (
        f"they have no earlier one in common, so name a generation without the group for each box, "
        f"-e rollback_to=ID,ID (the good ones are {have}), or run site.yml with what they are to serve"
    )


def _together(boxes: c.Sequence[Box], targets: c.Mapping[str, Good]) -> list[tuple[str, ...]]:
    """Return the boxes that have to go at once: those that share a serving group, now or afterwards, at any remove."""
    clusters: list[set[str]] = []
    for box in boxes:
        for rank in (*box.ranks, *targets.get(box.name, Good("")).ranks):
            merged = set(rank.boxes)
            for one in [one for one in clusters if one & merged]:
                merged |= one
                clusters.remove(one)
            clusters.append(merged)
    order = [box.name for box in boxes]
    return [tuple(one for one in order if one in cluster) for cluster in clusters]
