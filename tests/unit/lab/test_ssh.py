# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from lab import ssh
from lab.names import LabError
from lab.state import Lab

if TYPE_CHECKING:
    from pathlib import Path


def test_known_hosts() -> None:
    text = ssh.known_hosts({"spark-1": "10.208.0.11"}, {"spark-1": "ssh-ed25519 AAAA comment\n"})
    assert text == "spark-1,10.208.0.11 ssh-ed25519 AAAA\n"


def test_openssh_understands_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    key, known = tmp_path / "with space" / "key", tmp_path / "known_hosts"
    config.write_text(ssh.client_config({"spark-1": "10.208.0.11", "spark-2": "10.208.0.12"}, key, known))
    for name in ("spark-2", "10.208.0.12"):
        shown = subprocess.run(
            ["ssh", "-G", "-F", str(config), name], capture_output=True, text=True, check=True
        ).stdout
        settings = dict(line.partition(" ")[::2] for line in shown.splitlines())
        assert settings["hostname"] == "10.208.0.12"
        assert settings["user"] == "spark"
        assert settings["hostkeyalias"] == "spark-2"
        assert settings["stricthostkeychecking"] == "true"
        assert settings["identityfile"] == str(key)
        assert settings["userknownhostsfile"] == str(known)


def test_keys_stay(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    first = ssh.host_key(lab, "spark-1").read_bytes()
    assert ssh.host_key(lab, "spark-1").read_bytes() == first
    assert ssh.host_key(lab, "spark-2").read_bytes() != first
    assert ssh.client_key(lab).stat().st_mode & 0o077 == 0


def test_a_key_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "no space left\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: failed)
    with pytest.raises(LabError, match="no space left"):
        ssh.client_key(Lab(tmp_path))
