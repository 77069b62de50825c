# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a vLLM server says while it boots: backends, KV pool, weights, graphs, warnings, and the first error.

The forms of vLLM 0.10.2 to 0.33.0 on GPU and CPU are read (source of the releases, logs published in 2025 and 2026).
Several logs of one boot, one for each rank or box, are read together: the pool is the smallest that a rank has, the
error the earliest of all.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._boot_errors import BootError, first_error
from ansible_collections.gb10.fleet.plugins.module_utils._boot_survival import Survival, survival
from ansible_collections.gb10.fleet.plugins.module_utils._boot_warnings import warnings_of
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.module_utils._log_lines import LogLine, joined, read_lines

State = t.Literal["ready", "loading", "failed", "unknown"]

_GIB: t.Final = 1 << 30
# Two decimals are printed.
_GIB_ROUNDING: t.Final = 0.006
_N = r"(-?[\d,]+(?:\.\d+)?)"
# The start of a boot; a log of a container that was restarted holds several, and only the last one counts.
_STARTS = re.compile(r"vLLM (?:API )?server version |Launching vLLM \(v|[▀▄█] +version \d")
_BEGUN = re.compile(r"Initializing a V\d LLM engine|Application startup complete|Traceback \(most recent call last\)")

_VERSIONS = (
    re.compile(r"vLLM (?:API )?server version ([^\s,]+)"),
    re.compile(r"Initializing a V\d LLM engine \(v([^)\s]+)\)"),
    re.compile(r"Launching vLLM \(v([^)\s]+)\)"),
    re.compile(r"[▀▄█] +version (\d\S*)"),
)
_FACTS: t.Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("weights_gib", rf"Model loading took {_N} Gi?B(?: memory)? and"),
        ("weights_gib", rf"Loading model weights took {_N} Gi?B"),
        ("weights_seconds", rf"Model loading took .* and {_N} seconds"),
        ("read_seconds", rf"Loading weights took {_N} seconds"),
        ("available_gib", rf"Available KV cache memory: {_N} GiB"),
        ("available_gib", rf"Auto set \({_N}/[\d.]+\) GiB for KV cache on node"),
        ("pinned_gib", rf"reserved {_N} GiB memory for KV Cache as specified by kv_cache_memory_bytes"),
        ("pinned_gib", rf"Explicitly set \({_N}/[\d.]+\) GiB for KV cache on node"),
        ("pinned_bytes", r"'kv_cache_memory_bytes': '?(\d+)"),
        ("tokens", rf"\bKV cache size: {_N} tokens"),
        ("concurrency_length", rf"Maximum concurrency for {_N} tokens per request"),
        ("max_concurrency", rf"Maximum concurrency for [\d,]+ tokens per request: {_N}x"),
        ("block_size", rf"Setting attention block size to {_N} tokens"),
        ("page_padding_percent", rf"Padding mamba page size by {_N}%"),
        ("layer_padding_percent", rf"padding layers, may waste at most {_N}% KV cache memory"),
        ("graph_seconds", rf"Graph capturing finished in {_N} secs"),
        ("graph_gib", rf"Graph capturing finished in .* took {_N} Gi?B"),
        ("graph_estimated_gib", rf"Estimated CUDA graph memory: {_N} GiB total"),
        ("graphs_full", r"Profiling CUDA graph memory: .*\bFULL=(\d+)"),
        ("graphs_piecewise", r"Profiling CUDA graph memory: .*\bPIECEWISE=(\d+)"),
        ("utilization", rf"current --gpu-memory-utilization={_N} is equivalent"),
        ("effective_utilization", rf"is equivalent to --gpu-memory-utilization={_N} without CUDA graph memory"),
        ("engine_seconds", rf"init engine \(profile, create kv cache, warmup model\) took {_N} s"),
        ("world_size", r"in world size (\d+) is assigned"),
    )
)
# vLLM's last word on memory, one sentence after another; some logs wrap it.
_SUMMARY: t.Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("free_gib", rf"Free memory on device \({_N}/[\d.]+ GiB\) on startup\."),
        ("total_gib", rf"Free memory on device \([\d.]+/{_N} GiB\) on startup\."),
        ("free_gib", rf"Initial free memory {_N} GiB, reserved"),
        ("utilization", rf"Desired GPU memory utilization is \({_N}, "),
        ("requested_gib", rf"Desired GPU memory utilization is \([\d.]+, {_N} GiB\)"),
        ("consumed_gib", rf"Actual usage is {_N} GiB for (?:weight|consumed memory)"),
        ("activation_gib", rf"{_N} GiB for peak activation"),
        ("non_torch_gib", rf"{_N} GiB for non-torch memory"),
        ("graph_gib", rf"{_N} GiB for CUDAGraph memory"),
        ("kv_in_use_gib", rf"Current kv cache memory in use is {_N} GiB"),
    )
)
_BACKENDS: t.Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("moe", r"Using '?(?P<name>[\w/ ]+?)'? (?P<scheme>[\w-]+) MoE backend\b"),
        ("moe", r"Using (?P<name>[\w ]+?) kernels for (?P<scheme>\w*MoE\w*)"),
        ("linear", r"Using (?P<name>[\w-]+) for (?P<scheme>NVFP4|MXFP4|MXFP8|FP8) GEMM"),
        ("linear", r"(?:Using|Selected) (?P<name>\w*(?:Kernel|Linear)) for (?P<scheme>\w+)"),
        ("attention", r"Using (?P<name>\w+) attention backend\b"),
        ("attention", r"Using (?:AttentionBackendEnum\.)?(?P<name>[A-Z][A-Z0-9_]+) backend\.$"),
        ("attention", r"Using (?P<name>[\w ]+?) backend on V1 engine"),
        ("mla_prefill", r"Using (?P<name>\w+) MLA prefill backend"),
        ("gdn", r"Using (?P<name>[\w/]+) GDN prefill kernel"),
        ("kda", r"Using (?P<name>[\w/]+) KDA prefill kernel"),
        ("sampler", r"Using (?P<name>\w+) for top-p & top-k sampling"),
    )
)
_MEMORY: t.Final = (
    "free_gib",
    "total_gib",
    "requested_gib",
    "utilization",
    "effective_utilization",
    "consumed_gib",
    "activation_gib",
    "non_torch_gib",
)
_EAGER = re.compile(r"Enforce eager set|Cudagraph is disabled under eager mode|enforce_eager=True")
_GRAPH_MODE = re.compile(r"'cudagraph_mode': <CUDAGraphMode\.(\w+)|setting cudagraph_mode=(?:CUDAGraphMode\.)?(\w+)")
_DEVICE = re.compile(r"device_config=(?:device\()?'?(cuda|cpu)|\b(GPU|CPU) KV cache size")
_ASYNC_ON = re.compile(r"Asynchronous scheduling is enabled")
_ASYNC_OFF = re.compile(r"Async(?:hronous)? scheduling .{0,120}(?:will be disabled|is disabled|, disabling)")


