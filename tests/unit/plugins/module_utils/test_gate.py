# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pathlib

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _docker, _gate, _memory

# The shape of a GB10's /proc/meminfo; the kernel that reserves memory for kexec handover reports free CMA of no total.
MEMINFO = """\
MemTotal:       127535084 kB
MemFree:         4291112 kB
MemAvailable:   {available} kB
Cached:         21034112 kB
SwapTotal:             0 kB
CmaTotal:              0 kB
CmaFree:         {cma} kB
"""
GIB_IN_KB = 1024 * 1024


def reading(available_gib: int, *processes: _memory.Holder, containers: frozenset[str] = frozenset()) -> _gate.Reading:
    text = MEMINFO.format(available=available_gib * GIB_IN_KB, cma=0)
    return _gate.Reading(_memory.MemInfo.from_text(text), processes, containers)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def wait(
    readings: list[_gate.Reading | Exception], floor_gib: int, timeout_s: float
) -> tuple[_gate.Verdict, list[str], Time, int]:
    """Run the gate over a script of readings; the last one stays."""
    said: list[str] = []
    time = Time()
    dropped: list[None] = []
    left = list(readings)

    def read() -> _gate.Reading:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    verdict = _gate.wait(
        read,
        floor_bytes=floor_gib * 2**30,
        timeout_s=timeout_s,
        drop_page_cache=lambda: dropped.append(None),
        say=said.append,
        clock=time.clock,
        sleep=time.sleep,
    )
    return verdict, said, time, len(dropped)


def engine(container: str = "") -> _memory.Holder:
    return _memory.Holder(pid=4711, name="VLLM::EngineCore", bytes=104 * 2**30, container=container, vllm=True)


def test_enough_memory_opens_the_gate_at_once() -> None:
    verdict, said, time, dropped = wait([reading(80)], floor_gib=40, timeout_s=60)
    assert verdict.passed
    assert "80.0 GiB available, 40.0 GiB needed" in verdict.reason
    assert (said, time.slept, dropped) == ([], [], 1)


def test_the_gate_waits_for_memory_that_comes_back() -> None:
    verdict, said, time, _ = wait([reading(10), reading(10), reading(10), reading(80)], floor_gib=40, timeout_s=60)
    assert verdict.passed
    assert verdict.waited_s == sum(time.slept) == 3.0
    assert said == [
        "waiting (0 of 60 s): 10.0 GiB of 40.0 GiB are available, 30.0 GiB too little; the largest processes are "
    ]


def test_the_gate_refuses_and_names_who_has_the_memory() -> None:
    hog = _memory.Holder(pid=77, name="python3", bytes=30 * 2**30)
    verdict, said, _, _ = wait([reading(10, hog)], floor_gib=40, timeout_s=25)
    assert not verdict.passed
    assert verdict.waited_s == 25
    assert "30.0 GiB too little" in verdict.reason
    assert "python3 (pid 77, 30.0 GiB)" in verdict.reason
    assert len(said) == 3


def test_an_engine_outside_of_any_container_is_named_even_with_enough_memory() -> None:
    verdict, _, _, _ = wait([reading(100, engine())], floor_gib=40, timeout_s=5)
    assert not verdict.passed
    assert "VLLM::EngineCore (pid 4711, 104.0 GiB)" in verdict.reason


def test_the_engine_of_a_running_neighbour_is_no_obstacle() -> None:
    neighbour = reading(100, engine("c" * 64), containers=frozenset({"c" * 64}))
    assert wait([neighbour], floor_gib=40, timeout_s=5)[0].passed


def test_a_docker_engine_that_restarts_is_waited_for() -> None:
    gone = _docker.DockerError("Docker Engine does not answer")
    verdict, said, _, _ = wait([gone, gone, reading(80)], floor_gib=40, timeout_s=60)
    assert verdict.passed
    assert said == ["waiting (0 of 60 s): Docker Engine does not answer"]


@pytest.mark.parametrize("line", ["MemTotal", "MemAvailable", "MemFree"])
def test_meminfo_without_a_needed_line_is_refused(line: str) -> None:
    text = "\n".join(row for row in MEMINFO.format(available=1, cma=0).splitlines() if not row.startswith(line))
    with pytest.raises(ValueError, match=line):
        _memory.MemInfo.from_text(text)


@pytest.mark.parametrize(("cma", "ids"), [(0, []), (9750000, ["MEMORY_CMA_FREE_ABOVE_TOTAL"])])
def test_memory_that_a_kexec_handover_keeps_is_found(cma: int, ids: list[str]) -> None:
    memory = _memory.MemInfo.from_text(MEMINFO.format(available=1, cma=cma))
    assert [finding.id for finding in _memory.findings(memory)] == ids


def test_processes_are_read_with_their_containers(tmp_path: pathlib.Path) -> None:
    outer, inner = "a" * 64, "b" * 64
    for pid, name, command, pages, cgroup in (
        (10, "sshd", "sshd: /usr/sbin/sshd\0", 500, f"0::/docker/{outer}/system.slice/ssh.service"),
        (20, "VLLM::EngineCor", "VLLM::EngineCore\0", 9000, f"1:name=systemd:/docker/{outer}/docker/{inner}"),
        (30, "vllm", "/usr/bin/python3\0/usr/local/bin/vllm\0serve\0/model\0", 7000, "0::/user.slice"),
    ):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "statm").write_text(f"99999 {pages} 1 1 0 1 0\n")
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_text(command)
        (folder / "cgroup").write_text(f"{cgroup}\n")
    (tmp_path / "proc" / "40").mkdir()  # ended while it was read
    found = _memory.processes(tmp_path)
    assert [(one.pid, one.name, one.container, one.vllm) for one in found] == [
        (20, "VLLM::EngineCore", inner, True),
        (30, "vllm", "", True),
        (10, "sshd", outer, False),
    ]
