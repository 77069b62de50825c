# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the module says, asks for and waits for; the box's program is the real one."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import stat
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _deployment, _generation, _instance, _proof, _status
from tests.unit.support.switch_box import IMAGE, Box, Boxes, generation

OLD, NEW = generation(writer="old"), generation(reader="new")


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Box:
    return Boxes(monkeypatch).make(tmp_path)


def deployment(box: Box, *, check_mode: bool = False) -> _deployment.Deployment:
    return _deployment.Deployment(box.acting(check_mode=check_mode), box.store)


def answers(name: str, _settings: object, *, booted: bool) -> _proof.Proof:
    return _proof.Proof(ok=not booted, reason=name)


def serve(box: Box, wanted: _generation.Generation, **changes: t.Any) -> _deployment.Outcome:
    options: dict[str, t.Any] = {"begin": True, "step_s": 60, "prove": answers, **changes}
    return deployment(box).serve(wanted, **options)


def shown(outcome: _deployment.Outcome) -> str:
    """Return the difference as text."""
    return "\n".join(f"{one['before']} -> {one['after']}" for one in outcome.diff)


def test_a_deployment_is_staged_asked_for_and_waited_for(box: Box) -> None:
    outcome = serve(box, OLD)
    assert (outcome.changed, outcome.finished, outcome.failed) == (True, True, False)
    assert outcome.last is not None
    assert outcome.last.outcome == "served"
    assert "vllm-writer.service: inactive" in shown(outcome)
    assert f"generation: none\n -> generation: {OLD.id}" in shown(outcome)
    assert box.serves(OLD)


def test_the_second_time_nothing_changes_and_every_instance_is_asked(box: Box) -> None:
    serve(box, OLD)
    steps, asked = box.steps, []

    def prove(name: str, _settings: object, *, booted: bool) -> _proof.Proof:
        asked.append((name, booted))
        return _proof.Proof(True)

    outcome = serve(box, OLD, prove=prove)
    assert (outcome.changed, outcome.failed, outcome.diff) == (False, False, [])
    assert box.steps == steps
    assert asked == [("writer", False)]


def test_an_unchanged_instance_that_does_not_answer_fails_and_is_not_touched(box: Box) -> None:
    serve(box, OLD)
    steps = box.steps
    outcome = serve(box, OLD, prove=lambda *_args, **_options: _proof.Proof(False, "vllm-writer.service hangs."))
    assert (outcome.changed, outcome.failed) == (False, True)
    assert "vllm-writer.service hangs." in outcome.message
    assert "systemctl restart vllm-writer.service" in outcome.message
    assert box.steps == steps


def test_an_unchanged_instance_that_others_keep_busy_is_no_failure(box: Box) -> None:
    serve(box, OLD)
    busy = _proof.Proof(False, "vllm-writer.service was still busy.", busy=True)
    outcome = serve(box, OLD, prove=lambda *_args, **_options: busy)
    assert (outcome.changed, outcome.failed) == (False, False)
    assert "others keep it busy" in outcome.message
    assert "restart" not in outcome.message


def test_a_busy_instance_hides_no_other_one_that_does_not_answer(box: Box) -> None:
    both = generation(neighbour="beside", writer="old")
    serve(box, both)
    proofs = {"neighbour": _proof.Proof(False, "It is busy.", busy=True), "writer": _proof.Proof(False, "It hangs.")}
    outcome = serve(box, both, prove=lambda name, *_args, **_options: proofs[name])
    assert outcome.failed
    assert "It hangs." in outcome.message


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_neighbour_that_was_wrong_before_is_not_blamed_on_what_is_deployed(box: Box, check_mode: bool) -> None:
    both, wanted = generation(neighbour="beside", writer="old"), generation(neighbour="beside", writer="new")
    serve(box, both)
    steps, asked = box.steps, []

    def prove(name: str, _settings: object, *, booted: bool) -> _proof.Proof:
        asked.append((name, booted))
        return _proof.Proof(not box.wrong, "vllm-neighbour.service writes garbage.")

    work = deployment(box, check_mode=check_mode)
    assert not work.ask_untouched(wanted, prove).failed
    assert asked == [("neighbour", False)]
    box.wrong.add("beside")
    outcome = work.ask_untouched(wanted, prove)
    assert (outcome.changed, outcome.failed) == (False, True)
    assert "vllm-neighbour.service writes garbage." in outcome.message
    assert (
        "`systemctl restart vllm-neighbour.service` starts it anew. Nothing was done about the other" in outcome.message
    )
    assert (box.steps, box.store.marker()) == (steps, None)
    # Where nothing is to be switched, whoever has it served asks, and once is enough.
    asked.clear()
    assert not work.ask_untouched(both, prove).failed
    assert asked == []


