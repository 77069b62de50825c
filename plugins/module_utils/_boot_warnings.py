# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Warnings of a boot that change what is served, among the many that do not.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding, Severity
from ansible_collections.gb10.fleet.plugins.module_utils._guarded_json import shown

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.module_utils._log_lines import LogLine


@dataclasses.dataclass(frozen=True, slots=True)
class _Sign:
    """A message and what it means for what is served."""

    id: str
    severity: Severity
    pattern: re.Pattern[str]
    meaning: str
    remedy: str = ""


_SIGNS: t.Final[tuple[_Sign, ...]] = (
    _Sign(
        "ASYNC_SCHEDULING_DISABLED",
        "warning",
        re.compile(r"Async(?:hronous)? scheduling .{0,120}(?:will be disabled|is disabled)"),
        "Async scheduling is off, so the GPU waits for the scheduler between steps.",
        "Expect fewer tokens per second, or use a speculation method that allows it.",
    ),
    _Sign(
        "SCHEDULED_TOKENS_DERIVED",
        "warning",
        re.compile(r"max_num_scheduled_tokens is set to (?P<value>\d+) based on"),
        "vLLM derived the budget of tokens per step from the speculation settings, so prompts are read more slowly.",
        "Raise max_num_batched_tokens, or speculate with fewer tokens.",
    ),
    _Sign(
        "REASONING_PARSER_NOT_ACTIVE",
        "warning",
        re.compile(r"Auto-initialization of reasoning token IDs failed"),
        "The reasoning parser is not active, though every request answers 200.",
        "Take the reasoning parser that belongs to the model, and probe an answer with reasoning.",
    ),
    _Sign(
        "FP4_RUNS_WEIGHTS_ONLY",
        "info",
        re.compile(r"does not have native support for FP4 computation"),
        "FP4 weights are multiplied in 16 bits (Marlin): expected of a weights-only checkpoint, a fallback for W4A4.",
    ),
    _Sign(
        "CUDAGRAPH_MODE_LOWERED",
        "warning",
        re.compile(r"CUDAGraphMode\.(?P<asked>\w+) is not supported.*setting cudagraph_mode=(?P<value>\w+)"),
        "vLLM lowered the CUDA graph mode that was asked for.",
        "Ask for the mode that it uses, or choose an attention backend that allows the other one.",
    ),
    _Sign(
        "KV_LAYERS_PADDED",
        "info",
        re.compile(r"Add \d+ padding layers, may waste at most (?P<value>[\d.]+)% KV cache memory"),
        "Groups of layers of unequal size leave part of the KV cache unused.",
    ),
    _Sign(
        "KV_SCALES_MISSING",
        "warning",
        re.compile(r"Using KV cache scaling factor 1\.0 for fp8"),
        "The FP8 KV cache has no calibrated scales.",
        "Compare answers with a bf16 cache before relying on them.",
    ),
    _Sign(
        "WAITED_FOR_PEERS",
        "info",
        re.compile(r"No available shared memory broadcast block found in \d+ seconds"),
        "A rank waited for another one to load; that is no fault while the other one makes progress.",
    ),
)
_UNKNOWN_ENV = re.compile(r"Unknown vLLM environment variable detected: (\w+)")
# What official images carry as a note of how they were built; vLLM itself does not know them.
_BUILD_NOTES = re.compile(r"^VLLM_(?:BUILD_\w+|IMAGE_TAG|VERSION|FLASH_ATTN_SRC_DIR|COMMIT\w*|WHEEL\w*)$")
_SKIPPED_TACTICS = re.compile(r"\[autotuner\]: Skipped (\d+) unsupported tactic", re.IGNORECASE)
_REQUESTED = re.compile(r"non-default args: .*'pass_config': \{([^}]*)\}")
_RESOLVED = re.compile(r"Initializing a V\d LLM engine.*'pass_config': \{([^}]*)\}")
_SWITCH = re.compile(r"'(\w+)': (True|False)")


def warnings_of(lines: t.Sequence[LogLine]) -> t.Iterator[Finding]:
    """Yield a finding for each kind of warning that matters, with the first message as its evidence."""
    for sign in _SIGNS:
        evidence = next((line.message for line in lines if sign.pattern.search(line.message)), None)
        if evidence is not None:
            yield Finding(sign.id, sign.severity, sign.meaning, shown(evidence.strip(), 300), sign.remedy)
    yield from _unknown_environment(lines)
    yield from _skipped_tactics(lines)
    yield from _switched_off(lines)


def _unknown_environment(lines: t.Sequence[LogLine]) -> t.Iterator[Finding]:
    names = dict.fromkeys(match[1] for line in lines for match in _UNKNOWN_ENV.finditer(line.message))
    unknown = [name for name in names if not _BUILD_NOTES.match(name)]
    if unknown:
        yield Finding(
            "UNKNOWN_ENVIRONMENT_VARIABLE",
            "warning",
            f"This vLLM does not know {len(unknown)} of its environment variables, so they have no effect.",
            ", ".join(unknown[:20]),
            "Take them out of the model role, or use the flag that replaced them.",
        )


def _skipped_tactics(lines: t.Sequence[LogLine]) -> t.Iterator[Finding]:
    counts = [int(match[1][:9]) for line in lines for match in _SKIPPED_TACTICS.finditer(line.message)]
    if counts:
        yield Finding(
            "AUTOTUNER_SKIPPED_TACTICS",
            "info",
            f"FlashInfer's autotuner skipped {sum(counts)} kernel variants that this GPU cannot run.",
        )


def _switched_off(lines: t.Sequence[LogLine]) -> t.Iterator[Finding]:
    """Find switches that were asked for and that the engine resolved to off (minefield trap 117, 2026-09)."""
    asked: set[str] = set()
    resolved: dict[str, str] = {}
    for line in lines:
        for rule, target in ((_REQUESTED, "asked"), (_RESOLVED, "resolved")):
            match = rule.search(line.message)
            for name, value in _SWITCH.findall(match[1]) if match else ():
                if target == "resolved":
                    resolved[name] = value
                elif value == "True":
                    asked.add(name)
    off = sorted(name for name in asked if resolved.get(name) == "False")
    if off:
        yield Finding(
            "SWITCH_REQUESTED_BUT_OFF",
            "warning",
            "The engine switched off what was asked for.",
            ", ".join(off),
            "Take it out of the model role: it does nothing there.",
        )
