# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who has the memory of a box: totals from /proc/meminfo and the processes that hold the most.

On a GB10 the CPU and the GPU share one pool, nvidia-smi prints "[N/A]" for its size, and /proc/meminfo is the only
place that knows. All sizes are bytes.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import os
import pathlib
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding

_CONTAINER_ID: t.Final = re.compile(r"[0-9a-f]{64}")
# What vLLM calls its processes: the title that it sets, or its command line before it does.
_VLLM_TITLE: t.Final = "VLLM::"
_VLLM_COMMAND: t.Final = re.compile(r"(?:^|/)vllm\s+(?:serve|\S+)|vllm\.entrypoints")


@dataclasses.dataclass(frozen=True, slots=True)
class MemInfo:
    """The lines of /proc/meminfo that decide whether an engine can start, in bytes; None where a line is missing."""

    total_bytes: int
    available_bytes: int
    free_bytes: int
    cached_bytes: int | None = None
    cma_total_bytes: int | None = None
    cma_free_bytes: int | None = None
    swap_total_bytes: int | None = None

    @classmethod
    def from_text(cls, text: str) -> MemInfo:
        """Parse /proc/meminfo; raise ValueError where it lacks the total or what is available."""
        found = {
            match[1]: int(match[2]) * 1024 for match in re.finditer(r"^(\w+):\s+(\d+) kB\s*$", text, flags=re.MULTILINE)
        }
        missing = [name for name in ("MemTotal", "MemAvailable", "MemFree") if name not in found]
        if missing:
            raise ValueError(f"/proc/meminfo has no line {', '.join(missing)}")
        return cls(
            total_bytes=found["MemTotal"],
            available_bytes=found["MemAvailable"],
            free_bytes=found["MemFree"],
            cached_bytes=found.get("Cached"),
            cma_total_bytes=found.get("CmaTotal"),
            cma_free_bytes=found.get("CmaFree"),
            swap_total_bytes=found.get("SwapTotal"),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """A process and what it holds. ``container`` is the id of its container, empty where it runs in none."""

    pid: int
    name: str
    bytes: int
    container: str = ""
    vllm: bool = False


def meminfo(sysroot: pathlib.Path = pathlib.Path("/")) -> MemInfo:
    """Read the memory totals of the box."""
    return MemInfo.from_text((sysroot / "proc/meminfo").read_text(encoding="ascii", errors="replace"))


def processes(sysroot: pathlib.Path = pathlib.Path("/")) -> tuple[Holder, ...]:
    """Return every process with its resident memory, the largest first.

    A process that ends while it is read is left out. Resident memory counts shared pages in every process that maps
    them, and does not count what a driver allocated for the process.
    """
    found = []
    for entry in (sysroot / "proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append(_holder(entry))
            except (OSError, ValueError):
                continue
    return tuple(sorted(found, key=lambda holder: (-holder.bytes, holder.pid)))


def _holder(entry: pathlib.Path) -> Holder:
    resident_pages = int((entry / "statm").read_text(encoding="ascii").split()[1])
    name = (entry / "comm").read_text(encoding="utf-8", errors="replace").strip()
    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    # The last id is the innermost container; those before it are the containers that this machine itself runs in.
    ids = _CONTAINER_ID.findall((entry / "cgroup").read_text(encoding="ascii", errors="replace"))
    return Holder(
        pid=int(entry.name),
        name=command.split(" ", 1)[0] if command.startswith(_VLLM_TITLE) else name,
        bytes=resident_pages * os.sysconf("SC_PAGE_SIZE"),
        container=ids[-1] if ids else "",
        vllm=_VLLM_TITLE in (name[: len(_VLLM_TITLE)], command[: len(_VLLM_TITLE)])
        or bool(_VLLM_COMMAND.search(command)),
    )


def findings(memory: MemInfo) -> tuple[Finding, ...]:
    """Return what the memory totals alone give away."""
    found = []
    if memory.cma_total_bytes == 0 and (memory.cma_free_bytes or 0) > 0:
        found.append(
            Finding(
                id="MEMORY_CMA_FREE_ABOVE_TOTAL",
                severity="warning",
                message=(
                    f"the kernel reports {gib(memory.cma_free_bytes or 0)} of free CMA out of a total of none: its "
                    "kexec handover reserves memory in which RDMA cannot register buffers"
                ),
                evidence=f"CmaTotal 0, CmaFree {memory.cma_free_bytes} bytes",
                remedy="boot a 6.17 kernel, or add kho=off to the kernel's command line, before serving on two boxes",
            )
        )
    if (memory.swap_total_bytes or 0) > 0:
        found.append(
            Finding(
                id="MEMORY_SWAP_ON",
                severity="info",
                message=f"{gib(memory.swap_total_bytes or 0)} of swap is on; a swapped-out engine is as good as dead",
                evidence=f"SwapTotal {memory.swap_total_bytes} bytes",
                remedy="a box that only serves models needs no swap: swapoff -a, and remove it from /etc/fstab",
            )
        )
    return tuple(found)


def drop_page_cache(tell: c.Callable[[str], None]) -> None:
    """Give the page cache back to the pool; a box that does not let us says so and goes on."""
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n", encoding="ascii")
    except OSError as error:
        tell(f"the page cache could not be dropped ({error.strerror}); going on without")


def gib(size: int) -> str:
    """Return a size in bytes as people read it: 12.3 GiB."""
    return f"{size / 2**30:.1f} GiB"
