# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._boot_sources import (
    BootSourceError,
    read_container,
    read_unit,
    run_limited,
)

INVOCATION = "0123456789abcdef0123456789abcdef"
SHOWN = f"LoadState=loaded\nInvocationID={INVOCATION}\n"


class Fake:
    """Stands in for systemctl, journalctl and docker."""

    def __init__(self, answers: dict[str, tuple[int, str]]) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str], limit: int) -> tuple[int, bytes]:
        self.asked.append(argv)
        status, text = self.answers[" ".join(argv[:2])]
        return status, text.encode()


@pytest.mark.parametrize("unit", ["vllm-coordinator", "vllm-coordinator.service"])
def test_the_journal_of_a_unit_since_its_last_start(unit: str) -> None:
    fake = Fake({"systemctl show": (0, SHOWN), "journalctl --no-pager": (0, "a line\n")})

    assert read_unit(unit, fake) == "a line\n"
    assert fake.asked[0][-1] == "vllm-coordinator.service"
    assert fake.asked[1][-1] == f"_SYSTEMD_INVOCATION_ID={INVOCATION}"


@pytest.mark.parametrize(
    ("unit", "shown", "journal", "message"),
    [
        ("nope", (0, "LoadState=not-found\nInvocationID=\n"), (0, ""), "systemd knows no unit nope.service"),
        ("idle", (0, "LoadState=loaded\nInvocationID=\n"), (0, ""), "has not run since the box booted"),
        ("odd", (0, "LoadState=loaded\nInvocationID=-x --evil\n"), (0, ""), "has not run since the box booted"),
        ("dark", (0, SHOWN), (0, " \n"), "run the task with become"),
        ("sick", (1, "Failed to connect to bus"), (0, ""), "Failed to connect to bus"),
        ("--all", (0, SHOWN), (0, "x"), None),
        ("a b", (0, SHOWN), (0, "x"), "no name of a systemd unit"),
    ],
)
def test_units_without_a_log(unit: str, shown: tuple[int, str], journal: tuple[int, str], message: str | None) -> None:
    fake = Fake({"systemctl show": shown, "journalctl --no-pager": journal})

    if message is None:
        # A name that starts with a dash must not become an option.
        read_unit(unit, fake)
        assert fake.asked[0][-2:] == ["--", f"{unit}.service"]
        return
    with pytest.raises(BootSourceError, match=re.escape(message)):
        read_unit(unit, fake)


def test_the_log_of_a_container_since_its_last_start() -> None:
    fake = Fake({"docker inspect": (0, "2026-09-11T09:48:50.123456789Z json-file\n"), "docker logs": (0, "a line\n")})

    assert read_container("vllm-coordinator", fake) == "a line\n"
    assert fake.asked[1] == [
        *("docker", "logs", "--timestamps", "--since=2026-09-11T09:48:50.123456789Z", "vllm-coordinator"),
    ]


@pytest.mark.parametrize(
    ("name", "inspected", "logs", "message"),
    [
        ("nope", (1, "Error: No such container: nope"), (0, ""), "Docker has no container nope"),
        ("mute", (0, "2026-09-11T09:48:50Z none"), (0, ""), "read the journal of its unit instead"),
        (
            "gone",
            (0, "2026-09-11T09:48:50Z journald"),
            (1, "no such file"),
            "cannot read the log of gone: no such file",
        ),
        ("--help", (0, ""), (0, ""), "no name of a container"),
    ],
)
def test_containers_without_a_log(name: str, inspected: tuple[int, str], logs: tuple[int, str], message: str) -> None:
    with pytest.raises(BootSourceError, match=re.escape(message)):
        read_container(name, Fake({"docker inspect": inspected, "docker logs": logs}))


def test_a_long_log_is_read_from_its_front_only() -> None:
    assert run_limited(["yes"], 1_000) == (0, b"y\n" * 500)


def test_both_outputs_and_the_exit_status_are_returned() -> None:
    assert run_limited(["sh", "-c", "echo one; echo two >&2; exit 3"], 1_000) == (3, b"one\ntwo\n")


def test_a_command_that_is_not_there() -> None:
    with pytest.raises(BootSourceError, match="no-such-command cannot be run"):
        run_limited(["no-such-command"], 10)
