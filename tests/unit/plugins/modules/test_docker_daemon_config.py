# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gb10.fleet.plugins.modules import docker_daemon_config

WANTED = {"exec-opts": ["native.cgroupdriver=cgroupfs"]}


class Docker:
    """Stands for Docker Engine and systemd: what it is asked, and what it says of a file."""

    def __init__(self, code: int = 0, said: str = "") -> None:
        self.answer = (code, "", said)
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str], **_options: t.Any) -> tuple[int, str, str]:
        self.asked.append(argv)
        return (0, "MainPID=4790\n", "") if argv[0] == "systemctl" else self.answer


def run(
    path: pathlib.Path, docker: Docker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, t.Any]:
    """Run the module in this process and return what it prints."""
    started = ("/usr/bin/dockerd", "-H", "fd://", "--config-file", "/etc/docker/daemon.json", "--log-level=warn")
    monkeypatch.setattr(docker_daemon_config._command, "run", docker)
    monkeypatch.setattr(docker_daemon_config._instance, "command_line", lambda _pid: started)
    with patch_module_args({"config": WANTED, "path": str(path)}), pytest.raises(SystemExit):
        docker_daemon_config.main()
    return t.cast("dict[str, t.Any]", json.loads(capsys.readouterr().out))


def test_the_file_is_checked_with_the_options_that_docker_was_started_with(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands in both keeps Docker Engine from starting: every engine would be lost at its next restart."""
    said = "the following directives are specified both as a flag and in the configuration file: exec-opts"
    docker, path = Docker(1, said), tmp_path / "daemon.json"
    path.write_text('{"debug": true}')
    result = run(path, docker, monkeypatch, capsys)
    assert result["failed"]
    assert said in result["msg"]
    assert path.read_text() == '{"debug": true}'
    assert docker.asked[-1][:5] == ["dockerd", "-H", "fd://", "--log-level=warn", "--validate"]


def test_an_engine_that_cannot_be_asked_is_not_in_the_way(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "daemon.json"
    assert run(path, Docker(125, "unknown flag: --validate"), monkeypatch, capsys)["changed"]
    assert json.loads(path.read_text()) == WANTED


def test_a_link_stays_a_link(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, path = tmp_path / "mine.json", tmp_path / "daemon.json"
    target.write_text('{"debug": true}')
    path.symlink_to(target)
    assert run(path, Docker(), monkeypatch, capsys)["changed"]
    assert path.is_symlink()
    assert json.loads(target.read_text()) == {"debug": True, **WANTED}
