# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How vLLM groups layers that share a block table, and what one block then costs over all groups.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses

from ansible_collections.gb10.fleet.plugins.plugin_utils._kv_rules import KvRules, KvUnsupportedError
from ansible_collections.gb10.fleet.plugins.plugin_utils._kv_specs import CacheSpec, Counted, Staged, ceil_div, round_up


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Layers under one block table: their specs, each with its number of layers."""

    specs: tuple[tuple[CacheSpec, int], ...]

    @property
    def bytes_per_block(self) -> int:
        """Return the bytes of one block over the group's layers."""
        return sum(spec.page * count for spec, count in self.specs)

    def blocks(self, length: int, in_flight: int) -> int:
        """Return the blocks that a request of this length needs from the group."""
        return max(spec.blocks(length, in_flight) for spec, _count in self.specs)


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """The groups of a model and the bytes that one block takes from the pool.

    ``row`` is set where the check before the start weighs a request in rows of padded pages rather than in blocks, as
    releases up to 0.28 do for DeepSeek-V4.
    """

    groups: tuple[Group, ...]
    bytes_per_block: int
    row: int = 0
    counts_bytes: bool = False

    def blocks(self, length: int, in_flight: int) -> int:
        """Return the blocks of one request that vLLM divides the pool by."""
        per_group = [group.blocks(length, in_flight) for group in self.groups]
        if not self.counts_bytes:
            return sum(per_group)
        used = sum(blocks * group.bytes_per_block for blocks, group in zip(per_group, self.groups, strict=True))
        return ceil_div(used, self.groups[0].bytes_per_block)

    def needed_bytes(self, length: int, in_flight: int) -> int:
        """Return the bytes that one request needs in the check before the start."""
        blocks = sum(group.blocks(length, in_flight) for group in self.groups)
        return blocks * (self.row or self.bytes_per_block)


def stage_bytes(specs: Counted, staged: Staged, stages: int, rules: KvRules) -> tuple[int, ...]:
    """Return the bytes that one block takes on each stage of a pipeline; empty where that is not known.

    vLLM groups the layers of all stages together, and each stage then holds its own layers of every group
    (v1/core/kv_cache_utils.py, get_kv_cache_configs, read in 0.32.0 and 0.33.0 on 2026-11-29).
    """
    if not staged:
        return ()
    if len({_uniform(spec) for spec, _count in specs}) == 1:
        return tuple(sum(spec.page for spec, stage in staged if stage == one) for one in range(stages))
    if any(spec.latent and spec.family == "window" for spec, _count in specs):
        return ()
    page, size = _page_and_size(specs, rules)
    held: dict[CacheSpec, list[int]] = {}
    for spec, stage in staged:
        held.setdefault(_unify(spec, page, rules), []).append(stage)
    groups = [
        of[index::number] for of in held.values() for number in (ceil_div(len(of), size),) for index in range(number)
    ]
    return tuple(page * max(group.count(one) for group in groups) for one in range(stages))


def build_pool(specs: Counted, rules: KvRules) -> Pool:
    """Group the layers as the release does."""
    if len({_uniform(spec) for spec, _count in specs}) == 1:
        group = Group(tuple(specs))
        return Pool((group,), group.bytes_per_block)
    if any(spec.latent and spec.family == "window" for spec, _count in specs):
        return _mixed_pages(specs, rules)
    return _equal_pages(specs, rules)


def _uniform(spec: CacheSpec) -> tuple[object, ...]:
    """Return what layers must agree on to share one group although their pages differ."""
    if spec.family in {"window", "chunk"}:
        return spec.family, spec.block_size, spec.reach, spec.latent
    if spec.family == "full":
        return spec.family, spec.block_size
    return spec.family, spec.make


def _equal_pages(specs: Counted, rules: KvRules) -> Pool:
    """Bring all pages to one size and split each type into groups of equally many layers."""
    page, size = _page_and_size(specs, rules)
    groups: list[Group] = []
    for spec, count in _merged(specs, page, rules).items():
        number = ceil_div(count, size)
        # Layers go to the groups in turn, so that some groups have one layer fewer.
        groups.extend(Group(((spec, len(range(index, count, number))),)) for index in range(number))
    return Pool(tuple(groups), size * page)


def _merged(specs: Counted, page: int, rules: KvRules) -> dict[CacheSpec, int]:
    """Return the number of layers of each type, once all pages have one size."""
    merged: dict[CacheSpec, int] = {}
    for spec, count in specs:
        unified = _unify(spec, page, rules)
        merged[unified] = merged.get(unified, 0) + count
    return merged