def test_a_box_goes_back_whatever_is_wrong_with_a_neighbour(box: Box) -> None:
    serve(box, generation(neighbour="beside", writer="old"))
    serve(box, generation(neighbour="beside", writer="new"))
    box.wrong.add("beside")
    outcome = deployment(box).go_back("", undo=False, begin=True, step_s=60)
    assert (outcome.failed, box.engines["writer"]) == (False, "old")
    assert "But what runs on as it was is not as it should be: neighbour writes garbage" in outcome.message


def test_a_disabled_engine_is_said_to_be_enabled(box: Box) -> None:
    serve(box, OLD)
    box.enabled.clear()
    outcome = serve(box, OLD)
    assert "vllm-writer.service: active, spec old, disabled\n -> vllm-writer.service: active, spec old" in shown(
        outcome
    )
    assert (outcome.changed, outcome.failed, box.starts) == (True, False, ["old"])


def test_a_file_that_was_edited_by_hand_is_put_right_without_a_restart(box: Box) -> None:
    serve(box, OLD)
    unit = box.unit_file("writer")
    unit.write_text(unit.read_text() + "# by hand\n")
    starts = len(box.starts)
    outcome = serve(box, OLD)
    assert outcome.changed
    assert "# by hand" in shown(outcome)
    assert box.serves(OLD)
    assert len(box.starts) == starts


@pytest.mark.parametrize("text", ['{"spec": ', "{}", None], ids=["cut", "empty", "gone"])
def test_a_record_that_was_lost_is_written_again_without_a_restart(box: Box, text: str | None) -> None:
    serve(box, OLD)
    path = box.store.sysroot / _instance.RECORD_FOLDER / "writer.json"
    kept = json.loads(path.read_text())
    path.unlink()
    if text is not None:
        path.write_text(text)
    starts = len(box.starts)
    outcome = serve(box, OLD)
    assert (outcome.changed, outcome.failed) == (True, False)
    assert "record of writer: none" in shown(outcome)
    assert json.loads(path.read_text())["spec"] == kept["spec"]
    assert len(box.starts) == starts
    assert serve(box, OLD).changed is False


def test_check_mode_says_what_would_change_and_changes_nothing(box: Box) -> None:
    serve(box, OLD)
    steps = box.steps
    outcome = deployment(box, check_mode=True).serve(NEW, begin=True, step_s=0, prove=answers)
    assert outcome.changed
    assert "vllm-writer.service: absent" in shown(outcome)
    assert "vllm-reader.service: active, spec new" in shown(outcome)
    assert f"would serve {NEW.about}" in outcome.message
    assert box.steps == steps
    assert box.serves(OLD)


def test_a_failure_is_told_with_what_was_restored(box: Box) -> None:
    serve(box, OLD)
    box.broken.add("new")
    outcome = serve(box, NEW)
    assert (outcome.failed, outcome.finished) == (True, True)
    assert f"Generation {OLD.id} was restored" in outcome.message


def test_what_the_switch_does_is_told_while_it_is_under_way(box: Box) -> None:
    box.minded = False
    status = _status.StatusFile(_deployment.JOB, box.root / "run")
    assert serve(box, OLD, step_s=0).message == "starting"
    status.write(_status.Status("switch", "stopping vllm-writer", False, 0.0))
    outcome = serve(box, OLD, begin=False, step_s=0)
    assert (outcome.finished, outcome.message) == (False, "stopping vllm-writer")


