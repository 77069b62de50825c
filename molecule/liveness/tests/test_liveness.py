# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The watch of a box, on a real engine that is killed and stopped behind the back of its HTTP server."""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest

from tests.lab import kit

BOX, NAME = "spark-1", "coordinator"
# A machine that others keep busy takes several times as long as an idle one.
BOOT_S = 600
# The shortest period that there is: a look every 5 s, which waits 10 s for its completion.
PERIOD_S = 15
# The HTTP server outlives its engine with this, and says 503 for ever: nothing exits, so systemd restarts nothing.
KEEPS_ALIVE = "model_roles: [{role: coordinator, env: {VLLM_KEEP_ALIVE_ON_ENGINE_DEATH: '1'}}]\n"


def engine_pid() -> str:
    """Return the process id of the engine, empty where there is none."""
    return kit.on_box(BOX, "pgrep --full ^VLLM::EngineCore || true").strip()


def health() -> str:
    """Return the HTTP status of /health."""
    return kit.on_box(BOX, "curl --silent --output /dev/null --write-out '%{http_code}' http://127.0.0.1:8000/health")


def lines(word: str) -> list[str]:
    """Return what the watch has said in the journal of the engine's own unit, as far as it holds a word."""
    said = kit.on_box(BOX, f"journalctl --unit vllm-{NAME} --boot --output cat --grep '^liveness: ' || true")
    return [line for line in said.splitlines() if word in line]


def counts() -> dict[str, int]:
    """Return what the watch has seen since the box was booted."""
    text = kit.on_box(BOX, f"cat /run/gb10-fleet/watch/{NAME}.json || true")
    state: dict[str, t.Any] = json.loads(text) if text else {}
    return dict(state.get("counts", {}))


def timer() -> str:
    """Return whether the timer runs."""
    return kit.on_box(BOX, f"systemctl is-active gb10-fleet-watch@{NAME}.timer || true").strip()


def wait_until_served(before: str) -> float:
    """Wait for an answer of another engine than the one that was."""
    took = kit.wait_for(lambda: engine_pid() not in {"", before}, seconds=BOOT_S, what="a new engine")
    took += kit.wait_for(lambda: kit.answers(BOX, model=NAME), seconds=BOOT_S, what="an answer of the new engine")
    return took + kit.wait_for(
        lambda: kit.unit(BOX, NAME)["ActiveState"] == "active", seconds=60, what="a unit that has proven itself"
    )


@pytest.fixture(scope="module", autouse=True)
def _watched(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: pathlib.Path = tmp_path_factory.mktemp("liveness")
    inventory = kit.edited_inventory(folder, {f"host_vars/{BOX}.yml": KEEPS_ALIVE})
    extra = {
        "vllm_server_boot_timeout": BOOT_S,
        "vllm_server_liveness_period": PERIOD_S,
        "vllm_server_liveness_restarts": 2,
    }
    run = kit.play(limit=BOX, inventory=inventory, extra=extra)
    assert run.status == "successful", run.failures
    kit.on_box(BOX, f"rm -f /run/gb10-fleet/watch/{NAME}.json")


def test_a_healthy_engine_is_looked_at_and_left_alone() -> None:
    kit.wait_for(lambda: counts().get("alive", 0) >= 2, seconds=60, what="two looks at a healthy engine")
    assert not {"strikes", "restarts", "stops"} & set(counts())
    assert timer() == "active"
    # A look is no news: the journal of the watch holds the start of its timer and nothing else.
    said = kit.on_box(BOX, f"journalctl --boot --output cat --unit gb10-fleet-watch@{NAME}.service || true")
    assert "-- No entries --" in said or not said.strip(), said


def test_a_dead_engine_behind_a_living_server_is_restarted(capsys: pytest.CaptureFixture[str]) -> None:
    before = engine_pid()
    kit.on_box(BOX, f"kill -KILL {before}")
    found = kit.wait_for(lambda: bool(lines("strike 1 of 2")), seconds=60, what="a first strike")
    acted = found + kit.wait_for(lambda: bool(lines("restart 1 of 2")), seconds=60, what="the restart")
    served = wait_until_served(before)
    with capsys.disabled():
        print(f"\nSIGKILL, HTTP server kept alive: seen after {found:.0f} s, restarted after {acted:.0f} s, ", end="")
        print(f"served again {served:.0f} s later (period {PERIOD_S} s)")
    assert "/health says 503" in lines("restart 1 of 2")[0]
    assert found <= PERIOD_S
    # While the new engine booted it was looked at, too, and not touched.
    assert counts().get("away", 0) > 0
    assert counts().get("restarts") == 1


def test_a_hung_engine_behind_a_green_health_is_named_and_restarted(capsys: pytest.CaptureFixture[str]) -> None:
    before = engine_pid()
    kit.on_box(BOX, f"kill -STOP {before}")
    assert health() == "200"
    found = kit.wait_for(lambda: bool(lines("strike 1 of 3")), seconds=120, what="a first strike")
    acted = found + kit.wait_for(lambda: bool(lines("restart 2 of 2")), seconds=120, what="the restart")
    served = wait_until_served(before)
    with capsys.disabled():
        print(f"\nSIGSTOP, /health 200: seen after {found:.0f} s, restarted after {acted:.0f} s, ", end="")
        print(f"served again {served:.0f} s later (period {PERIOD_S} s)")
    assert "hung: There was no completion in 10.0 s, /health said 200" in lines("restart 2 of 2")[0]


def test_an_engine_that_fails_again_and_again_stays_down_with_one_line_and_is_left_alone() -> None:
    kit.on_box(BOX, f"kill -KILL {engine_pid()}")
    kit.wait_for(lambda: kit.unit(BOX, NAME)["ActiveState"] == "inactive", seconds=120, what="a unit that stays down")
    last = lines("stays down")
    assert len(last) == 1, last
    assert "restarted 2 times within 6 h and fails again: engine_dead" in last[0]
    assert f"`systemctl start vllm-{NAME}.service`" in last[0]
    # A unit that is down is not watched, whoever stopped it.
    assert timer() == "inactive"
    kit.on_box(BOX, f"python3 /usr/local/lib/gb10-fleet/fleet.pyz watch {NAME}")
    assert kit.unit(BOX, NAME)["ActiveState"] == "inactive"
    assert len(lines("")) == len(lines("strike")) + len(lines("restarting")) + 1