def _page_and_size(specs: Counted, rules: KvRules) -> tuple[int, int]:
    """Return the size that all pages get, and how many layers a group has."""
    page = max(spec.page for spec, _count in specs)
    counts = _merged(specs, page, rules).values()
    fewest, most = min(counts), max(counts)
    return page, most if most < fewest * rules.group_padding_limit else fewest


def _unify(spec: CacheSpec, page: int, rules: KvRules) -> CacheSpec:
    if spec.page == page:
        return spec
    if spec.family.startswith("state"):
        return dataclasses.replace(spec, page=page)
    if page % spec.page == 0:
        return dataclasses.replace(spec, page=page, block_size=spec.block_size * (page // spec.page))
    if rules.pads_odd_pages and not spec.latent:
        return dataclasses.replace(spec, page=page)
    raise KvUnsupportedError(
        f"pages of {spec.page} and {page} bytes do not divide; how vLLM {rules.release} joins them is not known."
    )


def _mixed_pages(specs: Counted, rules: KvRules) -> Pool:
    """Pack pages of several sizes into one block (DeepSeek-V4)."""
    buckets: dict[tuple[object, ...], list[tuple[CacheSpec, int]]] = {}
    for spec, count in specs:
        buckets.setdefault(_uniform(spec), []).append((spec, count))
    full = next(bucket for bucket in buckets.values() if bucket[0][0].family == "full")
    others = [bucket for bucket in buckets.values() if bucket is not full]
    if rules.packing == "padded_rows":
        others = [_pad_to(bucket, {spec.page for spec, _count in full}) for bucket in others]
    # Layers of a bucket repeat as a pattern with one layer of each page size.
    repeats = _repeats(full, others, rules)
    groups = [Group(tuple(full))]
    for bucket in others:
        depths = {depth for _page, depth in _depths(bucket).items()}
        if len(depths) != 1:
            raise KvUnsupportedError("how vLLM packs layers that repeat unevenly is not known.")
        depth = depths.pop()
        number = ceil_div(depth, repeats)
        for index in range(number):
            share = len(range(index, depth, number))
            groups.append(Group(tuple((spec, share * count // depth) for spec, count in bucket)))
    if rules.packing == "padded_rows":
        slots: dict[int, int] = {}
        for group in groups:
            for page, depth in _depths(group.specs).items():
                slots[page] = max(slots.get(page, 0), depth)
        bytes_per_block = sum(page * depth for page, depth in slots.items())
    else:
        bytes_per_block = max(group.bytes_per_block for group in groups)
    row = 0
    if rules.packing in {"padded_rows", "slab"}:
        rows = max(depth for group in groups for depth in _depths(group.specs).values())
        row = rows * sum(_depths(full))
    return Pool(tuple(groups), bytes_per_block, row, counts_bytes=rules.request_blocks == "bytes_over_first_group")


def _depths(bucket: list[tuple[CacheSpec, int]] | tuple[tuple[CacheSpec, int], ...]) -> dict[int, int]:
    """Return the number of layers of each page size."""
    depths: dict[int, int] = {}
    for spec, count in bucket:
        depths[spec.page] = depths.get(spec.page, 0) + count
    return depths


def _pad_to(bucket: list[tuple[CacheSpec, int]], pages: set[int]) -> list[tuple[CacheSpec, int]]:
    padded = []
    for spec, count in bucket:
        larger = [page for page in pages if page >= spec.page]
        if not larger:
            raise KvUnsupportedError("a window's page is larger than every page of the long history.")
        padded.append((dataclasses.replace(spec, page=min(larger)), count))
    return padded


def _repeats(full: list[tuple[CacheSpec, int]], others: list[list[tuple[CacheSpec, int]]], rules: KvRules) -> int:
    """Return the repeats of a pattern per group that waste the least over all buckets, the larger one where equal."""
    deepest = [max(_depths(bucket).values()) for bucket in others]
    if rules.packing == "balanced_slab":
        # Only buckets that repeat evenly have a say; the largest of them with several page sizes cannot be split.
        candidates = [bucket for bucket in (full, *others) if len(set(_depths(bucket).values())) == 1]
        several = [max(_depths(bucket).values()) for bucket in candidates if len(_depths(bucket)) > 1]
        depths = [max(_depths(bucket).values()) for bucket in candidates]
        lowest = max(several, default=0)
        if not lowest:
            raise KvUnsupportedError("how vLLM packs this mix of pages is not known.")
    else:
        lowest = max(_depths(full).values())
        depths = [lowest, *deepest]
    best = lowest
    waste = None
    for repeats in range(lowest, max(depths) + 1):
        padding = sum(round_up(depth, repeats) - depth for depth in depths)
        if waste is None or padding <= waste:
            best, waste = repeats, padding
    return best
