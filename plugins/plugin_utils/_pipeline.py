# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which layers each stage of a pipeline holds, and what its weights are.

The rules are vLLM's (vllm/distributed/utils.py and v1/worker/gpu_model_runner.py, read in 0.32.0 and 0.33.0 on
2026-11-29): layers that are left over go to the stages from the last but one backwards, since the first stage holds the
embeddings and the last one the output head; a drafter runs on the last stage.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses


class PartitionError(ValueError):
    """Layers that were dealt out by hand and do not go round; vLLM refuses them at the start."""


def partition(layers: int, stages: int, by_hand: str = "") -> tuple[int, ...]:
    """Return how many layers each stage holds. ``by_hand`` is VLLM_PP_LAYER_PARTITION, such as 31,30."""
    if by_hand:
        try:
            given = tuple(int(one) for one in by_hand.split(","))
        except ValueError:
            raise PartitionError(f"{by_hand!r} is no list of whole numbers") from None
        if len(given) != stages:
            raise PartitionError(f"{by_hand} has {len(given)} parts for {stages} stages")
        if sum(given) != layers or min(given) < 0:
            raise PartitionError(f"{by_hand} does not deal out the model's {layers} layers")
        return given
    counts = [layers // stages] * stages
    for behind in range(2, layers % stages + 2):
        counts[-behind] += 1
    return tuple(counts)


def stages_of(counts: c.Sequence[int]) -> tuple[int, ...]:
    """Return for each layer, from the first on, which stage holds it."""
    return tuple(stage for stage, count in enumerate(counts) for _layer in range(count))


@dataclasses.dataclass(frozen=True, slots=True)
class WeightParts:
    """The bytes of a checkpoint, by what decides on which stage they are.

    ``layers`` has those of each layer, from the first on. ``everywhere`` is what every stage is taken to hold: towers
    for pictures and sound, and what has no other place.
    """

    layers: tuple[int, ...]
    embedding: int
    head: int
    draft: int
    everywhere: int
    tied: bool

    @classmethod
    def read(cls, layers: c.Sequence[int], parts: c.Mapping[str, int], total: int, *, tied: bool) -> WeightParts:
        """Sort the bytes of checkpoint_info's ``layer_bytes`` and ``part_bytes``; what is left over is everywhere."""
        embedding, head, draft = (int(parts.get(part) or 0) for part in ("embedding", "lm_head", "draft"))
        rest = total - sum(layers) - embedding - head - draft
        return cls(tuple(layers), embedding, head, draft, max(0, rest), tied)

    def of_stage(self, counts: c.Sequence[int], stage: int, *, drafts: bool) -> int:
        """Return the bytes that a stage holds, over all its ranks; ``drafts`` says that the draft layers are used.

        With tied embeddings the last stage has them for its head, and a drafter there has a table of its own.
        """
        first = sum(counts[:stage])
        held = sum(self.layers[first : first + counts[stage]]) + self.everywhere
        last = stage == len(counts) - 1
        if stage == 0 or (last and (self.tied or drafts)):
            held += self.embedding
        if last:
            held += self.head + self.draft
        return held
