# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is written into the journal of another unit, over a socket of the test."""

from __future__ import annotations

import pathlib
import socket

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _journal


def test_a_line_is_written_about_another_unit(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "journal")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.settimeout(5)
        journal.bind(path)
        _journal.error("vllm-writer.service", "it stays\ndown", path)
        said = journal.recv(1000).decode().splitlines()
    assert "MESSAGE=it stays down" in said
    assert "OBJECT_SYSTEMD_UNIT=vllm-writer.service" in said


def test_a_journal_that_hangs_loses_a_line_and_hangs_nobody(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_journal, "_SEND_S", 0.001)
    path = str(tmp_path / "journal")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(path)
        # More than any queue of datagrams holds.
        for _line in range(600):
            _journal.error("vllm-writer.service", "it stays down", path)
    # Standard output would hang with the same journal.
    assert capsys.readouterr().out == ""


def test_a_box_without_a_journal_says_it_on_standard_output(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _journal.error("vllm-writer.service", "it stays down", str(tmp_path / "nothing"))
    assert capsys.readouterr().out == "it stays down\n"