def test_the_same_switch_is_joined_and_another_one_refused(box: Box) -> None:
    box.minded = False
    serve(box, OLD, step_s=0)
    steps = box.steps
    assert not serve(box, OLD, step_s=0).finished
    assert box.steps == steps
    with pytest.raises(_deployment.DeploymentError, match="another switch is under way"):
        serve(box, NEW, step_s=0)


@pytest.mark.parametrize("how", ["serving", "going back"])
def test_a_run_that_another_one_has_overtaken_fails(box: Box, how: str) -> None:
    serve(box, OLD)
    serve(box, generation(writer="third"))
    box.minded = False
    if how == "serving":
        first = serve(box, NEW, step_s=1)
    else:
        first = deployment(box).go_back(OLD.id, undo=False, begin=True, step_s=1)
    assert not first.finished
    # The box gets there between two looks of the first run, and then a second one has it go elsewhere.
    box.program = False
    box.switch()
    other = generation(writer="other")
    assert not serve(box, other, step_s=1).finished
    box.program = False
    box.switch()
    if how == "serving":
        ended = serve(box, NEW, begin=False)
    else:
        ended = deployment(box).go_back(first.generation, undo=False, begin=False, step_s=60)
    assert (ended.finished, ended.failed) == (True, True)
    wanted = f"another run has switched this box to generation {other.id} meanwhile, and not to {first.generation}"
    assert ended.message.startswith(wanted)
    assert "run this again" in ended.message


def test_a_switch_that_nobody_is_at_is_told_and_finished_by_the_next_run(box: Box) -> None:
    box.minded = False
    serve(box, OLD, step_s=0)
    box.program = False
    outcome = serve(box, OLD, begin=False, step_s=0)
    assert outcome.failed
    assert "nobody is at it" in outcome.message
    box.minded = True
    settled = deployment(box).settle(begin=True, step_s=60)
    assert (settled.changed, settled.failed) == (True, False)
    assert box.serves(OLD)


def test_settling_does_not_fail_over_how_the_earlier_switch_ended(box: Box) -> None:
    box.broken.add("old")
    box.minded = False
    serve(box, OLD, step_s=0)
    box.minded = True
    outcome = deployment(box).settle(begin=True, step_s=60)
    assert not outcome.failed
    assert "so the box serves nothing now" in outcome.message
    assert not deployment(box).settle(begin=True, step_s=0).changed


def test_settling_has_the_box_put_aside_a_marker_that_nobody_can_read(box: Box) -> None:
    serve(box, OLD)
    marker = box.store.folder / "switch.json"
    marker.write_text("")
    assert deployment(box, check_mode=True).settle(begin=True, step_s=60).message == "no switch is under way"
    assert not box.program
    assert deployment(box).settle(begin=True, step_s=60).message == "no switch is under way"
    box.sleep(1)
    assert not marker.exists()


def test_settling_in_check_mode_says_so(box: Box) -> None:
    box.minded = False
    serve(box, OLD, step_s=0)
    outcome = deployment(box, check_mode=True).settle(begin=True, step_s=0)
    assert outcome.changed
    assert "would be finished first" in outcome.message


def test_going_back_to_the_previous_generation_and_to_a_named_one(box: Box) -> None:
    serve(box, OLD)
    serve(box, NEW)
    outcome = deployment(box).go_back("", undo=False, begin=True, step_s=60)
    assert (outcome.changed, outcome.failed, outcome.generation) == (True, False, OLD.id)
    assert box.serves(OLD)
    assert deployment(box).go_back(NEW.id, undo=False, begin=True, step_s=60).changed
    assert box.serves(NEW)
    assert not deployment(box).go_back(NEW.id, undo=False, begin=True, step_s=60).changed


def test_undoing_a_first_deployment_empties_the_box(box: Box) -> None:
    serve(box, OLD)
    assert deployment(box).go_back("", undo=True, begin=True, step_s=60).changed
    assert box.serves(_generation.Generation())


def test_undoing_goes_to_what_the_last_switch_came_from(box: Box) -> None:
    serve(box, OLD)
    serve(box, NEW)
    deployment(box).go_back("", undo=True, begin=True, step_s=60)
    assert box.serves(OLD)


