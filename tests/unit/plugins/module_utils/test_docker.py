# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _docker

DIRS = ["/etc/cdi", "/var/run/cdi"]
LISTED = [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]


def info(**more: t.Any) -> _docker.Engine:
    return _docker.Engine.from_info({"ServerVersion": "28.3.3", "CgroupDriver": "cgroupfs", **more})


@pytest.mark.parametrize(
    ("node", "spec", "found", "access"),
    [
        (False, "", info(CDISpecDirs=DIRS, DiscoveredDevices=LISTED), "none"),
        (True, "", info(CDISpecDirs=DIRS, DiscoveredDevices=LISTED), "cdi"),
        (True, "kind: nvidia.com/gpu\n", info(CDISpecDirs=DIRS), "cdi"),
        (True, "kind: example.com/nic\n", info(CDISpecDirs=DIRS), "unusable"),
        (True, "", info(CDISpecDirs=DIRS), "unusable"),
        # CDI is switched off in this engine, whatever lies in the folders.
        (True, "kind: nvidia.com/gpu\n", info(), "unusable"),
    ],
)
def test_how_a_container_reaches_the_gpu(
    tmp_path: pathlib.Path, node: bool, spec: str, found: _docker.Engine, access: str
) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "var/run/cdi").mkdir(parents=True)
    if node:
        (tmp_path / "dev/nvidiactl").touch()
    if spec:
        (tmp_path / "var/run/cdi/nvidia.yaml").write_text(spec)
    assert _docker.gpu_access(found, tmp_path) == access


def test_an_engine_that_reports_errors_does_not_answer() -> None:
    answer = json.dumps({"ServerErrors": ["Cannot connect to the Docker daemon"]})
    with pytest.raises(_docker.DockerError, match="systemctl status docker"):
        _docker.engine(lambda _argv: (0, answer, ""))


def test_what_is_not_there_is_none() -> None:
    assert _docker.container(lambda _argv: (1, "", "Error: No such container: x"), "x") is None
    assert _docker.image_id(lambda _argv: (1, "", "Error: No such image: x"), "x") is None


def test_a_daemon_that_is_down_is_not_an_absent_container() -> None:
    with pytest.raises(_docker.DockerError, match="Cannot connect"):
        _docker.container(lambda _argv: (1, "", "Cannot connect to the Docker daemon"), "x")
    with pytest.raises(_docker.DockerError, match="Cannot connect"):
        _docker.image_id(lambda _argv: (1, "", "Cannot connect to the Docker daemon"), "x")
