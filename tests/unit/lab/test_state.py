# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.names import LabError
from lab.state import Lab, locked, read_json, write_atomically, write_json

if TYPE_CHECKING:
    from pathlib import Path


def test_json_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    assert read_json(path) == {}
    write_json(path, {"b": 1, "a": [2]})
    assert read_json(path) == {"a": [2], "b": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["facts.json"]


@pytest.mark.parametrize(("text", "part"), [("{", "is not JSON any more"), ("[]", "does not hold a JSON object")])
def test_broken_json(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "facts.json"
    path.write_text(text)
    with pytest.raises(LabError, match=part):
        read_json(path)


def test_write_atomically_sets_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_atomically(path, "secret", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600


def test_one_command_at_a_time(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with locked(lab):
        second = locked(lab)
        with pytest.raises(LabError, match="Another lab command"):
            second.__enter__()
    with locked(lab):
        assert (lab.home / "lock").exists()
