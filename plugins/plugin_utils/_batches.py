# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""In which order, and how many at a time, boxes are switched: the boxes of a serving group always together.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import re
import typing as t

DEFAULT: t.Final = (1, "100%")


class BatchError(ValueError):
    """What is no number of boxes, or cannot be switched at once. The text says what to write."""


@dataclasses.dataclass(frozen=True, slots=True)
class Batches:
    """The boxes in the order in which they are switched, and the sizes of the batches, which add up to all."""

    order: tuple[str, ...]
    sizes: tuple[int, ...]


def batches(
    boxes: c.Sequence[str],
    together: c.Sequence[c.Sequence[str]],
    wanted: object = DEFAULT,
    *,
    forks: int | None = None,
) -> Batches:
    """Deal boxes out into batches of at most the ``wanted`` sizes, none of which splits what belongs ``together``.

    A size is a number or a share ("30%"); the last one counts for all batches that follow, as Ansible's serial does. A
    set of boxes that is larger than its batch makes the batch as large as itself. ``forks`` is on how many boxes
    Ansible works at a time: the ranks of a group wait for each other, so none may be left over for a second round.
    """
    sizes = [_number(one, len(boxes)) for one in (wanted if isinstance(wanted, list | tuple) else [wanted])]
    if not sizes:
        raise BatchError(_ADVICE.format("an empty list"))
    clusters = _clusters(boxes, together)
    grouped = [cluster for cluster in clusters if len(cluster) > 1]
    if forks is not None and (large := [cluster for cluster in grouped if len(cluster) > forks]):
        raise BatchError(
            f"{', '.join(large[0])} are ranks of one engine and start together, and Ansible works on {forks} boxes at "
            f"a time; run it with --forks {len(large[0])}, or set forks in ansible.cfg."
        )
    most = forks if forks is not None and grouped else len(boxes)
    found: list[list[str]] = []
    limit = 0
    for cluster in clusters:
        if not found or len(found[-1]) + len(cluster) > limit:
            limit = min(most, sizes[min(len(found), len(sizes) - 1)])
            found.append([])
        found[-1] += cluster
    return Batches(tuple(box for batch in found for box in batch), tuple(len(batch) for batch in found))


_ADVICE: t.Final = (
    "fleet_batches: {} is no size of a batch; write numbers of boxes or shares of up to 100%, such as [1, '50%']."
)


def _number(size: object, boxes: int) -> int:
    share = re.fullmatch(r"(\d{1,3})%", size) if isinstance(size, str) else None
    if share and int(share[1]) <= 100:
        return max(1, int(share[1]) * boxes // 100)
    number = int(size) if isinstance(size, str) and size.isdigit() else size
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise BatchError(_ADVICE.format(repr(size)))
    return number


def _clusters(boxes: c.Sequence[str], together: c.Sequence[c.Sequence[str]]) -> list[list[str]]:
    """Return what is switched at once: single boxes and whole groups, each group where its first box stands."""
    group_of = {box: [one for one in group if one in boxes] for group in together for box in group}
    placed: set[str] = set()
    found = []
    for box in boxes:
        if box not in placed:
            cluster = group_of.get(box, [box])
            found.append(cluster)
            placed.update(cluster)
    return found
