# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The switch as a transaction: killed before every step that it takes, with and without a restart of the box."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _converge,
    _generation,
    _instance,
    _proof,
    _soak_engine,
    _switch,
)
from tests.unit.support.switch_box import Box, Boxes, KilledError, generation, peered, watched


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch) -> Boxes:
    return Boxes(monkeypatch)


@pytest.fixture
def box(boxes: Boxes, tmp_path: pathlib.Path) -> Box:
    return boxes.make(tmp_path)


OLD = generation(writer="old")
NEW = generation(reader="new")
SAME_NAME = generation(writer="new")
WITH_NEIGHBOUR = generation(neighbour="beside", writer="old")
NEIGHBOUR_STAYS = generation(neighbour="beside", writer="new")
NOTHING = generation()


def test_a_first_deployment_serves_is_proven_and_recorded(box: Box) -> None:
    last = box.serve(OLD)
    assert (last.outcome, last.to, last.before) == ("served", OLD.id, "")
    assert box.serves(OLD)
    assert box.store.ledger().serving == OLD.id
    assert box.store.marker() is None
    record = box.store.record("writer")
    assert (record["spec"], record["generation"], record["previous_generation"]) == ("old", OLD.id, "")
    assert record["unit"].startswith(_instance.MARK)
    assert box.proven == [("old", True)]


def test_a_switch_stops_the_old_before_it_starts_the_new(box: Box) -> None:
    box.serve(OLD)
    last = box.serve(NEW)
    assert (last.outcome, last.before) == ("served", OLD.id)
    assert box.serves(NEW)
    assert box.store.ledger().good == (NEW.id, OLD.id)
    assert box.store.record("reader")["previous_generation"] == OLD.id


def test_a_neighbour_that_does_not_change_is_not_touched(box: Box) -> None:
    box.serve(WITH_NEIGHBOUR)
    box.store.keep_record("neighbour", {**box.store.record("neighbour"), "soak": "passed"})
    box.starts.clear()
    box.proven.clear()
    box.serve(NEIGHBOUR_STAYS)
    assert box.serves(NEIGHBOUR_STAYS)
    assert box.starts == ["new"]
    # It is asked, too, but nobody looks for a boot that was not.
    assert box.proven == [("beside", False), ("new", True)]
    assert box.store.record("neighbour")["soak"] == "passed"
    assert box.store.record("neighbour")["generation"] == NEIGHBOUR_STAYS.id


def test_the_verdict_of_a_soak_is_back_when_its_engine_is(box: Box) -> None:
    box.serve(OLD)
    soak = {"spec": "old", "verdict": "failed", "because": "3 of 400 answers are garbage."}
    box.store.keep_record("writer", {**box.store.record("writer"), "soak": soak})
    box.serve(SAME_NAME)
    record = box.store.record("writer")
    assert (record["proven"], record.get("soak")) == (True, None)
    box.serve(OLD)
    record = box.store.record("writer")
    assert (record["proven"], record["because"]) == (False, "its soak failed: 3 of 400 answers are garbage.")
    assert record["soak"] == soak


@pytest.mark.parametrize("how", ["broken", "wrong"])
@pytest.mark.parametrize("new", [NEW, SAME_NAME], ids=["another name", "the same name"])
def test_a_failed_proof_restores_what_served(box: Box, how: str, new: _generation.Generation) -> None:
    box.serve(OLD)
    getattr(box, how).add("new")
    last = box.serve(new)
    assert last.outcome == "restored"
    assert box.serves(OLD)
    assert box.store.ledger().serving == OLD.id
    assert box.store.ledger().good == (OLD.id,)
    assert f"generation {new.id} failed: " in last.message
    assert f"Generation {OLD.id} was restored" in last.message
    assert last.restored_s == pytest.approx(7)
    assert box.proven[-1] == ("old", True)
    assert last.specs == new.specs


