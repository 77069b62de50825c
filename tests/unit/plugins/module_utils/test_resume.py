# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What was interrupted is served again, also where nobody knows what it is."""

from __future__ import annotations

import pathlib

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _converge, _instance, _resume
from tests.unit.support.switch_box import Box, Boxes, generation

SERVED = generation(writer="one")


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Box:
    made = Boxes(monkeypatch).make(tmp_path)
    made.serve(SERVED)
    made.starts.clear()
    return made


def edited_by_hand(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the unit run another command line than the one that was proven."""
    monkeypatch.setattr(_instance, "command_line", lambda _pid, _sysroot: ("run", "--otherwise"))
    box.store.keep_record("writer", {"spec": "one", "argv": ["run"]})


def resume(box: Box, *, begin: bool = True) -> _converge.Outcome:
    return _resume.resumed(box.acting(), "writer", begin=begin, step_s=1, keep_trying=True)


def test_what_was_stopped_serves_again(box: Box) -> None:
    _converge.stopped(box.acting(), "writer", remove=False)
    resume(box)
    outcome = resume(box, begin=False)
    assert (outcome.finished, outcome.failed) == (True, False)
    assert box.starts == ["one"]
    assert box.serves(SERVED)


def test_an_engine_of_a_unit_that_was_edited_by_hand_serves_again_as_it_did(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited_by_hand(box, monkeypatch)
    found = _instance.observe(box.run, "writer", box.root)
    assert (found.running_spec, found.up) == ("", True)
    _converge.stopped(box.acting(), "writer", remove=False)
    assert not box.engines
    resume(box)
    outcome = resume(box, begin=False)
    assert (outcome.finished, outcome.failed) == (True, False)
    assert box.engines == {"writer": "one"}


def test_what_serves_by_now_is_left_alone(box: Box) -> None:
    outcome = resume(box)
    assert (outcome.changed, outcome.finished, box.starts) == (False, True, [])


def test_what_does_not_come_up_again_is_named(box: Box) -> None:
    _converge.stopped(box.acting(), "writer", remove=False)
    box.broken.add("one")
    outcome = resume(box)
    assert outcome.failed
    assert outcome.message.startswith("vllm-writer.service did not come up: ")
