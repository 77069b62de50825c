# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook that goes back, on boxes that are folders: who goes with whom is told by the boxes alone."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _files, _generation
from tests.unit.support import box_commands
from tests.unit.support.switch_box import generation

CHECKOUT = pathlib.Path(__file__).parents[3]
SCRIPTS = pathlib.Path(sys.executable).parent
PAIR = ("spark-2", "spark-3")
BOXES = ("spark-1", *PAIR)
SWITCH = "Go back, and prove it"


def rank(box: str, deployment: str) -> _generation.Generation:
    """Return the generation of a box of the pair; its engine is another one on each box, the group's spec is not."""
    members = [{"rank": at, "box": one, "address": f"192.168.100.1{at}"} for at, one in enumerate(PAIR)]
    group = {"name": "pair", "rank": PAIR.index(box), "members": members, "spec": f"{deployment}-of-pair"}
    return generation(group, big=f"{deployment}_{box[-1]}")


def alone(spec: str) -> _generation.Generation:
    return generation(writer=spec)


class Fleet:
    """Boxes in folders, and an inventory that knows nothing of what they served."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.boxes = {name: box_commands.CommandedBox(folder / name) for name in BOXES}
        for name in BOXES:  # where whoever prepared them has put the program
            (folder / name / "usr/local/lib/gb10-fleet").mkdir(parents=True)

    def served(self, name: str, *generations: _generation.Generation) -> None:
        """Have a box serve these, one after the other."""
        for one in generations:
            self.boxes[name].serve(one)

    def serving(self) -> dict[str, str]:
        """Return the fingerprints of the engines that run, and whether each box agrees with itself."""
        found = {}
        for name, box in self.boxes.items():
            serving = box.store.ledger().serving
            assert not serving or box.serves(box.store.load(serving))
            found[name] = " ".join(box.engines.values())
        return found

    def starts(self) -> list[list[str]]:
        return [list(box.starts) for box in self.boxes.values()]

    def go_back(self, *, limit: str = "", check: bool = False, **extra: t.Any) -> Run:
        hosts = {name: {"ansible_python_interpreter": str(box.interpreter)} for name, box in self.boxes.items()}
        common = {"ansible_connection": "local", "ansible_become": False}
        groups: dict[str, t.Any] = {"pair": {"hosts": {name: {} for name in PAIR}}}
        inventory = {"sparks": {"hosts": hosts, "vars": common, "children": groups}}
        (self.folder / "hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
        extra["__vllm_server_sysroot"] = f"{self.folder}/{{{{ inventory_hostname }}}}"
        command: list[str | pathlib.Path] = [SCRIPTS / "ansible-playbook", CHECKOUT / "playbooks/rollback.yml"]
        command += ["--inventory", self.folder / "hosts.json", "--extra-vars", json.dumps(extra)]
        command += ["--limit", limit] if limit else []
        command += ["--check"] if check else []
        # Not by ansible-runner, which forks, and here are the threads of the boxes.
        env = {
            "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"),
            "ANSIBLE_INVENTORY_ENABLED": "yaml",
            "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "1",
            "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
        }
        return Run.of(subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False))


@dataclasses.dataclass(frozen=True)
class Run:
    """How a run ended: what the tasks said, and which boxes were switched at once."""

    ok: bool
    said: str
    failures: str
    batches: list[list[str]]
    output: str

    @classmethod
    def of(cls, done: subprocess.CompletedProcess[str]) -> Run:
        output = done.stdout + done.stderr
        # Progress is shown first, then all results at once.
        plays = json.loads(done.stdout[done.stdout.index("{\n") :])["plays"]
        tasks = [(one["task"]["name"], one["hosts"]) for play in plays for one in play["tasks"]]
        results = [(box, one) for _task, hosts in tasks for box, one in hosts.items()]
        return cls(
            ok=done.returncode == 0,
            said="\n".join(f"{box}: {one.get('msg', '')}" for box, one in results),
            failures="\n".join(str(one.get("msg", "")) for _box, one in results if one.get("failed")),
            batches=[sorted(hosts) for task, hosts in tasks if SWITCH in task],
            output=output,
        )


@pytest.fixture
def new_boxes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> c.Iterator[Fleet]:
    """Boxes that have served nothing yet."""
    monkeypatch.setattr(_files.os, "fsync", lambda _descriptor: None)
    made = Fleet(tmp_path)
    yield made
    for box in made.boxes.values():
        box.close()


@pytest.fixture
def fleet(new_boxes: Fleet) -> Fleet:
    """A box of its own and a pair, both of which have served something before."""
    made = new_boxes
    made.served("spark-1", alone("old"), alone("new"))
    for box in PAIR:
        made.served(box, rank(box, "old"), rank(box, "new"))
    return made


NEW = {"spark-1": "new", "spark-2": "new_2", "spark-3": "new_3"}
OLD = {"spark-1": "old", "spark-2": "old_2", "spark-3": "old_3"}


def test_both_boxes_of_a_pair_go_back_at_once_in_a_run_without_a_limit_and_forth_again(fleet: Fleet) -> None:
    trial = fleet.go_back(check=True)
    assert trial.ok, trial.output
    before, after = rank("spark-2", "new").id, rank("spark-2", "old").id
    big = "vllm-big (model role big, image sha256:abababababab)"
    assert f"spark-2: go back from generation {before}, {big}, to {after}, {big}, which has answered at " in trial.said
    assert ", together with spark-3. The next site.yml" in trial.said
    assert fleet.serving() == NEW

    run = fleet.go_back()
    assert run.ok, run.output
    assert run.batches == [["spark-1"], ["spark-2", "spark-3"]]
    assert fleet.serving() == OLD
    # That of an earlier version may not know what it is asked for.
    assert all((fleet.folder / name / "usr/local/lib/gb10-fleet/fleet.pyz").exists() for name in BOXES)
    again = fleet.go_back(limit="pair", fleet_batches=1)
    assert again.ok, again.output
    assert again.batches == [["spark-2", "spark-3"]]
    assert fleet.serving() == {**OLD, "spark-2": "new_2", "spark-3": "new_3"}


def leave_the_pair(fleet: Fleet) -> None:
    for box in PAIR:
        fleet.served(box, alone(f"alone_{box[-1]}"))


def lose_an_image(fleet: Fleet) -> None:
    fleet.boxes["spark-3"].images.clear()


def change_one_alone(fleet: Fleet) -> None:
    fleet.served("spark-3", generation(neighbour="beside"), rank("spark-3", "new"))


def damage_the_one_before(fleet: Fleet) -> None:
    fleet.served("spark-1", alone("newer"))
    manifest = fleet.boxes["spark-1"].store.folder / "generations" / alone("new").id / "manifest.json"
    manifest.write_text(manifest.read_text(encoding="utf-8")[:50], encoding="utf-8")


def nothing(_fleet: Fleet) -> None:
    pass


@pytest.mark.parametrize(
    ("prepare", "options", "says"),
    [
        (nothing, {"limit": "spark-2"}, "spark-3 is not in this run; run it for all of them: -l pair."),
        (
            leave_the_pair,
            {"limit": "spark-3"},
            "become a rank of the serving group pair (spark-2, spark-3), whose ranks start and stop together only",
        ),
        (change_one_alone, {"limit": "pair"}, f"-e rollback_to={rank('spark-2', 'old').id}. Nothing was changed."),
        (
            damage_the_one_before,
            {"limit": "spark-1"},
            f"name another one to pass over it (-e rollback_to={alone('old').id}). Nothing was changed.",
        ),
        (lose_an_image, {}, "is not on the box any more; `docker pull"),
        (nothing, {"rollback_to": "0123456789ab"}, "spark-1 cannot go back to 0123456789ab: the good ones that it has"),
        (nothing, {"fleet_batches": "half"}, "fleet_batches: 'half' is no size of a batch; write numbers of boxes or"),
    ],
)
def test_what_cannot_be_done_on_all_boxes_is_refused_before_any_is_touched(
    fleet: Fleet, prepare: c.Callable[[Fleet], None], options: dict[str, t.Any], says: str
) -> None:
    prepare(fleet)
    before, starts = fleet.serving(), fleet.starts()
    run = fleet.go_back(**options)
    assert not run.ok, run.output
    assert says in run.failures
    assert run.batches == []
    assert (fleet.serving(), fleet.starts()) == (before, starts)


def test_the_others_of_a_pair_follow_the_generation_that_one_of_them_has(fleet: Fleet) -> None:
    change_one_alone(fleet)
    run = fleet.go_back(limit="pair", rollback_to=rank("spark-2", "old").id)
    assert run.ok, run.output
    assert fleet.serving() == {**NEW, "spark-2": "old_2", "spark-3": "old_3"}


def test_where_one_rank_cannot_go_back_both_serve_again_what_they_served(fleet: Fleet) -> None:
    fleet.boxes["spark-3"].wrong.add("old_3")
    run = fleet.go_back(limit="pair")
    assert not run.ok
    assert f"Generation {rank('spark-3', 'new').id} was restored and serves again" in run.failures
    assert "It serves again what it served, because spark-3 of its serving group could not go back." in run.failures
    assert fleet.serving() == NEW
    assert fleet.boxes["spark-2"].starts[-2:] == ["old_2", "new_2"]


def test_an_engine_that_failed_its_soak_is_gone_back_to_where_it_is_named_alone(fleet: Fleet) -> None:
    store = fleet.boxes["spark-1"].store
    soak = {"spec": "old", "verdict": "failed", "because": "3 of 400 answers are garbage."}
    store.keep_record("writer", {**store.record("writer"), "earlier_soaks": [soak]})
    refused = fleet.go_back(limit="spark-1")
    assert not refused.ok
    named = f"-e rollback_to={alone('old').id}"
    assert "vllm-writer (its soak failed: 3 of 400 answers are garbage); name another one" in refused.failures
    assert named in refused.failures
    assert fleet.serving() == NEW
    run = fleet.go_back(limit="spark-1", rollback_to=alone("old").id)
    assert run.ok, run.output
    warned = "Not proven: vllm-writer (its soak failed: 3 of 400 answers are garbage)"
    assert f"{warned}. The next site.yml" in run.said
    assert f"serves and has answered: vllm-writer (model role writer, port 8000). {warned}" in run.said
    assert fleet.serving() == {**NEW, "spark-1": "old"}


def test_the_first_box_that_cannot_go_back_stops_the_others(fleet: Fleet) -> None:
    fleet.boxes["spark-1"].wrong.add("old")
    run = fleet.go_back()
    assert not run.ok
    assert run.batches == [["spark-1"]]
    assert fleet.serving() == NEW


def test_a_box_without_any_generation_is_named_with_those_that_can_go_back(new_boxes: Fleet) -> None:
    fleet = new_boxes
    for box in PAIR:
        fleet.served(box, alone("one"), rank(box, "old"))
    run = fleet.go_back(check=True)
    said = (
        "spark-1 cannot go back to an earlier generation: the good ones that it has are none, and none serves now; "
        "run it for the others alone (-l spark-2,spark-3). Nothing was changed."
    )
    assert run.failures == said, run.output
    run = fleet.go_back(limit="spark-2,spark-3")
    assert run.ok, run.output
    # Both leave the pair, so they go at once.
    assert run.batches == [["spark-2", "spark-3"]]
    assert fleet.serving() == {"spark-1": "", "spark-2": "one", "spark-3": "one"}
