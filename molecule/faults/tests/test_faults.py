# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every fault of the suite: noticed, called by its name, nothing lost, and in the end the box serves what it should."""

from __future__ import annotations

import json
import time

import pytest

from tests.lab import kit
from tests.lab.faults.bench import State
from tests.lab.faults.entry import End, Fault
from tests.lab.faults.suite import BENCHES, chosen

TIMES = kit.CHECKOUT / "artifacts" / "faults"


def of(bench: str) -> pytest.MarkDecorator:
    """Return the faults of a bench: one after the other, but no bench waits for another one (--dist loadscope)."""
    return pytest.mark.parametrize("fault", [pytest.param(one, id=one.id) for one in chosen() if one.bench == bench])


@of("one")
class TestOne:
    """A box of its own, which goes down and comes back."""

    def test_fault(self, fault: Fault) -> None:
        run(fault)


@of("a")
class TestA:
    """An engine among others; what cannot be deployed is tried here, too."""

    def test_fault(self, fault: Fault) -> None:
        run(fault)


@of("b")
class TestB:
    """An engine among others."""

    def test_fault(self, fault: Fault) -> None:
        run(fault)


@of("c")
class TestC:
    """An engine among others."""

    def test_fault(self, fault: Fault) -> None:
        run(fault)


@of("vllm")
class TestVllm:
    """A real vLLM."""

    def test_fault(self, fault: Fault) -> None:
        run(fault)


def run(fault: Fault) -> None:
    """Do it, and see it noticed, called by its name, and put right."""
    bench = BENCHES[fault.bench]
    bench.make_good()
    before = bench.state()
    began = time.monotonic()
    said = fault.inject(bench)
    note(fault, time.monotonic() - began)
    missing = [words for words in fault.says if words not in said]
    assert not missing, f"not said: {missing}; said was:\n{said[-6000:]}"
    bench.wait_until_it_serves()
    after = bench.state()
    check_that_nothing_is_lost(before, after)
    if fault.end is End.UNTOUCHED:
        assert after.container == before.container


def check_that_nothing_is_lost(before: State, after: State) -> None:
    """Compare a box with what it was before the fault."""
    assert after.containers == before.containers
    assert after.weights == before.weights
    assert before.images <= after.images
    assert after.files == before.files
    assert after.spec == before.spec == after.recorded_spec
    assert after.halves == ""


def note(fault: Fault, seconds: float) -> None:
    """Keep how long a fault took from its injection to its end, for those who wonder where the time goes."""
    TIMES.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"fault": fault.id, "bench": fault.bench, "seconds": round(seconds, 1)})
    (TIMES / f"{fault.id}.json").write_text(f"{text}\n", encoding="utf-8")