def test_undoing_what_only_proved_anew_goes_to_what_served_before_that(box: Box) -> None:
    serve(box, OLD)
    serve(box, NEW)
    box.engines.clear()
    serve(box, NEW)
    assert box.store.ledger().last.before == NEW.id
    deployment(box).go_back("", undo=True, begin=True, step_s=60)
    assert box.serves(OLD)
    assert box.store.ledger().good == (OLD.id,)


def test_undoing_what_only_proved_anew_never_empties_a_box(box: Box) -> None:
    serve(box, OLD)
    box.engines.clear()
    serve(box, OLD)
    deployment(box).go_back("", undo=True, begin=True, step_s=60)
    assert box.serves(OLD)


def test_going_back_is_refused_where_it_cannot_work(box: Box) -> None:
    serve(box, OLD)
    with pytest.raises(_deployment.DeploymentError, match="no good generation before"):
        deployment(box).go_back("", undo=False, begin=True, step_s=0)
    with pytest.raises(_generation.GenerationError, match=f"'0123'; it has {OLD.id}"):
        deployment(box).go_back("0123", undo=False, begin=True, step_s=0)
    serve(box, NEW)
    box.images.clear()
    with pytest.raises(_deployment.DeploymentError, match=f"docker pull {IMAGE}"):
        deployment(box).go_back("", undo=False, begin=True, step_s=0)
    assert box.serves(NEW)


def with_secrets(box: Box, base: _generation.Generation, text: str) -> _generation.Generation:
    """Return a generation whose instances have a secret environment, which lies on the box."""
    path = box.store.folder / "secrets" / f"{text}.env"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"TOKEN={text}\n")
    secrets = {"file": f"/{path.relative_to(box.root)}", "hash": text}
    return dataclasses.replace(base, members=tuple(dataclasses.replace(one, secrets=secrets) for one in base.members))


def test_secrets_are_placed_for_root_alone_and_go_back_with_their_generation(box: Box) -> None:
    first, second = with_secrets(box, OLD, "one"), with_secrets(box, OLD, "two")
    assert first.id != second.id
    placed = box.root / _instance.INSTANCE_FOLDER / "writer.env"
    serve(box, first)
    assert (placed.read_text(), stat.S_IMODE(placed.stat().st_mode)) == ("TOKEN=one\n", 0o600)
    serve(box, second)
    assert placed.read_text() == "TOKEN=two\n"
    assert box.store.record("writer")["secrets"]["hash"] == "two"
    deployment(box).go_back("", undo=False, begin=True, step_s=60)
    assert placed.read_text() == "TOKEN=one\n"
    serve(box, OLD)
    assert not placed.exists()
    manifests = [path.read_text() for path in (box.store.folder / "generations").rglob("*.json")]
    assert not any("TOKEN" in text for text in manifests)


def test_a_deployment_whose_secrets_are_not_there_is_refused_before_anything_stops(box: Box) -> None:
    serve(box, OLD)
    wanted = with_secrets(box, NEW, "one")
    (box.store.folder / "secrets" / "one.env").unlink()
    with pytest.raises(_generation.GenerationError, match="secrets of vllm-reader"):
        serve(box, wanted)
    assert box.serves(OLD)
    assert box.store.marker() is None


def test_going_back_to_secrets_that_are_gone_is_refused_by_a_trial_already(box: Box) -> None:
    first = with_secrets(box, OLD, "one")
    serve(box, first)
    serve(box, NEW)
    (box.store.folder / "secrets" / "one.env").unlink()
    with pytest.raises(_generation.GenerationError, match="secrets of vllm-writer"):
        deployment(box, check_mode=True).go_back("", undo=False, begin=True, step_s=0)
    assert box.serves(NEW)


