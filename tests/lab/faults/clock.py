# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults of a box's wall clock: it jumps, and what was written before has times of another year.

The boxes of the lab share the clock of the machine, which nobody may turn, and a time namespace has only the clocks
that do not jump. So it is turned where the collection reads it: every Python of a box gets another ``time.time()``, the
one wall clock that its code reckons with (tests/unit/repository/test_faults_table.py sees to that). systemd, the
journal, Docker Engine and the times of files keep the machine's.
"""

from __future__ import annotations

import collections.abc as c
import concurrent.futures
import contextlib
import re

from tests.lab import kit
from tests.lab.faults.bench import Bench, text_of
from tests.lab.faults.deploying import refused
from tests.lab.faults.entry import By, Collection, End, Fault, When
from tests.lab.faults.watching import look

CLOCK = Collection(When.BOX)
_YEAR_S = 365 * 86400
_OFFSET = "/run/lab-clock"
_FOLDER = "$(python3 -c 'import site; print(site.getsitepackages()[0])')"
# Read at every call: the clock jumps for programs that run already, too.
_HOOK = f"""\
import time

_clock = time.time


def _turned():
    try:
        with open("{_OFFSET}", encoding="ascii") as offset:
            return _clock() + float(offset.read())
    except (OSError, ValueError):
        return _clock()


time.time = _turned
"""
_OTHER = "  - {role: scripted, max_num_seqs: 2}\n"
_BAD = "  - {role: scripted, env: {GB10_LAB_FAULT: no_kernel_image}}\n"
_RESTORED = re.compile(r"was restored and serves again, answering (-?\d+) s after the failure")


@contextlib.contextmanager
def turnable(bench: Bench) -> c.Iterator[None]:
    """Have every Python of a box look at an offset when it is asked for the time."""
    bench.run(f"cd {_FOLDER} && cat > lab_clock.py <<'END'\n{_HOOK}END\necho 'import lab_clock' > lab_clock.pth")
    try:
        yield
    finally:
        bench.run(f"rm -f {_OFFSET} {_FOLDER}/lab_clock.py {_FOLDER}/lab_clock.pth")


@contextlib.contextmanager
def turned(bench: Bench, seconds: int) -> c.Iterator[None]:
    """Have the clock of a box be wrong for a while: it jumps at the beginning, and back at the end."""
    with turnable(bench):
        bench.run(f"echo {seconds} > {_OFFSET}")
        off = float(bench.run("python3 -c 'import time; print(time.time())'")) - float(bench.now())
        assert abs(off - seconds) < 60, off
        yield


def jumps(seconds: int) -> c.Callable[[Bench], str]:
    """Return how to have the clock jump under a serving engine, and the watch see that it lives, and then that not."""

    def inject(bench: Bench) -> str:
        since, before = bench.now(), bench.container()
        look(bench, wait=True)
        with turned(bench, seconds):
            for _ in range(2):
                look(bench, wait=True)
            said = bench.journal(since)
            assert "liveness" not in said, said
            assert bench.container() == before
            bench.fault("hang 0")
            look(bench)
            bench.wait_until_it_serves(other_than=before)
        look(bench, wait=True)
        return bench.journal(since)

    return inject


def jumped(seconds: int) -> c.Callable[[Bench], str]:
    """Return how to have records of another year on a box, and deploy, fail and go back with them."""

    def inject(bench: Bench) -> str:
        with turned(bench, seconds):
            other = bench.deploy(f"model_roles:\n{_OTHER}{bench.settings}")
            assert other.status == "successful", other.failures
        again = bench.deploy(f"model_roles:\n{_OTHER}{bench.settings}")
        assert (again.status, again.count("changed", bench.box)) == ("successful", 0), again.output[-3000:]
        bad = refused(bench, _BAD)
        sane(bad)
        assert '"--max-num-seqs","2"' in bench.run("docker inspect --format '{{json .Config.Cmd}}' vllm-$NAME")
        back = kit.play(playbook="playbooks/rollback.yml", limit=bench.box)
        assert back.status == "successful", back.failures
        assert '"--max-num-seqs","4"' in bench.run("docker inspect --format '{{json .Config.Cmd}}' vllm-$NAME")
        return f"{bad}\n{text_of(back)}"

    return inject


def sane(said: str) -> None:
    """See that the time from a failure to the proof is one that a box can need."""
    found = _RESTORED.search(said)
    assert found, said
    assert 0 <= int(found[1]) < 600, found[0]


CLOCK.faults += [
    Fault(
        f"clock_jumps_{name}",
        f"the clock jumps a year {name} while the engine serves, the engine hangs, and the clock jumps back again",
        When.BOX,
        By.WATCH,
        ("restarting it", "hung:", "the gate is open", "ready: it answered"),
        End.HEALED,
        jumps(seconds),
    )
    for name, seconds in (("ahead", _YEAR_S), ("back", -_YEAR_S))
]
CLOCK.faults += [
    Fault(
        f"records_from_the_{name}",
        f"what serves was deployed a year {words} by the box's clock; then a bad deployment, and a rollback",
        When.BOX,
        By.SWITCH,
        ("was restored and serves again", "serves and has answered"),
        End.RESTORED,
        jumped(seconds),
    )
    for name, words, seconds in (("future", "from now", _YEAR_S), ("past", "ago", -_YEAR_S))
]


@CLOCK.add(
    "the clock jumps a year back after a new engine has failed, while the old one is restored",
    by=By.SWITCH,
    says=("no kernel image is available", "was restored and serves again"),
    end=End.RESTORED,
)
def clock_jumps_while_going_back(bench: Bench) -> str:
    goes_back = "grep -q '\"back\": true' /var/lib/gb10-fleet/switch.json"
    jump = f"echo -{_YEAR_S} > {_OFFSET} && echo jumped"
    wait_for_it = f"for i in $(seq 6000); do if {goes_back}; then {jump}; break; fi; sleep 0.05; done"
    with turnable(bench), concurrent.futures.ThreadPoolExecutor() as pool:
        seen = pool.submit(bench.run, wait_for_it)
        said = refused(bench, _BAD)
        assert seen.result().strip() == "jumped"
    sane(said)
    return said
