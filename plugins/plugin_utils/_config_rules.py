# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What vLLM's parser takes and its config classes refuse seconds later, as far as the command line alone decides it.

The limits, rules and keys are those of the release's catalogue; a release whose catalogue has none is not judged.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import json
import operator
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.plugin_utils import _speculation
from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_catalogue as catalogues
from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_values import mismatch

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_catalogue import Catalogue
    from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_parser import Parsed

# No release knows more ports than TCP has.
_TCP: t.Final[dict[str, dict[str, float]]] = {"--port": {"ge": 0, "le": 65535}}
_WORDS: t.Final = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_WITHIN: t.Final = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
_SPEC_FLAGS: t.Final = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}


def refused(parsed: Parsed, version: str, catalogue: Catalogue) -> list[Finding]:
    """Return what the server would refuse after it has read its command line."""
    faulty = {fault.flag for fault in parsed.faults}
    found = [*_beyond_limits(parsed, catalogue), *_broken_pairs(parsed, catalogue), *_speculative(parsed, catalogue)]
    return [
        Finding("CONFIG_REFUSED", "error", f"vLLM {version} takes {flag}, but will not start: {reason}.", flag, remedy)
        for flag, reason, remedy in found
        if flag not in faulty
    ]


def _beyond_limits(parsed: Parsed, catalogue: Catalogue) -> c.Iterator[tuple[str, str, str]]:
    for flag, value in {use.flag.name: use.value for use in parsed.uses}.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        limits = _TCP.get(flag) or catalogue.limits.get(flag, {})
        broken = [f"{_WORDS[key]} {limit:g}" for key, limit in limits.items() if not _WITHIN[key](value, limit)]
        if broken:
            yield flag, f"{value} is not {' or '.join(broken)}", ""


def _broken_pairs(parsed: Parsed, catalogue: Catalogue) -> c.Iterator[tuple[str, str, str]]:
    """Yield the rules of vllm/config/scheduler.py that two flags break; one that is not given is not judged."""

    def number(flag: str) -> int | None:
        value = parsed.value(flag)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    batch, sequences = number("--max-num-batched-tokens"), number("--max-num-seqs")
    context, rules = number("--max-model-len"), catalogue.config_rules
    if "batch_holds_sequences" in rules and batch and sequences and batch < sequences:
        reason = f"a batch of {batch} tokens does not hold one token of each of {sequences} sequences"
        yield "--max-num-batched-tokens", reason, f"Give it {sequences} or more."
    chunked = parsed.value("--enable-chunked-prefill")
    if "batch_holds_context" in rules and chunked is False and batch and context and batch < context:
        reason = f"without chunked prefill, a batch of {batch} tokens does not hold a context of {context}"
        yield "--max-num-batched-tokens", reason, f"Leave chunked prefill on, or give it {context}."
    active = number("--max-num-active-seqs")
    if "active_within_sequences" in rules and active and sequences and active > sequences:
        yield "--max-num-active-seqs", f"{active} is more than --max-num-seqs {sequences}", ""
    threshold = number("--long-prefill-token-threshold")
    if "threshold_within_context" in rules and threshold and context and threshold > context:
        yield "--long-prefill-token-threshold", f"{threshold} is more than --max-model-len {context}", ""


def _speculative(parsed: Parsed, catalogue: Catalogue) -> c.Iterator[tuple[str, str, str]]:
    flag = "--speculative-config"
    given = parsed.value(flag)
    short = {key: parsed.value(name) for name, key in _SPEC_FLAGS.items() if parsed.value(name) is not None}
    if given is None and not short:
        return
    if given is not None and not isinstance(given, c.Mapping):
        yield flag, f"{json.dumps(given)[:60]} is not a mapping", "Write {method: mtp, num_speculative_tokens: 2}."
        return
    config = {str(key).replace("-", "_"): value for key, value in (given or {}).items()}
    for name, key in _SPEC_FLAGS.items():
        if key in config and key in short:
            yield name, f"{flag} says {key}, too", "Say it once."
    config |= short
    shape = catalogue.configs.get("SpeculativeConfig")
    if shape is None:
        return
    unsound = list(_unsound_keys(config, shape, catalogue))
    yield from ((flag, reason, remedy) for reason, remedy in unsound)
    method = config.get("method") or config.get("model")
    for key, why, _example in _speculation.lacks({**config, "method": method}) if not unsound else ():
        if key in {"method", "num_speculative_tokens"} or (key == "model" and config.get("method")):
            yield flag, f"it does not say {key}", f"Add it: {why}."


def _unsound_keys(
    config: c.Mapping[str, t.Any], shape: c.Mapping[str, t.Any], catalogue: Catalogue
) -> c.Iterator[tuple[str, str]]:
    for key, value in config.items():
        if key not in shape["fields"]:
            if shape["extra"] == "forbid":
                yield f"it has no key {key!r}", _like(key, shape["fields"])
        elif complaint := mismatch({"config": "SpeculativeConfig"}, {key: value}, catalogue.configs):
            yield complaint, _like(str(value), _methods(shape)) if key == "method" else ""
    if config.get("tensor_parallel_size") is not None:
        yield "tensor_parallel_size belongs to the target", "Write draft_tensor_parallel_size."


def _like(word: str, known: c.Iterable[str]) -> str:
    like = catalogues.nearest(word, known)
    return f"Did you mean {like}?" if like else "Remove it."


def _methods(shape: c.Mapping[str, t.Any]) -> list[str]:
    options = shape["fields"]["method"]
    lists = [one["enum"] for one in options.get("any_of", [options]) if isinstance(one, dict) and "enum" in one]
    return [str(word) for words in lists for word in words]
