# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a model can be split over the boxes of a fabric: tensor parallel x pipeline parallel, one GPU a box.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding


def layout_findings(layout: c.Mapping[str, t.Any], boxes: int) -> list[Finding]:
    """Return what forbids a layout. What is not known of the model is not judged."""
    if not layout:
        return []
    tensor = int(layout.get("tensor_parallel_size") or 1)
    pipeline = int(layout.get("pipeline_parallel_size") or 1)
    return [*_size(tensor, pipeline, boxes), *model_findings(tensor, pipeline, layout.get("geometry") or {})]


def model_findings(tensor: int, pipeline: int, geometry: c.Mapping[str, t.Any]) -> list[Finding]:
    """Return what of a model (checkpoint_info's geometry) forbids to split it so, on however many boxes."""
    layers = sum(int(layer.get("count", 0)) for layer in geometry.get("layers", ()))
    heads = int(geometry.get("attention_heads") or 0)
    return [*_heads(tensor, heads, _kv_heads(geometry)), *_stages(pipeline, layers)]


def _size(tensor: int, pipeline: int, boxes: int) -> c.Iterator[Finding]:
    ranks = tensor * pipeline
    shown = f"tensor_parallel_size {tensor} x pipeline_parallel_size {pipeline}"
    if ranks > boxes:
        yield Finding(
            id="TP_EXCEEDS_LOCAL_GPUS",
            severity="error",
            message=f"{shown} needs {ranks} GPUs, and the fabric has {boxes} boxes with one each",
            evidence=f"{boxes} members",
            remedy="make the product of both the number of members",
        )
    elif ranks < boxes:
        yield Finding(
            id="LAYOUT_LEAVES_BOXES_IDLE",
            severity="error",
            message=f"{shown} uses {ranks} of {boxes} boxes",
            evidence=f"{boxes} members",
            remedy="make the product of both the number of members, or name fewer members",
        )


def _kv_heads(geometry: c.Mapping[str, t.Any]) -> tuple[int, ...]:
    """Return the KV heads of the layers that have any; latent attention and recurrent layers are split otherwise."""
    return tuple(sorted({int(layer["kv_heads"]) for layer in geometry.get("layers", ()) if layer.get("kv_heads")}))


def _heads(tensor: int, heads: int, kv_heads: tuple[int, ...]) -> c.Iterator[Finding]:
    if heads and heads % tensor:
        divisors = [str(size) for size in range(1, heads + 1) if heads % size == 0 and size <= 2 * tensor]
        yield Finding(
            id="HEADS_NOT_DIVISIBLE",
            severity="error",
            message=f"tensor_parallel_size {tensor} does not divide the {heads} attention heads of the model",
            evidence=f"attention_heads {heads}",
            remedy=f"use one of {', '.join(divisors)}, and pipeline_parallel_size for the rest",
        )
    for count in kv_heads:
        # vLLM splits KV heads over the ranks, or copies each onto several of them; it does neither in part.
        if count % tensor and tensor % count:
            yield Finding(
                id="KV_HEADS_NOT_DIVISIBLE",
                severity="error",
                message=(
                    f"tensor_parallel_size {tensor} neither divides the {count} KV heads of the model nor is a "
                    "multiple of them"
                ),
                evidence=f"kv_heads {count}",
                remedy="use another tensor_parallel_size, and pipeline_parallel_size for the rest",
            )


def _stages(pipeline: int, layers: int) -> c.Iterator[Finding]:
    if layers and pipeline > layers:
        yield Finding(
            id="LAYERS_FEWER_THAN_STAGES",
            severity="error",
            message=f"the model has {layers} layers, which do not go round {pipeline} stages of a pipeline",
            evidence=f"{layers} layers",
            remedy="use a smaller pipeline_parallel_size",
        )