@dataclasses.dataclass(frozen=True, slots=True)
class Log:
    """One log of a boot: a name for it (a unit, a box or a rank) and its text."""

    name: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Backend:
    """A backend that vLLM chose; ``scheme`` is what it serves with it, where the log says.

    ``log``, ``process`` and ``writer`` tell whose choice it is: each rank makes its own.
    """

    kind: str
    name: str
    scheme: str = ""
    log: str = ""
    process: str = ""
    writer: str = ""

    @property
    def where(self) -> str:
        """Return log and process in words."""
        return f"{self.log} ({self.process})" if self.process else self.log

    def serves(self, precision: str) -> bool:
        """Return whether name or scheme tell of a precision, such as ``fp4``."""
        return precision in f"{self.name} {self.scheme}".lower()


@dataclasses.dataclass(frozen=True, slots=True)
class BootLog:
    """What one boot said, over all of its logs.

    ``values`` holds, by name, the number that every process gave, in the order of the logs.
    """

    state: State
    version: str
    device: str
    backends: tuple[Backend, ...]
    values: t.Mapping[str, tuple[float, ...]]
    graph_mode: str
    eager: bool
    async_scheduling: bool | None
    errors: tuple[BootError, ...]
    first: BootError | None
    findings: tuple[Finding, ...]

    def backend(self, kind: str) -> str | None:
        """Return the backend of a kind that counts, as its first rank chose it."""
        return next((backend.name for backend in self.counting(kind)), None)

    def counting(self, kind: str, precision: str = "fp4") -> tuple[Backend, ...]:
        """Return the backend of a kind that counts, once for each rank that chose one.

        The model itself chooses before its draft layers do, so it is the first. In a checkpoint of several precisions
        it is the first of ``precision``: what the checkpoint is deployed for are its FP4 layers, in whatever order.
        """
        there = [backend for backend in self.backends if backend.kind == kind]
        there = [backend for backend in there if backend.serves(precision)] or there
        first: dict[tuple[str, str], Backend] = {}
        for backend in there:
            first.setdefault((backend.log, backend.writer), backend)
        return tuple(first.values())

    def largest(self, name: str) -> float | None:
        """Return the largest value that any process gave: what binds for weights."""
        return max(self.values.get(name, ()), default=None)

    def smallest(self, name: str) -> float | None:
        """Return the smallest value that any process gave: what binds for the pool."""
        return min(self.values.get(name, ()), default=None)

    @property
    def kv_cache(self) -> dict[str, t.Any]:
        """Return the pool: tokens, concurrency and bytes."""
        return {
            "tokens": _whole(self.smallest("tokens")),
            "max_concurrency": self.smallest("max_concurrency"),
            "max_model_len": _whole(self.smallest("concurrency_length")),
            "available_gib": self.smallest("available_gib"),
            "pinned_gib": self.smallest("pinned_gib"),
            "bytes": self._pinned_bytes(),
            "in_use_gib": self.smallest("kv_in_use_gib"),
            "block_size": _whole(self.largest("block_size")),
            "padding_percent": self.largest("page_padding_percent"),
            "layer_padding_percent": self.largest("layer_padding_percent"),
        }

    def _pinned_bytes(self) -> int | None:
        """Return the bytes of the command line, unless the worker took others (VLLM_CPU_KVCACHE_SPACE)."""
        asked, taken = _whole(self.smallest("pinned_bytes")), self.smallest("pinned_gib")
        if asked is not None and taken is not None and abs(asked / _GIB - taken) > _GIB_ROUNDING:
            return None
        return asked

    @property
    def graphs(self) -> dict[str, t.Any]:
        """Return what became of CUDA graphs."""
        captured = self.largest("graph_seconds") is not None
        return {
            "captured": captured if captured or self.eager or self.state == "ready" else None,
            "mode": "NONE" if self.eager else self.graph_mode or None,
            "gib": self.largest("graph_gib"),
            "estimated_gib": self.largest("graph_estimated_gib"),
            "seconds": self.largest("graph_seconds"),
            "piecewise": _whole(self.largest("graphs_piecewise")),
            "full": _whole(self.largest("graphs_full")),
        }

    def as_dict(self) -> dict[str, t.Any]:
        """Return plain data, the way it leaves the module."""
        kinds = dict.fromkeys(backend.kind for backend in self.backends)
        return {
            "state": self.state,
            "version": self.version,
            "device": self.device,
            "backends": {kind: self.backend(kind) for kind in kinds},
            "backends_all": [
                {"kind": kind, "name": name, "scheme": scheme}
                for kind, name, scheme in dict.fromkeys((one.kind, one.name, one.scheme) for one in self.backends)
            ],
            "kv_cache": self.kv_cache,
            "weights_gib": self.largest("weights_gib"),
            "weights_seconds": self.largest("weights_seconds"),
            "graphs": self.graphs,
            "memory": {name: self.smallest(name) for name in _MEMORY},
            "engine_seconds": self.largest("engine_seconds"),
            "world_size": _whole(self.largest("world_size")),
            "async_scheduling": self.async_scheduling,
            "first_error": self.first.as_dict() if self.first else None,
            "errors": [error.as_dict() for error in self.errors[:20]],
            "findings": [finding.as_dict() for finding in self.findings],
        }