def test_an_engine_that_failed_its_soak_is_gone_back_to_where_it_is_named_alone(box: Box) -> None:
    serve(box, OLD)
    soak = {"spec": "old", "verdict": "failed", "because": "3 of 400 answers are garbage."}
    box.store.keep_record("writer", {**box.store.record("writer"), "soak": soak})
    assert deployment(box).as_dict()["good"][0]["instances"][0]["soak"] == "failed"
    serve(box, generation(writer="new"))
    said = {one["instances"][0]["spec"]: one["instances"][0] for one in deployment(box).as_dict()["good"]}
    assert (said["new"]["proven"], said["new"]["soak"]) == (True, "")
    assert (said["old"]["proven"], said["old"]["soak"]) == (False, "failed")
    with pytest.raises(_deployment.DeploymentError, match=r"is not proven: its soak failed: 3 of 400 .*; name the"):
        deployment(box).go_back("", undo=False, begin=True, step_s=60)
    assert box.engines == {"writer": "new"}
    outcome = deployment(box).go_back(OLD.id, undo=False, begin=True, step_s=60)
    assert outcome.message.endswith(". Not proven: vllm-writer (its soak failed: 3 of 400 answers are garbage)")
    assert not box.store.record("writer")["proven"]
    # What is undone is the switch, whatever it came from.
    serve(box, generation(writer="newer"))
    assert deployment(box).go_back("", undo=True, begin=True, step_s=60).generation == OLD.id


def test_an_engine_that_failed_its_soak_and_serves_in_any_case_keeps_nobody_from_going_back(box: Box) -> None:
    serve(box, generation(neighbour="beside", writer="old"))
    serve(box, generation(neighbour="beside", writer="new"))
    soak = {"spec": "beside", "verdict": "failed", "because": "3 of 400 answers are garbage."}
    box.store.keep_record("neighbour", {**box.store.record("neighbour"), "soak": soak})
    outcome = deployment(box).go_back("", undo=False, begin=True, step_s=60)
    assert not outcome.failed
    assert outcome.message.endswith("Not proven: vllm-neighbour (its soak failed: 3 of 400 answers are garbage)")
    assert box.engines == {"neighbour": "beside", "writer": "old"}


def test_what_serves_without_a_generation_is_adopted_to_go_back_to(box: Box) -> None:
    serve(box, OLD)
    text = "# Rendered\nTOKEN=kept\n"
    (box.root / _instance.INSTANCE_FOLDER / "writer.env").write_text(text)
    (box.store.folder / "deployment.json").unlink()
    box.broken.add("new")
    outcome = serve(box, NEW)
    assert outcome.last is not None
    assert outcome.last.outcome == "restored"
    assert box.engines == {"writer": "old"}
    assert (box.root / _instance.INSTANCE_FOLDER / "writer.env").read_text() == text


@pytest.mark.parametrize("lost", ["manifest", "secrets"])
def test_what_serves_is_adopted_anew_where_its_generation_is_not_whole_any_more(box: Box, lost: str) -> None:
    serve(box, generation(writer="older"))
    old = with_secrets(box, OLD, "one")
    serve(box, old)
    if lost == "manifest":
        (box.store.folder / "generations" / old.id / "manifest.json").write_text("{")
    else:
        (box.store.folder / "secrets" / "one.env").unlink()
    box.broken.add("new")
    outcome = serve(box, NEW)
    assert outcome.last is not None
    assert outcome.last.outcome == "restored"
    assert box.engines == {"writer": "old"}
    assert (box.root / _instance.INSTANCE_FOLDER / "writer.env").read_text() == "TOKEN=one\n"
    # What cannot be gone back to any more takes no place.
    assert box.store.ledger().good == (outcome.last.before, generation(writer="older").id)


@pytest.mark.parametrize("lost", ["manifest", "ledger"])
@pytest.mark.parametrize("state", ["restarting", "failed"])
def test_a_neighbour_that_does_not_serve_at_that_moment_is_adopted_as_well(box: Box, lost: str, state: str) -> None:
    old = generation(neighbour="beside", writer="old")
    serve(box, old)
    if lost == "manifest":
        (box.store.folder / "generations" / old.id / "manifest.json").unlink()
    else:
        (box.store.folder / "deployment.json").unlink()
    box.engines.pop("neighbour")
    if state == "failed":
        box.failed.add("neighbour")
    box.wrong.add("new")
    outcome = serve(box, generation(neighbour="beside", writer="new"))
    assert outcome.last is not None
    assert outcome.last.outcome == "restored"
    assert box.serves(old)


