# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A memory plan as a person reads it: a bar, a table and the findings.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import shlex
import typing as t

GIB = 1 << 30
_WIDTH = 60


def plan_text(plan: t.Mapping[str, t.Any]) -> str:
    """Return the lines of a plan of plan_memory()."""
    # The plan of a box that the inventory names has its instances by name.
    if isinstance(plan["instances"], t.Mapping):
        plan = {**plan, "instances": list(plan["instances"].values())}
    numbers = plan["box"]["numbers"]
    total = numbers["total"]["value"]
    name = plan["box"]["name"] or "box"
    parts = _parts(plan)
    gpu = ", no GPU" if plan["box"]["platform"] == "cpu" else ""
    lines = [f"{name}: {total / GIB:.2f} GiB{gpu}, {'fits' if plan['verdict'] == 'fits' else 'REFUSED'}"]
    lines += [f"memory: {plan['box']['source']}"] if plan["box"].get("source") else []
    lines += [
        f"[{_bar(parts, total)}]",
        "  ".join(f"{mark} {label} {size / GIB:.1f}" for mark, label, size in parts),
        "",
    ]
    lines += _table(plan["instances"])
    lines.append("")
    for key, label in (("boot_peak", "boot peak, page cache included"), ("free_after", "free once all run")):
        lines.append(f"{label}: {numbers[key]['value'] / GIB:.2f} GiB")
    for instance in plan["instances"]:
        lines += _speed(instance)
        lines += _expects(instance)
        if instance["flags"]:
            command = instance.get("command") or instance["flags"]
            lines.append(f"{instance['name']}: {shlex.join(command)}")
    for finding in plan["findings"]:
        lines.append(f"{finding['severity']}: {finding['id']}: {finding['message']}")
        if finding["remedy"]:
            lines.append(f"  {finding['remedy']}")
    return "\n".join(lines)


def _parts(plan: t.Mapping[str, t.Any]) -> list[tuple[str, str, int]]:
    """Return the shares of the pool from left to right: mark, label, bytes."""
    numbers = plan["box"]["numbers"]
    fitting = [instance["numbers"] for instance in plan["instances"] if instance["fits"]]

    def total(key: str) -> int:
        return sum(int(entry[key]["value"]) for entry in fitting if key in entry)

    free = max(0, numbers["free_after"]["value"])
    reserve = min(free, numbers["host_reserve"]["value"])
    parts = [
        ("h", "held by others", numbers["held_by_others"]["value"]),
        ("W", "weights", total("weights")),
        ("K", "cache", total("kv_cache")),
        ("o", "overhead", total("overhead")),
        ("d", "drafter", total("drafter_scratch")),
        ("f", "offloaded cache", total("kv_offload")),
        ("x", "what flags ask for", total("extra")),
        (".", "free", free - reserve),
        ("R", "reserve", reserve),
    ]
    return [part for part in parts if part[2]]


def _bar(parts: list[tuple[str, str, int]], total: int) -> str:
    """Return the bar; each part ends where its running sum ends, so that rounding never adds up."""
    drawn, done = "", 0
    for mark, _label, size in parts:
        done += size
        drawn += mark * (min(_WIDTH, round(done / total * _WIDTH)) - len(drawn))
    return drawn.ljust(_WIDTH)


def _table(instances: t.Sequence[t.Mapping[str, t.Any]]) -> list[str]:
    rows = [["instance", "weights", "cache", "overhead", "drafter", "total GiB", "tokens", "full contexts", "fraction"]]
    for instance in instances:
        numbers = instance["numbers"]
        cells = [instance["name"] + ("" if instance["fits"] else " (refused)")]
        cells += [
            f"{numbers[key]['value'] / GIB:.2f}" if key in numbers else "unknown"
            for key in ("weights", "kv_cache", "overhead", "drafter_scratch", "total")
        ]
        cells.append(f"{numbers['kv_tokens']['value']:,}" if "kv_tokens" in numbers else "unknown")
        cells.append(f"{numbers['max_concurrency']['value']:.2f}" if "max_concurrency" in numbers else "unknown")
        fraction = instance["gpu_memory_utilization"]
        cells.append("-" if fraction is None else f"{fraction:g}")
        rows.append(cells)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def _expects(instance: t.Mapping[str, t.Any]) -> list[str]:
    expects = instance.get("expects") or {}
    names = [
        f"{key} {' or '.join(map(str, value)) if isinstance(value, (list, tuple)) else value}"
        for key, value in expects.items()
    ]
    return [f"{instance['name']}: its boot log has to show {', '.join(names)}"] if names else []


def _speed(instance: t.Mapping[str, t.Any]) -> list[str]:
    ceiling = instance["numbers"].get("decode_ceiling")
    if not ceiling:
        return []
    full = instance["numbers"].get("decode_ceiling_full_context")
    tail = f", {full['value']:g} with a full context" if full else ""
    return [f"{instance['name']}: roofline {ceiling['value']:g} tokens/s for one sequence{tail} ({ceiling['reason']})"]