def parse_boot_logs(logs: t.Sequence[Log]) -> BootLog:
    """Read all logs of one boot together."""
    texts = [(log.name, last_boot(read_lines(log.text))) for log in logs]
    lines = [line for _name, part in texts for line in part]
    outcomes = [survival(name, part) for name, part in texts]
    errors = [error for outcome in outcomes for error in outcome.errors]
    first, certain = first_error(errors)
    findings = list(warnings_of(lines))
    if first is not None:
        findings.insert(0, first.as_finding())
        if not certain:
            findings.append(_order_unknown(first))
    values = _values(texts)
    findings += _above_grant(values)
    version = next((match[1] for rule in _VERSIONS for line in lines if (match := rule.search(line.message))), "")
    devices = (match for line in lines if (match := _DEVICE.search(line.message)))
    return BootLog(
        state=_state(lines, outcomes, first),
        version=version.removeprefix("v"),
        device=next(((match[1] or {"GPU": "cuda", "CPU": "cpu"}[match[2]]) for match in devices), ""),
        backends=tuple(
            dict.fromkeys(backend for name, part in texts for line in part if (backend := _backend(name, line)))
        ),
        values=values,
        graph_mode=_graph_mode(lines),
        eager=any(_EAGER.search(line.message) for line in lines),
        async_scheduling=_async_scheduling(lines),
        errors=tuple(errors),
        first=first,
        findings=tuple(findings),
    )


