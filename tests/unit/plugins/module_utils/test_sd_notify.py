# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pathlib
import socket

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _sd_notify


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_that_a_daemon_works(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(5)
        manager.bind(f"\0{name}" if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else name)
        _sd_notify.alive()
        assert manager.recv(100) == b"WATCHDOG=1"


def test_nobody_need_wait_for_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    _sd_notify.alive()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    _sd_notify.alive()


def test_a_manager_that_hangs_hangs_no_daemon(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sd_notify, "_SEND_S", 0.001)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        # More than any queue of datagrams holds.
        for _word in range(600):
            _sd_notify.alive()
