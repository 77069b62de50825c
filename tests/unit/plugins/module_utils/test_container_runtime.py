# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _container_runtime
from ansible_collections.gb10.fleet.plugins.module_utils._docker import Engine

MINIMUMS = (
    _container_runtime.Minimum("docker", "25.0", "it is the first with CDI", "release notes", "2024-01-19"),
    _container_runtime.Minimum(
        "nvidia_container_toolkit", "1.17.7", "NVIDIA asks for it", "porting guide", "2026-04-01"
    ),
)


def engine(driver: str = "cgroupfs", *, cdi: bool = True) -> Engine:
    return Engine("28.3.3", driver, "2", "overlay2", ("/etc/cdi",) if cdi else (), ())


def runtime(docker: str = "28.3.3", toolkit: str = "1.19.0", found: Engine | None = None) -> _container_runtime.Runtime:
    return _container_runtime.Runtime(docker, toolkit, found or engine(), 0)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Docker version 28.3.3, build 980b856", "28.3.3"),
        ("Docker version 26.1.5+dfsg1, build a72d7cd", "26.1.5+dfsg1"),
        ("NVIDIA Container Toolkit CLI version 1.19.0\ncommit: 9a1ae2f", "1.19.0"),
        ("NVIDIA Container Toolkit CLI version 1.18.0-rc.3", "1.18.0-rc.3"),
        ("no such thing", ""),
    ],
)
def test_a_version_is_read_from_what_a_program_says(text: str, version: str) -> None:
    assert _container_runtime.version_in(text) == version


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (runtime(), []),
        (runtime(docker="25.0.0", toolkit="1.17.7-1"), []),
        (runtime(docker="24.0.9"), ["DOCKER_TOO_OLD"]),
        (runtime(toolkit="1.17.6"), ["CONTAINER_TOOLKIT_TOO_OLD"]),
        (runtime(toolkit="1.9.0"), ["CONTAINER_TOOLKIT_TOO_OLD"]),
        (_container_runtime.Runtime("", "", None, 0), ["DOCKER_MISSING", "CONTAINER_TOOLKIT_MISSING"]),
        (_container_runtime.Runtime("28.3.3", "1.19.0", None, 0), ["DOCKER_DOES_NOT_ANSWER"]),
    ],
)
def test_what_is_missing_or_too_old_is_found(found: _container_runtime.Runtime, expected: list[str]) -> None:
    findings = _container_runtime.findings(found, MINIMUMS)
    assert [one.id for one in findings] == expected
    assert all(one.remedy for one in findings)


CONFIG = {"exec-opts": ["native.umask=normal", "native.cgroupdriver=cgroupfs"], "features": {"cdi": True}}


@pytest.mark.parametrize(
    ("found", "config", "reasons"),
    [
        (engine(), CONFIG, 0),
        (engine("systemd"), CONFIG, 1),
        (engine("systemd", cdi=False), CONFIG, 2),
        (engine("systemd", cdi=False), {}, 0),
        (engine(cdi=False), {"features": {"cdi": False}}, 0),
    ],
)
def test_a_restart_is_due_where_what_runs_is_not_what_is_configured(
    found: Engine, config: dict[str, t.Any], reasons: int
) -> None:
    assert len(_container_runtime.restart_reasons(runtime(found=found), config)) == reasons


def test_a_box_without_docker_is_observed_without_an_error() -> None:
    found = _container_runtime.observe(lambda argv: (127, "", f"{argv[0]}: No such file or directory"))
    assert found == _container_runtime.Runtime("", "", None, 0)


def test_a_docker_engine_that_does_not_answer_has_the_version_of_its_client() -> None:
    def run(argv: list[str]) -> tuple[int, str, str]:
        if argv[1] == "--version":
            return 0, "Docker version 28.3.3, build 980b856", ""
        return 0, json.dumps({"ServerErrors": ["Cannot connect to the Docker daemon"]}), ""

    found = _container_runtime.observe(run)
    assert (found.docker_version, found.engine) == ("28.3.3", None)