def last_boot(lines: list[LogLine]) -> list[LogLine]:
    """Return the lines of the last boot in a log."""
    start, begun = 0, False
    for index, line in enumerate(lines):
        if begun and _STARTS.search(line.message):
            start, begun = index, False
        elif _BEGUN.search(line.message):
            begun = True
    return lines[start:]


def _order_unknown(first: BootError) -> Finding:
    return Finding(
        "BOOT_ERROR_ORDER_UNKNOWN",
        "info",
        "The logs share no clock, so the first of them was taken to have failed first.",
        first.where,
        "Give logs with time stamps (docker logs --timestamps, journalctl -o short-iso).",
    )


def _above_grant(values: t.Mapping[str, tuple[float, ...]]) -> t.Iterator[Finding]:
    """Say when weights and pool together are more than the fraction granted; a pinned pool is not held to it."""
    needed = ("consumed_gib", "kv_in_use_gib", "requested_gib")
    if "pinned_gib" in values or any(name not in values for name in needed):
        return
    held = max(values["consumed_gib"]) + max(values["kv_in_use_gib"])
    granted = min(values["requested_gib"])
    if held > granted + 1:
        yield Finding(
            "BOOT_ABOVE_GRANT",
            "warning",
            f"The engine holds {held:.2f} GiB, more than the {granted:.2f} GiB that its fraction grants.",
            f"{max(values['consumed_gib'])} GiB consumed, {max(values['kv_in_use_gib'])} GiB of KV cache",
            "Pin the pool with kv_cache_memory_bytes; the fraction does not bind in this build.",
        )


def _state(lines: t.Sequence[LogLine], outcomes: t.Sequence[Survival], first: BootError | None) -> State:
    if any(outcome.ended for outcome in outcomes) or (first is not None and (first.kind != "logged" or first.cause)):
        return "failed"
    if any(outcome.ready for outcome in outcomes):
        return "ready"
    started = any(line.message.strip() for line in lines)
    return "loading" if started else "unknown"


def _values(texts: t.Sequence[tuple[str, list[LogLine]]]) -> dict[str, tuple[float, ...]]:
    """Collect every number once for each process that gave it; the last word of a process counts."""
    found: dict[str, dict[tuple[str, str], float]] = {}
    for name, lines in texts:
        for line in lines:
            for key, rule in _FACTS:
                match = rule.search(line.message)
                if match:
                    found.setdefault(key, {})[name, line.writer] = _number(match[1])
        text = joined(lines)
        for key, rule in _SUMMARY:
            for match in rule.finditer(text):
                found.setdefault(key, {})[name, ""] = _number(match[1])
    return {key: tuple(values.values()) for key, values in found.items()}


def _backend(log: str, line: LogLine) -> Backend | None:
    for kind, rule in _BACKENDS:
        match = rule.search(line.message)
        if match:
            fields = match.groupdict()
            name, scheme = fields["name"].strip(), fields.get("scheme") or ""
            return Backend(kind, name, scheme, log, line.process, line.writer)
    return None


def _graph_mode(lines: t.Sequence[LogLine]) -> str:
    modes = [match[1] or match[2] for line in lines for match in _GRAPH_MODE.finditer(line.message)]
    return modes[-1] if modes else ""


def _async_scheduling(lines: t.Sequence[LogLine]) -> bool | None:
    if any(_ASYNC_OFF.search(line.message) for line in lines):
        return False
    return True if any(_ASYNC_ON.search(line.message) for line in lines) else None


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
