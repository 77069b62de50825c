# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a model role's ``speculative`` holds: keys of vLLM's SpeculativeConfig, and keys that only the plan reads.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import difflib
import re
import typing as t

# What the plan reads and vLLM would die of.
PLANNED_KEYS: t.Final = ("scratch_gib_per_sequence", "weights_gib", "weights_bytes", "draft_layers", "draft_config")
# Methods that draft without a model of their own (SpeculativeConfig.__post_init__ of vLLM 0.32.0, read 2026-11-29); so
# do all that end in mtp, and dspark where the checkpoint holds its weights.
_NO_DRAFTER: t.Final = frozenset({"ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states", "dspark"})
_MOST_DRAFTS: t.Final = 1024
_REPO: t.Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_COMMIT: t.Final = re.compile(r"(?!0{40})[0-9a-f]{40}")


def for_vllm(speculative: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return what goes into --speculative-config."""
    return {key: value for key, value in speculative.items() if key not in PLANNED_KEYS}


def needs_model(method: str) -> bool:
    """Return whether a method drafts with a model that somebody has to name."""
    return not method.endswith("mtp") and method not in _NO_DRAFTER


def drafter(speculative: object) -> str:
    """Return the repository of the drafter, empty where there is none or it is a folder of the image."""
    model = speculative.get("model") if isinstance(speculative, c.Mapping) else None
    return model if isinstance(model, str) and _REPO.fullmatch(model) else ""


def lacks(speculative: c.Mapping[str, t.Any]) -> c.Iterator[tuple[str, str, str]]:
    """Yield what a complete ``speculative`` does not say: the key, why it is needed, and an example."""
    method = speculative.get("method")
    if not method:
        yield "method", "the plan and the dated facts depend on it", "mtp"
        return
    if method != "suffix" and speculative.get("num_speculative_tokens") is None:
        yield "num_speculative_tokens", "the plan counts them, and vLLM does not start without", "3"
    if needs_model(str(method)) and not speculative.get("model"):
        like = difflib.get_close_matches(str(method), ("mtp", *_NO_DRAFTER), n=1, cutoff=0.7)
        meant = f", unless {like[0]} is meant" if like else ""
        yield "model", f"{method} drafts with a model of its own{meant}", "owner/drafter"
    elif drafter(speculative) and not _COMMIT.fullmatch(str(speculative.get("revision", ""))):
        yield "revision", "the drafter is downloaded by commit, as the checkpoint is", "<40 hex digits>"


def faults(speculative: c.Mapping[t.Any, t.Any]) -> c.Iterator[tuple[str, str, str]]:
    """Yield what is wrong with the keys that are there, whatever the version: key, complaint, remedy."""
    tokens = speculative.get("num_speculative_tokens")
    if tokens is not None and not (_is_whole(tokens) and 1 <= tokens <= _MOST_DRAFTS):
        shown = str(tokens)[:40]
        what = f"has {shown!r} for num_speculative_tokens, which is not a whole number from 1 to {_MOST_DRAFTS}"
        yield "num_speculative_tokens", what, "write it like this: 3"
    for key in ("method", "model", "revision"):
        value = speculative.get(key)
        if value is not None and not (isinstance(value, str) and value.strip()):
            yield key, f"has {str(value)[:40]!r} for {key}, which is not a name", "write one name"
    for key in ("weights_gib", "scratch_gib_per_sequence"):
        value = speculative.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 <= t.cast("float", value) < 1e6):
            yield key, f"has {str(value)[:40]!r} for {key}, which is not a size in GiB", "write a number, such as 1.5"
    size = speculative.get("weights_bytes")
    if size is not None and not (_is_whole(size) and 0 <= size < 1 << 50):
        yield "weights_bytes", f"has {str(size)[:40]!r}, which is not a number of bytes", "write plain bytes"


def _is_whole(value: object) -> t.TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
