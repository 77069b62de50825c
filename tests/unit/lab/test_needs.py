# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lab import needs


@pytest.fixture
def good_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(needs, "missing_packages", list)
    monkeypatch.setattr(needs, "engine_answers", lambda: True)
    monkeypatch.setattr(needs, "memory_gib", lambda: 24.0)
    monkeypatch.setattr(needs, "DISK_GIB", 0)
    monkeypatch.delenv("DOCKER_HOST", raising=False)


@pytest.mark.usefixtures("good_machine")
class TestRefusals:
    def test_none(self, tmp_path: Path) -> None:
        assert needs.refusals(tmp_path, built=False) == []

    @pytest.mark.parametrize(
        ("name", "value", "part"),
        [
            ("os.geteuid", lambda: 1000, "needs root"),
            ("platform.machine", lambda: "riscv64", "on riscv64: use another machine"),
            ("platform.system", lambda: "Darwin", "this is Darwin"),
            ("lab.needs.missing_packages", lambda: ["debootstrap"], "apt-get install -y debootstrap"),
            ("lab.needs.engine_answers", lambda: False, "start it with"),
            ("lab.needs.memory_gib", lambda: 3.9, "has 3.9 GiB of memory and the lab needs 7"),
            ("lab.needs.DISK_GIB", 10**9, "free some space there"),
        ],
    )
    def test_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object, part: str) -> None:
        monkeypatch.setattr(name, value)
        found = needs.refusals(tmp_path, built=False)
        assert found
        assert all(part in sentence for sentence in found)
        assert all(sentence.endswith(".") for sentence in found)

    def test_disk_does_not_matter_once_built(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(needs, "DISK_GIB", 10**9)
        assert needs.refusals(tmp_path, built=True) == []

    def test_engine_elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
        assert ["DOCKER_HOST is tcp://192.0.2.1:2375" in s for s in needs.refusals(tmp_path, built=True)] == [True]

    def test_all_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        monkeypatch.setattr(needs, "missing_packages", lambda: ["docker.io"])
        monkeypatch.setattr(needs, "memory_gib", lambda: 1.0)
        assert len(needs.refusals(tmp_path, built=True)) == 3


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "has_program", lambda name: name not in {"strip", "ssh", "ssh-keygen", "dockerd"})
    monkeypatch.setattr(needs, "engine_answers", lambda: False)
    monkeypatch.setattr(needs, "_FILES", {"/absent": "debian-archive-keyring", "/proc/self": "never"})
    assert needs.missing_packages() == ["binutils", "debian-archive-keyring", "docker.io", "openssh-client"]
    assert set(needs.missing_packages()) <= set(needs.PACKAGES)


def test_an_engine_that_answers_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "has_program", lambda name: name != "dockerd")
    monkeypatch.setattr(needs, "engine_answers", lambda: True)
    assert "docker.io" not in needs.missing_packages()


@pytest.mark.parametrize(("status", "expected"), [("200 OK", True), ("500 Internal Server Error", False)])
def test_engine_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, expected: bool) -> None:
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    assert needs.engine_answers() is False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen(1)

        def serve() -> None:
            link, _ = server.accept()
            with link:
                link.recv(4096)
                link.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nOK".encode())

        thread = threading.Thread(target=serve)
        thread.start()
        assert needs.engine_answers() is expected
        thread.join()


def test_needs_runs_before_anything_is_installed() -> None:
    # -S: no site-packages, as on a machine where nothing was installed.
    root = Path(needs.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-S", "-m", "lab", "needs"], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.count("\n") == 1
    assert set(done.stdout.split()) <= set(needs.PACKAGES)
