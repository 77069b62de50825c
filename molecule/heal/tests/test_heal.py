# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What heals without Ansible, and what stays down with a clear line."""

from __future__ import annotations

import pytest

from tests.lab import kit

BOX, NAME = "spark-1", "coordinator"
BOOT_S = 180


def engine_pid() -> str:
    """Return the process id of the engine, empty where there is none."""
    return kit.on_box(BOX, "pgrep --full ^VLLM::EngineCore || true").strip()


def last_words() -> list[str]:
    """Return the lines that say why the unit stays down."""
    lines = kit.on_box(BOX, f"journalctl --unit vllm-{NAME} --boot --priority err --output cat").splitlines()
    return [line for line in lines if "stays down after 3 starts" in line]


def test_a_killed_engine_answers_again(capsys: pytest.CaptureFixture[str]) -> None:
    before = engine_pid()
    kit.on_box(BOX, f"kill -KILL {before}")
    kit.wait_for(lambda: engine_pid() not in {"", before}, seconds=BOOT_S, what="a new engine")
    took = kit.wait_for(lambda: kit.answers(BOX, model=NAME), seconds=BOOT_S, what="an answer of the new engine")
    with capsys.disabled():
        print(f"\nAn engine killed with SIGKILL answered again after {took:.0f} s of boot")
    kit.wait_for(lambda: kit.unit(BOX, NAME)["ActiveState"] == "active", seconds=60, what="an active unit")
    assert int(kit.unit(BOX, NAME)["NRestarts"]) == 1


def test_a_container_of_an_earlier_run_is_cleared_away() -> None:
    kit.on_box(BOX, f"systemctl kill --signal=KILL vllm-{NAME}.service")
    kit.wait_for(lambda: kit.unit(BOX, NAME)["ActiveState"] == "active", seconds=BOOT_S, what="an active unit")
    assert kit.answers(BOX, model=NAME)
    assert len(kit.on_box(BOX, "docker ps --all --quiet").split()) == 1


def test_a_reboot_ends_in_an_answer() -> None:
    before = kit.on_box(BOX, "cat /proc/sys/kernel/random/boot_id")
    kit.on_box(BOX, "systemctl reboot", check=False)
    kit.wait_for(
        lambda: kit.on_box(BOX, "cat /proc/sys/kernel/random/boot_id", check=False) not in {"", before},
        seconds=60,
        what="another boot",
    )
    kit.wait_for(lambda: kit.unit(BOX, NAME).get("ActiveState") == "active", seconds=BOOT_S, what="an active unit")
    assert kit.answers(BOX, model=NAME)


def test_a_unit_that_cannot_start_stays_down_and_says_why_in_one_line() -> None:
    folder = f"/etc/systemd/system/vllm-{NAME}.service.d"
    # A flag that no vLLM has, put in by hand behind the collection's back.
    broken = f"sed -n /^ExecStart=/,/[^\\\\\\\\]\\$/p /etc/systemd/system/vllm-{NAME}.service"
    kit.on_box(BOX, f"mkdir -p {folder} && {{ echo [Service]; echo ExecStart=; {broken}; }} > {folder}/broken.conf")
    kit.on_box(BOX, f"sed -i s/--enforce-eager/--no-such-flag/ {folder}/broken.conf && systemctl daemon-reload")
    try:
        kit.on_box(BOX, f"systemctl restart vllm-{NAME}.service", check=False)
        kit.wait_for(lambda: kit.unit(BOX, NAME)["ActiveState"] == "failed", seconds=BOOT_S, what="a unit that gave up")
        # The line comes from a unit of its own, a moment after the other has failed.
        kit.wait_for(lambda: bool(last_words()), seconds=60, what="the line that says why")
        last = last_words()
        assert len(last) == 1, last
        assert "no-such-flag" in last[0] or "gone" in last[0], last
        assert f"systemctl reset-failed vllm-{NAME}.service" in last[0]
    finally:
        kit.on_box(BOX, f"rm -rf {folder} && systemctl daemon-reload && systemctl reset-failed vllm-{NAME}.service")
    # The cure that the line names, by way of the collection.
    run = kit.play(limit=BOX)
    assert run.status == "successful", run.failures
    assert kit.answers(BOX, model=NAME)