def test_a_neighbour_that_cannot_be_adopted_is_not_taken_away(box: Box) -> None:
    old, new = generation(neighbour="beside", writer="old"), generation(neighbour="beside", writer="new")
    serve(box, old)
    (box.store.folder / "generations" / old.id / "manifest.json").unlink()
    (box.root / _instance.INSTANCE_FOLDER / "neighbour.json").write_text("{")
    box.wrong.add("new")
    outcome = serve(box, new)
    assert outcome.last is not None
    assert outcome.last.outcome == "down"
    assert "What the switch had not touched was left alone: neighbour." in outcome.message
    assert (box.engines, box.enabled) == ({"neighbour": "beside"}, {"neighbour"})


def test_what_somebody_keeps_down_is_not_adopted(box: Box) -> None:
    serve(box, generation(neighbour="beside", writer="old"))
    (box.store.folder / "deployment.json").unlink()
    box.systemctl("disable", now=True, name="neighbour")
    box.wrong.add("new")
    outcome = serve(box, generation(writer="new"))
    assert outcome.last is not None
    assert outcome.last.outcome == "restored"
    assert box.serves(OLD)


def test_a_box_without_a_whole_generation_that_serves_nothing_can_go_on(box: Box) -> None:
    serve(box, OLD)
    (box.store.folder / "generations" / OLD.id / "manifest.json").unlink()
    box.systemctl("disable", now=True, name="writer")
    box.broken.add("new")
    failed = serve(box, NEW)
    assert failed.last is not None
    assert failed.last.outcome == "down"
    assert box.serves(_generation.Generation())
    box.broken.clear()
    assert not serve(box, NEW).failed


def test_a_box_whose_adopted_engine_comes_up_no_more_can_go_on(box: Box) -> None:
    serve(box, OLD)
    (box.store.folder / "deployment.json").unlink()
    box.engines.clear()
    box.broken |= {"old", "new"}
    failed = serve(box, NEW)
    assert failed.last is not None
    assert failed.last.outcome == "down"
    assert "systemd goes on with vllm-writer.service." in failed.message
    assert box.enabled == {"writer"}
    box.broken.clear()
    assert not serve(box, NEW).failed


def test_a_box_says_what_it_serves_and_what_it_could_go_back_to(box: Box) -> None:
    serve(box, OLD)
    serve(box, NEW)
    said = deployment(box).as_dict()
    assert said["serving"] == NEW.id
    assert [one["id"] for one in said["good"]] == [NEW.id, OLD.id]
    assert said["good"][1]["instances"][0]["model_role"] == "writer"
    assert said["good"][1]["instances"][0]["group"] is None
    assert said["last"]["outcome"] == "served"
    assert said["under_way"] == ""


def test_a_damaged_generation_keeps_its_place_among_the_good_ones(box: Box) -> None:
    newer = generation(writer="newer")
    for one in (OLD, NEW, newer):
        serve(box, one)
    manifest = box.store.folder / "generations" / NEW.id / "manifest.json"
    manifest.write_text(manifest.read_text(encoding="utf-8")[:50], encoding="utf-8")
    said = deployment(box).as_dict()["good"]
    assert [(one["id"], one["damaged"]) for one in said] == [(newer.id, False), (NEW.id, True), (OLD.id, False)]
    assert said[1]["instances"] == []
    assert said[1]["answered_at"]


def test_a_rank_says_which_group_it_is_of_and_what_its_boxes_have_in_common(box: Box) -> None:
    members = [{"rank": at, "box": f"spark-{at}", "address": f"192.168.100.1{at}"} for at in range(2)]
    serve(box, generation({"name": "pair", "rank": 1, "members": members, "spec": "same"}, big="one"))
    rank = {"name": "pair", "boxes": ["spark-0", "spark-1"], "spec": "same"}
    assert deployment(box).as_dict()["good"][0]["instances"][0]["group"] == rank
    assert _instance.observe(box.run, "big", box.root).as_dict()["group"] == rank
