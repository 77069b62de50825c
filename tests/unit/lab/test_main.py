# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import lab.__main__ as program
from lab.state import Lab

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["lab", *arguments])
    monkeypatch.setattr(program.signal, "signal", lambda *args: None)
    return program.main()


def test_bad_host_is_refused_before_anything_happens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "up", "--host", "spark-1:noble") == 2
    assert 'asks for Debian "noble"' in capsys.readouterr().err


def test_unfit_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("lab.needs.refusals", lambda checkout, built: ["One.", "Two."])
    monkeypatch.setattr(program, "find_lab", lambda: Lab(tmp_path))
    for command in ("up", "check"):
        assert run(monkeypatch, command) == 2
        assert capsys.readouterr().err == "lab: One.\nTwo.\n"
    assert list(tmp_path.iterdir()) == []


def test_facts_without_a_lab(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(program, "find_lab", lambda: Lab(tmp_path))
    assert run(monkeypatch, "facts") == 0
    assert capsys.readouterr().out == "{}\n"


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "run", interrupt)
    assert run(monkeypatch, "up") == 130
    assert "goes on from the last whole step" in capsys.readouterr().err


def test_missing_sdk_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError(name="docker")

    monkeypatch.setattr(program.importlib, "import_module", fail)
    assert run(monkeypatch, "status") == 2
    assert 'The Python package "docker" is missing' in capsys.readouterr().err