@pytest.mark.parametrize("jump_s", [-1e6, 1e6])
def test_a_clock_that_jumps_does_not_change_how_long_it_took(
    box: Box, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    def tell(line: str) -> None:
        if line.startswith("going back"):
            box.turned_s += jump_s

    box.serve(OLD)
    box.broken.add("new")
    box.ask(NEW)
    last = _switch.Switch(box.acting(), box.store, box.prove, tell, box.boot_id, box.wall).run()
    assert last is not None
    assert last.restored_s == pytest.approx(7)
    assert "was restored and serves again, answering 7 s after the failure: " in last.message


def test_a_clock_that_was_turned_back_while_the_box_was_down_makes_up_no_time(box: Box) -> None:
    box.serve(OLD)
    box.broken.add("new")
    box.ask(NEW)
    marker = box.store.marker()
    assert marker is not None
    box.store.mark(dataclasses.replace(marker, back=True, reason="It froze.", failed_at=1e9, failed_up_s=5.0))
    box.restart()
    last = box.switch()
    assert last is not None
    assert (last.outcome, last.restored_s) == ("restored", 0)
    assert "was restored and serves again: " in last.message


def test_without_anything_good_the_box_ends_without_the_new(box: Box) -> None:
    box.broken.add("new")
    last = box.serve(NEW)
    assert last.outcome == "down"
    assert "No generation served before it, so the box serves nothing now." in last.message
    assert box.serves(NOTHING)
    assert box.store.ledger() == dataclasses.replace(_generation.Ledger(), last=last)


def test_what_cannot_be_restored_is_left_to_systemd_and_named(box: Box) -> None:
    box.serve(OLD)
    box.broken |= {"new", "old"}
    last = box.serve(NEW)
    assert last.outcome == "down"
    assert "could not be restored" in last.message
    assert box.enabled == {"writer"}
    assert box.starts[-1] == "old"
    assert box.store.ledger().serving == ""
    # The next attempt knows what was good.
    box.broken.clear()
    assert box.serve(NEW).before == OLD.id


def test_a_generation_that_fails_over_itself_has_nothing_to_go_back_to(box: Box) -> None:
    box.serve(OLD)
    box.engines.clear()
    box.broken.add("old")
    last = box.serve(OLD)
    assert last.outcome == "down"
    assert "nothing to go back to; what of it runs was left alone" in last.message
    assert box.enabled == {"writer"}


def test_what_served_before_is_given_all_its_tries(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    patient: list[tuple[str, bool]] = []
    started = _converge.started

    def noted(*args: t.Any, **options: t.Any) -> _converge.Outcome:
        patient.append((args[2], options["keep_trying"]))
        return started(*args, **options)

    monkeypatch.setattr(_converge, "started", noted)
    box.serve(OLD)
    box.engines.clear()
    assert box.serve(OLD).outcome == "served"
    assert patient == [("old", False), ("old", True)]


def test_a_neighbour_that_is_busy_fails_no_switch_and_keeps_its_proof(box: Box) -> None:
    box.serve(WITH_NEIGHBOUR)
    before = box.store.record("neighbour")
    box.busy.add("beside")
    assert box.serve(NEIGHBOUR_STAYS).outcome == "served"
    after = box.store.record("neighbour")
    assert (after["proof"], after["proven_at"]) == (before["proof"], before["proven_at"])
    # A new one that is busy all the time is not proven.
    box.busy.add("new")
    assert box.serve(generation(neighbour="beside", writer="newer")).outcome == "served"
    box.busy.add("newest")
    assert box.serve(generation(neighbour="beside", writer="newest")).outcome == "restored"


def test_what_was_undone_is_no_generation_to_go_back_to(box: Box) -> None:
    for one in (OLD, SAME_NAME, NEW):
        box.serve(one)
    box.ask(SAME_NAME)
    marker = box.store.marker()
    assert marker is not None
    box.store.mark(dataclasses.replace(marker, undo=True))
    box.switch()
    assert box.store.ledger().good == (SAME_NAME.id, OLD.id)


def test_a_way_back_that_leads_nowhere_ends(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.serve(OLD)
    cannot_be_placed(monkeypatch, OLD, OSError(30, "Read-only file system"))
    box.broken.add("new")
    box.ask(NEW)
    tries = 0
    while box.store.marker() is not None:
        tries += 1
        with contextlib.suppress(OSError):
            box.switch()
    assert tries > 10
    last = box.store.ledger().last
    assert last.outcome == "down"
    assert "could not be restored: [Errno 30] Read-only file system" in last.message


def finish(box: Box) -> tuple[int, str]:
    """Run the program as often as systemd does, and return how often that was and what it ended with."""
    for tries in range(1, 100):
        try:
            last = box.switch()
        except (OSError, _instance.UnitError):
            continue
        except _switch.StuckError as error:
            return tries, str(error)
        return tries, last.message if last else ""
    raise AssertionError("it goes on for ever")


@pytest.mark.parametrize("new", [NEW, SAME_NAME], ids=["another name", "the same name"])
def test_what_fails_on_a_disk_that_takes_nothing_any_more_is_stopped_and_not_tried_for_ever(
    box: Box, monkeypatch: pytest.MonkeyPatch, new: _generation.Generation
) -> None:
    prove = box.prove

    def broken(member: _generation.Member, booted: bool) -> _proof.Proof:
        box.read_only = box.read_only or member.spec == "new"
        return prove(member, booted)

    box.serve(OLD)
    box.wrong.add("new")
    monkeypatch.setattr(box, "prove", broken)
    box.ask(new)
    with pytest.raises((_instance.UnitError, OSError)):
        box.switch()
    assert box.engines == {}
    tries, said = finish(box)
    assert tries > 10
    assert f"generation {new.id} failed:" in said
    assert "writes garbage" in said
    assert "could not be restored" in said
    assert "nobody could write that down: [Errno 30] Read-only file system" in said
    assert "new" not in box.engines.values()
    # As soon as the disk takes something again, the next one who looks finishes it.
    box.read_only = False
    finish(box)
    assert box.store.ledger().last.outcome in {"restored", "down"}
    assert box.store.marker() is None
    assert "new" not in box.engines.values()


def test_a_switch_whose_end_nobody_could_write_down_is_finished_later(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove = box.prove

    def full(member: _generation.Member, booted: bool) -> _proof.Proof:
        box.read_only = True
        return prove(member, booted)

    box.serve(OLD)
    with monkeypatch.context() as patched:
        patched.setattr(box, "prove", full)
        box.ask(NEW)
        _tries, said = finish(box)
    assert said.startswith(f"generation {NEW.id} serves and has answered: vllm-reader")
    assert box.engines == {"reader": "new"}
    box.read_only = False
    assert finish(box)[0] == 1
    assert box.store.ledger().last.outcome == "served"
    assert box.serves(NEW)
    assert box.starts == ["old", "new"]


def test_how_far_it_is_outlives_a_disk_that_takes_nothing_and_no_other_switch(box: Box) -> None:
    box.ask(OLD)
    asked = box.store.marker()
    assert asked is not None
    box.read_only = True
    box.store.mark_progress(dataclasses.replace(asked, tries=3))
    assert box.store.marker() == dataclasses.replace(asked, tries=3)
    with pytest.raises(OSError, match="Read-only"):  # what begins has to be on the disk
        box.store.mark(dataclasses.replace(asked, asked="another"))
    box.read_only = False
    box.store.mark(dataclasses.replace(asked, asked="another"))
    assert box.store.marker() == dataclasses.replace(asked, asked="another")


def test_a_box_that_is_shut_down_is_no_failure_of_what_it_starts(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.serve(OLD)
    run = box.run

    def shut_down(argv: list[str]) -> tuple[int, str, str]:
        if argv[:2] == ["systemctl", "show"] and box.starts[-1] == "new":
            box.up = False
            return 1, "", "Failed to get properties: Transport endpoint is not connected"
        return run(argv)

    with monkeypatch.context() as patched:
        patched.setattr(box, "run", shut_down)
        box.ask(NEW)
        with pytest.raises(_instance.UnitError, match="Transport endpoint"):
            box.switch()
    marker = box.store.marker()
    assert marker is not None
    assert (marker.back, marker.reason, marker.tries) == (False, "", 1)
    box.up = True
    box.restart()
    last = box.switch()
    assert last is not None
    assert (last.outcome, last.reason) == ("restored", "the box restarted while it was starting.")


def test_an_engine_that_serves_and_is_disabled_is_not_started_anew(box: Box) -> None:
    box.serve(OLD)
    box.enabled.clear()
    assert box.serve(OLD).outcome == "served"
    assert box.starts == ["old"]
    assert box.serves(OLD)
    assert box.proven[-1] == ("old", False)


def test_what_is_wrong_with_a_neighbour_keeps_no_box_from_going_back(box: Box) -> None:
    box.serve(WITH_NEIGHBOUR)
    before = box.store.record("neighbour")
    box.wrong |= {"new", "beside"}
    last = box.serve(NEIGHBOUR_STAYS)
    assert last.outcome == "restored"
    assert last.message.endswith("But what runs on as it was is not as it should be: neighbour writes garbage.")
    assert box.store.ledger().serving == WITH_NEIGHBOUR.id
    assert box.serves(WITH_NEIGHBOUR)
    assert box.store.record("neighbour")["proof"] == before["proof"]


def test_going_back_to_nothing_says_so(box: Box) -> None:
    box.serve(OLD)
    box.serve(NOTHING)
    box.wrong.add("new")
    last = box.serve(NEW)
    assert last.message.endswith("The box serves nothing again, as it did before.")
    assert box.engines == {}


def with_secrets(box: Box, base: _generation.Generation, *names: str) -> tuple[_generation.Generation, pathlib.Path]:
    """Return a generation of which instances have a secret environment, and where that lies."""
    secrets = {"file": "/var/lib/gb10-fleet/secrets/lost.env", "hash": "1"}
    path = box.root / secrets["file"].lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("TOKEN=1\n")
    members = (dataclasses.replace(one, secrets=secrets) if one.name in names else one for one in base.members)
    return dataclasses.replace(base, members=tuple(members)), path


@pytest.mark.parametrize("how", ["broken", "wrong"])
@pytest.mark.parametrize("new", [NEW, SAME_NAME], ids=["another name", "the same name"])
def test_a_way_back_without_its_secrets_ends_at_once_and_what_failed_is_not_started_for_its_name(
    box: Box, how: str, new: _generation.Generation
) -> None:
    old, path = with_secrets(box, OLD, "writer")
    box.serve(old)
    path.unlink()
    getattr(box, how).add("new")
    last = box.serve(new)
    assert last.outcome == "down"
    assert "the secrets of vllm-writer" in last.message
    assert "this stays stopped and disabled: vllm-writer.service." in last.message
    assert "systemd goes on" not in last.message
    assert box.store.marker() is None
    assert (box.engines, box.enabled) == ({}, set())
    box.restart()
    assert box.engines == {}


def test_a_neighbour_of_what_cannot_be_restored_runs_on(box: Box) -> None:
    old, path = with_secrets(box, WITH_NEIGHBOUR, "writer")
    box.serve(old)
    path.unlink()
    box.wrong.add("new")
    last = box.serve(NEIGHBOUR_STAYS)
    assert last.outcome == "down"
    assert "systemd goes on with vllm-neighbour.service. " in last.message
    assert (box.engines, box.enabled) == ({"neighbour": "beside"}, {"neighbour"})


@pytest.mark.parametrize("text", ["{", None], ids=["damaged", "missing"])
@pytest.mark.parametrize("new", [NEW, SAME_NAME], ids=["another name", "the same name"])
def test_what_failed_is_stopped_where_what_served_before_is_damaged(
    box: Box, new: _generation.Generation, text: str | None
) -> None:
    box.serve(OLD)
    manifest = box.store.folder / "generations" / OLD.id / "manifest.json"
    manifest.unlink() if text is None else manifest.write_text(text)
    box.wrong.add("new")
    last = box.serve(new)
    assert last.outcome == "down"
    assert "What failed was stopped. Nothing was restored: " in last.message
    assert f"no whole generation '{OLD.id}'; it has none. The box serves nothing now." in last.message
    assert box.serves(NOTHING)
    box.restart()
    assert box.engines == {}
    # And the way forward is open.
    box.wrong.clear()
    assert box.serve(new).outcome == "served"


def test_a_neighbour_that_was_not_touched_runs_on_where_what_served_before_is_damaged(box: Box) -> None:
    box.serve(WITH_NEIGHBOUR)
    (box.store.folder / "generations" / WITH_NEIGHBOUR.id / "manifest.json").unlink()
    box.wrong.add("new")
    last = box.serve(NEIGHBOUR_STAYS)
    assert last.outcome == "down"
    assert "What the switch had not touched was left alone: neighbour." in last.message
    assert (box.engines, box.enabled) == ({"neighbour": "beside"}, {"neighbour"})


@pytest.mark.parametrize("text", ["{", None], ids=["damaged", "missing"])
def test_nothing_is_stopped_where_neither_generation_can_be_read(box: Box, text: str | None) -> None:
    box.serve(WITH_NEIGHBOUR)
    box.ask(NEIGHBOUR_STAYS)
    for one in (WITH_NEIGHBOUR, NEIGHBOUR_STAYS):
        manifest = box.store.folder / "generations" / one.id / "manifest.json"
        manifest.unlink() if text is None else manifest.write_text(text)
    last = box.switch()
    assert last is not None
    assert last.outcome == "down"
    assert "so nothing was stopped. On the box are: neighbour, writer. Deploy it (site.yml)." in last.message
    assert box.engines == WITH_NEIGHBOUR.specs
    assert box.enabled == set(WITH_NEIGHBOUR.specs)
    assert box.store.marker() is None
    # And the way forward is open.
    assert box.serve(NEIGHBOUR_STAYS).outcome == "served"


def test_a_loss_of_power_before_the_records_are_written_is_made_up_for(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.serve(OLD)
    keep = _generation.Store.keep_record

    def killed(*_args: object) -> None:
        raise KilledError

    monkeypatch.setattr(_generation.Store, "keep_record", killed)
    with pytest.raises(KilledError):
        box.serve(SAME_NAME)
    # It counts, and no record tells of what does not.
    assert box.store.ledger().serving == SAME_NAME.id
    monkeypatch.setattr(_generation.Store, "keep_record", keep)
    last = box.switch()
    assert last is not None
    assert last.outcome == "served"
    assert box.store.record("writer")["spec"] == "new"
    assert box.store.marker() is None


def test_a_damaged_generation_is_staged_anew(box: Box) -> None:
    box.serve(OLD)
    box.serve(NEW)
    manifest = box.store.folder / "generations" / OLD.id / "manifest.json"
    manifest.write_text(manifest.read_text().replace("writer", "wroter"))
    assert box.serve(OLD).outcome == "served"
    assert box.serves(OLD)


def test_an_emptied_box_serves_nothing_and_can_be_filled_again(box: Box) -> None:
    box.serve(OLD)
    assert box.serve(NOTHING).outcome == "served"
    assert box.serves(NOTHING)
    assert box.serve(OLD).before == NOTHING.id
    assert box.serves(OLD)


def cannot_be_placed(monkeypatch: pytest.MonkeyPatch, which: _generation.Generation, error: OSError) -> None:
    """Have the disk refuse the files of one generation."""
    place = _generation.Store.place

    def refuse(store: _generation.Store, wanted: _generation.Generation) -> bool:
        if wanted.id == which.id:
            raise error
        return place(store, wanted)

    monkeypatch.setattr(_generation.Store, "place", refuse)


def test_a_trouble_of_the_box_sends_it_back_as_a_failed_proof_does(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.serve(OLD)
    cannot_be_placed(monkeypatch, NEW, OSError(28, "No space left on device"))
    last = box.serve(NEW)
    assert last.outcome == "restored"
    assert "No space left on device" in last.message
    assert box.serves(OLD)


def test_only_so_many_good_generations_are_kept(box: Box) -> None:
    made = [generation(writer=f"spec{number}") for number in range(5)]
    for one in made:
        box.serve(one)
    kept = [one.id for one in reversed(made)][:3]
    assert list(box.store.ledger().good) == kept
    assert {path.name for path in (box.store.folder / "generations").iterdir()} == set(kept)


def test_an_edit_that_restarts_no_engine_takes_the_place_of_what_it_edits(box: Box) -> None:
    edited = [watched(SAME_NAME, period_s) for period_s in (300, 600, 900)]
    for one in (OLD, *edited):
        box.serve(one)
    assert box.starts == ["old", "new"]
    ledger = box.store.ledger()
    assert ledger.good == (edited[-1].id, OLD.id)
    assert ledger.previous == OLD.id
    # What the last switch came from can be undone to all the same.
    assert box.store.has(edited[1].id)
    assert not box.store.has(edited[0].id)


def test_another_secret_is_another_engine(box: Box) -> None:
    changed, _path = with_secrets(box, OLD, "writer")
    box.serve(OLD)
    box.serve(changed)
    assert box.store.ledger().good == (changed.id, OLD.id)


CASES: dict[str, tuple[_generation.Generation, _generation.Generation, set[str]]] = {
    "another name": (OLD, NEW, set()),
    "the same name": (OLD, SAME_NAME, set()),
    "beside a neighbour": (WITH_NEIGHBOUR, NEIGHBOUR_STAYS, set()),
    "back from a broken one": (OLD, NEW, {"new"}),
    "back from a broken one of the same name": (OLD, SAME_NAME, {"new"}),
    "to an empty box": (OLD, NOTHING, set()),
}


def interrupted(box: Box, old: _generation.Generation, new: _generation.Generation, at: int) -> bool:
    """Switch from one to the other and be killed before a step; return whether it came to that."""
    box.serve(old)
    box.ask(new)
    box.steps, box.kill_at = 0, at
    try:
        box.switch()
    except KilledError:
        return True
    finally:
        box.kill_at = -1
    return False


@pytest.mark.parametrize("restart", [False, True], ids=["killed", "restarted"])
@pytest.mark.parametrize("case", CASES)
def test_killed_before_any_step_the_box_ends_up_with_the_old_or_the_new(
    boxes: Boxes, tmp_path_factory: pytest.TempPathFactory, case: str, restart: bool
) -> None:
    old, new, bad = CASES[case]
    at, outcomes = 1, set()
    while True:
        box = boxes.make(tmp_path_factory.mktemp("box"))
        box.broken |= bad
        if not interrupted(box, old, new, at):
            break
        if restart:
            box.restart()
        # What systemd does then: it runs the program for as long as the marker is there.
        while box.store.marker() is not None:
            box.switch()
        reached = new if box.serves(new) else old
        assert box.serves(reached), f"killed before step {at}: {box.engines}, {box.enabled}"
        assert box.store.ledger().serving == reached.id, f"killed before step {at}"
        outcomes.add("new" if reached is new else "old")
        # And the next run of the playbook finishes the job, where it can be done.
        if not bad:
            assert box.serve(new).outcome == "served"
            assert box.serves(new)
        at += 1
    assert at > 10, "the switch takes more steps than that"
    assert outcomes == ({"old"} if bad else {"new", "old"} if restart and new.members else {"new"})


def test_a_box_that_goes_down_while_the_new_starts_goes_back(box: Box) -> None:
    """An engine that freezes its box must not be given a second chance where something good is known."""
    box.serve(OLD)
    box.ask(NEW)
    marker = box.store.marker()
    assert marker is not None
    box.store.mark(dataclasses.replace(marker, step="starting"))
    box.restart()
    last = box.switch()
    assert last is not None
    assert last.outcome == "restored"
    assert "restarted while it was starting" in last.message
    assert box.serves(OLD)


def test_a_first_deployment_is_forgiven_one_loss_of_power_and_not_two(box: Box) -> None:
    box.ask(NEW)
    for expected in (False, True):
        marker = box.store.marker()
        assert marker is not None
        box.store.mark(dataclasses.replace(marker, step="starting"))
        box.restart()
        box.kill_at = box.steps + 1 + 2 * (not expected)  # in the middle of what follows
        try:
            last = box.switch()
        except KilledError:
            continue
    box.kill_at = -1
    last = box.switch()
    assert last is not None
    assert last.outcome == "down"
    assert box.serves(NOTHING)


def test_no_marker_is_no_switch(box: Box) -> None:
    assert box.switch() is None


def test_the_watch_of_an_engine_that_runs_on_follows_its_generation_forth_and_back(box: Box) -> None:
    box.serve(WITH_NEIGHBOUR)
    box.starts.clear()
    assert box.serve(watched(WITH_NEIGHBOUR)).outcome == "served"
    assert box.timers == {"neighbour", "writer"}
    assert box.serve(WITH_NEIGHBOUR).outcome == "served"
    assert box.timers == set()
    assert box.serve(watched(WITH_NEIGHBOUR)).outcome == "served"
    assert box.timers == {"neighbour", "writer"}
    assert box.starts == []


def test_a_neighbour_is_watched_again_when_the_box_has_gone_back(box: Box) -> None:
    old = watched(WITH_NEIGHBOUR)
    box.serve(old)
    box.timers.clear()
    box.wrong.add("new")
    assert box.serve(NEIGHBOUR_STAYS).outcome == "restored"
    assert box.serves(old)
    assert box.timers == {"neighbour", "writer"}


def test_a_box_that_is_killed_on_its_way_is_watched_in_the_end(
    boxes: Boxes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    old, new = WITH_NEIGHBOUR, watched(WITH_NEIGHBOUR)
    at = 1
    while True:
        box = boxes.make(tmp_path_factory.mktemp("box"))
        if not interrupted(box, old, new, at):
            break
        while box.store.marker() is not None:
            box.switch()
        assert box.serves(new)
        assert box.timers == {"neighbour", "writer"}, f"killed before step {at}"
        at += 1
    assert at > 5


@pytest.mark.parametrize(("how", "says"), [("masked", "is masked"), ("jammed", "is not as it should be")])
@pytest.mark.parametrize("back", [False, True], ids=["forth", "back"])
def test_a_timer_that_does_not_start_undoes_no_switch_and_is_told_of(box: Box, how: str, says: str, back: bool) -> None:
    wanted = watched(OLD)
    getattr(box, how).add("writer")
    last = box.serve(wanted)
    assert last.outcome == "served"
    if back:
        box.broken.add("new")
        last = box.serve(SAME_NAME)
        assert last.outcome == "restored"
    assert box.serves(wanted)
    assert says in last.message
    assert "writer" in last.message.partition(" But ")[2]
    assert box.timers == set()


GROUP = {"name": "pair", "rank": 0, "members": [], "spec": "same"}
RANK_DAEMON = "gb10-fleet-peer@writer.service"


def test_the_daemon_of_a_rank_that_runs_on_is_started_anew_by_a_changed_unit(box: Box) -> None:
    rank = generation(GROUP, writer="old")
    box.serve(peered(rank, "WatchdogSec=30\n"))
    box.starts.clear()
    box.peers.clear()
    last = box.serve(peered(rank, "WatchdogSec=60\n"))
    assert last.outcome == "served"
    assert box.peers == [(RANK_DAEMON, {"writer": "old"})]
    assert box.starts == []
    # And nothing is done to it where the unit is the same.
    box.serve(peered(rank, "WatchdogSec=60\n"))
    assert len(box.peers) == 1


def test_the_daemon_of_a_rank_is_started_anew_before_its_engine_is(box: Box) -> None:
    box.serve(peered(generation(GROUP, writer="old"), "WatchdogSec=30\n"))
    box.peers.clear()
    assert box.serve(peered(generation(GROUP, writer="new"), "WatchdogSec=60\n")).outcome == "served"
    assert box.peers == [(RANK_DAEMON, {})]


def test_an_instance_that_is_no_rank_has_no_daemon_to_start_anew(box: Box) -> None:
    box.serve(peered(OLD, "WatchdogSec=30\n"))
    assert box.serve(peered(OLD, "WatchdogSec=60\n")).outcome == "served"
    assert box.peers == []


def test_a_daemon_that_is_not_started_anew_undoes_no_switch(box: Box) -> None:
    rank = generation(GROUP, writer="old")
    box.serve(peered(rank, "WatchdogSec=30\n"))
    box.stubborn = True
    assert box.serve(peered(rank, "WatchdogSec=60\n")).outcome == "served"


def test_a_daemon_is_started_anew_wherever_the_switch_is_killed(boxes: Boxes, tmp_path: pathlib.Path) -> None:
    rank = generation(GROUP, writer="old")
    for at in range(1, 100):
        box = boxes.make(tmp_path / str(at))
        box.serve(peered(rank, "WatchdogSec=30\n"))
        box.peers.clear()
        box.ask(peered(rank, "WatchdogSec=60\n"))
        box.kill_at = box.steps + at
        try:
            box.switch()
        except KilledError:
            box.kill_at = -1
            box.switch()
            assert box.peers, at
            assert box.serves(peered(rank, "WatchdogSec=60\n"))
        else:
            break
    assert at > 5


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"to": "x", "from": "another version"}'])
def test_a_marker_that_nobody_can_read_is_set_aside_with_a_word_and_is_no_switch(box: Box, text: str) -> None:
    box.serve(OLD)
    marker = box.store.folder / "switch.json"
    marker.write_text(text)
    assert not box.store.under_way
    assert not _soak_engine.switch_under_way(box.root)
    told: list[str] = []
    assert _switch.Switch(box.acting(), box.store, box.prove, told.append, box.boot_id).run() is None
    assert not marker.exists()
    aside = box.store.folder / "switch.unreadable"
    assert aside.read_text() == text
    assert f"it lies in {aside} now" in told[0]
    assert "deploy it (site.yml)" in told[0]
    assert box.serves(OLD)
    assert box.serve(NEW).outcome == "served"


def test_the_marker_of_a_later_version_is_a_switch(box: Box) -> None:
    box.serve(OLD)
    box.ask(NEW)
    marker = box.store.folder / "switch.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "of": "a later version"}))
    last = box.switch()
    assert last is not None
    assert (last.to, last.outcome) == (NEW.id, "served")


def test_a_generation_that_was_damaged_is_not_started(box: Box) -> None:
    box.serve(OLD)
    box.ask(NEW)
    manifest = box.store.folder / "generations" / NEW.id / "manifest.json"
    manifest.write_text(manifest.read_text().replace("--spec=new", "--spec=evil"))
    last = box.switch()
    assert last is not None
    assert last.outcome == "restored"
    assert "no whole generation" in last.message
    assert box.serves(OLD)
    assert "evil" not in box.starts
