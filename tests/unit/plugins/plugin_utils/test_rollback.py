# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where boxes go back to. A box is written as its good generations, the newest first, which is the one that serves."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.plugin_utils import _rollback

INVENTORY = {"all": ["a", "b", "c", "d"], "pair": ["a", "b"], "other": ["a", "b", "c"]}
MEMBERS = {"pair": ("a", "b"), "other": ("b", "c"), "gone": ("a", "z")}


def good(text: str) -> _rollback.Good:
    """Read "id", "id!" for a damaged one, or "id=pair:1" for a rank of the group pair as it was deployed at first."""
    name, _, rank = text.partition("=")
    if name.endswith("!"):
        return _rollback.Good(name[:-1], damaged=True)
    group, _, spec = rank.partition(":")
    return _rollback.Good(name, "then", (name,), (_rollback.Rank(group, MEMBERS[group], spec),) if group else ())


def box(name: str, text: str) -> _rollback.Box:
    generations = tuple(map(good, text.split()))
    return _rollback.Box(name, generations[0].id, generations, generations[0].ranks)


def planned(wanted: str = "", /, **boxes: str) -> _rollback.Plan:
    named = wanted.split(",") if wanted else []
    return _rollback.plan([box(*one) for one in boxes.items()], named, INVENTORY)


@pytest.mark.parametrize(
    ("wanted", "boxes", "targets", "together"),
    [
        ("", {"a": "a2 a1", "b": "b3 b2 b1"}, {"a": "a1", "b": "b2"}, []),
        # Both were switched together the last time: to another deployment, from single boxes, and to them.
        ("", {"a": "a2=pair:2 a1=pair:1", "b": "b2=pair:2 b1=pair:1"}, {"a": "a1", "b": "b1"}, ["ab"]),
        ("", {"a": "a2=pair:2 a1", "b": "b2=pair:2 b1", "c": "c2 c1"}, {"a": "a1", "b": "b1", "c": "c1"}, ["ab"]),
        ("", {"a": "a2 a1=pair:1", "b": "b2 b1=pair:1"}, {"a": "a1", "b": "b1"}, ["ab"]),
        # One generation of one rank is enough, and the other goes to its newest with the same deployment.
        ("a1", {"a": "a2=pair:2 a1=pair:1", "b": "b3=pair:2 b2 b1=pair:1"}, {"a": "a1", "b": "b1"}, ["ab"]),
        ("b1", {"a": "a3=pair:1 a1=pair:1", "b": "b2 b1=pair:1"}, {"a": "a3", "b": "b1"}, ["ab"]),
        ("a1,b1", {"a": "a2=pair:2 a1", "b": "b2=pair:2 b3 b1"}, {"a": "a1", "b": "b1"}, ["ab"]),
        # The same content on two boxes is a generation of the same name.
        ("x", {"c": "c2 x", "d": "x d1"}, {"c": "x", "d": "x"}, []),
        # What is damaged keeps nobody from what is not, where that is older than where it goes, serves, or is named.
        ("", {"c": "c3 c2 c1!", "d": "d3! d2"}, {"c": "c2", "d": "d2"}, []),
        ("c1", {"c": "c3 c2! c1"}, {"c": "c1"}, []),
        # One box changes its partner: all three go at once.
        (
            "",
            {"a": "a2=pair:1 a1", "b": "b2=pair:1 b1=other:1", "c": "c2 c1=other:1"},
            {"a": "a1", "b": "b1", "c": "c1"},
            ["abc"],
        ),
    ],
)
def test_where_boxes_go_back_to_and_which_of_them_at_once(
    wanted: str, boxes: dict[str, str], targets: dict[str, str], together: list[str]
) -> None:
    plan = planned(wanted, **boxes)
    assert plan.problems == ()
    assert {name: one.id for name, one in plan.targets.items()} == targets
    assert ["".join(some) for some in plan.together] == together


@pytest.mark.parametrize(
    ("wanted", "boxes", "says"),
    [
        (
            "",
            {"a": "a1", "b": "b2 b1"},
            (
                "a cannot go back to an earlier generation: the good ones that it has are a1, and a1 serves now; "
                "run it for the others alone (-l b). Nothing was changed."
            ),
        ),
        (
            "b1",
            {"a": "a2 a1", "b": "b2 b1"},
            (
                "a cannot go back to b1: the good ones that it has are a2, a1, and a2 serves now; run it for the "
                "others alone (-l b), or name one of its own, too (-e rollback_to=b1,ID). Nothing was changed."
            ),
        ),
        (
            "a1,a2",
            {"a": "a3 a2 a1"},
            "rollback_to names a2, a1 of a; name one of them only. Nothing was changed.",
        ),
        (
            "a1,x",
            {"a": "a2 a1"},
            ("rollback_to names x, which is a good generation of no box of this run (a: a2, a1). Nothing was changed."),
        ),
        (
            "",
            {"c": "c4 c3! c2 c1", "d": "d2 d1"},
            (
                "c would go back to generation c3, which is damaged: /var/lib/gb10-fleet/generations/c3/manifest.json "
                "is missing or not what it was; name another one to pass over it (-e rollback_to=d1,c2 or c1). "
                "Nothing was changed."
            ),
        ),
        (
            "d1,c1",
            {"c": "c3 c2 c1!", "d": "d2 d1"},
            (
                "c would go back to generation c1, which is damaged: /var/lib/gb10-fleet/generations/c1/manifest.json "
                "is missing or not what it was; name another one to pass over it (-e rollback_to=d1,c2). "
                "Nothing was changed."
            ),
        ),
        (
            "",
            {"c": "c2 c1!"},
            (
                "c would go back to generation c1, which is damaged: /var/lib/gb10-fleet/generations/c1/manifest.json "
                "is missing or not what it was; it has no other one, so run site.yml with what it is to serve. "
                "Nothing was changed."
            ),
        ),
        (
            "b1",
            {"a": "a2=pair:2 a1!", "b": "b2=pair:2 b1=pair:1"},
            (
                "a cannot go back to b1: the good ones that it has are a2, a1 (damaged), and a2 serves now; run it "
                "for the others alone (-l b), or name one of its own, too (-e rollback_to=b1,ID). Nothing was changed."
            ),
        ),
        (
            "",
            {"a": "a2=pair:2 a1=pair:1"},
            (
                "a is a rank of the serving group pair (a, b), whose ranks start and stop together only, and b is "
                "not in this run; run it for all of them: -l pair. Nothing was changed."
            ),
        ),
        (
            "",
            {"b": "b2 b1=other:1"},
            (
                "b would, by going back to generation b1, become a rank of the serving group other (b, c), whose "
                "ranks start and stop together only, and c is not in this run; run it for all of them: -l b,c. "
                "Nothing was changed."
            ),
        ),
        (
            "",
            {"a": "a2=gone:1 a1"},
            (
                "a is a rank of the serving group gone (a, z), whose ranks start and stop together only, and z is "
                "not in this run; put z back into the inventory, or say there what to serve instead and run "
                "site.yml. Nothing was changed."
            ),
        ),
        (
            "",
            {"a": "a3=pair:2 a2=pair:1 a1", "b": "b3=pair:2 b2 b1=pair:1"},
            (
                "a and b would not go back to the same deployment of the serving group pair: a to a2 (pair as 1); b"
                " to b2 (no rank of pair); name one of a that the others have, too, and they follow it: -e "
                "rollback_to=a2. Nothing was changed."
            ),
        ),
        (
            "",
            {"a": "a2=pair:2 a1=pair:1", "b": "b2=pair:2 b1=pair:0"},
            (
                "a and b would not go back to the same deployment of the serving group pair: a to a1 (pair as 1); b"
                " to b1 (pair as 0); they have no earlier one in common, so name a generation without the group for"
                " each box, -e rollback_to=ID,ID (the good ones are a: a2, a1; b: b2, b1), or run site.yml with "
                "what they are to serve. Nothing was changed."
            ),
        ),
    ],
)
def test_what_speaks_against_it_is_one_sentence_with_what_to_type(
    wanted: str, boxes: dict[str, str], says: str
) -> None:
    assert planned(wanted, **boxes).problems == (says,)


def said(name: str, *, soak: str = "", role: str = "writer") -> dict[str, t.Any]:
    """Return an instance as a box tells of it. Another model role is another engine."""
    because = "its soak failed: 3 of 400 answers are garbage." if soak == "failed" else "it speculates."
    image = "example/vllm@sha256:" + "ab" * 32
    proof = {"proven": not soak, "because": because, "soak": soak}
    return {"name": name, "spec": f"{name} of {role}", "model_role": role, "image": image, **proof}


def soaked(name: str, soak: str) -> _rollback.Box:
    """Return a box whose earlier generation had a soak that ended like this."""
    good = [
        {"id": f"{name}2", "answered_at": "now", "instances": [said("one", role="other")]},
        {"id": f"{name}1", "answered_at": "then", "instances": [said("one", soak=soak)]},
    ]
    return _rollback.Box.from_plain(name, {"deployment": {"serving": f"{name}2", "good": good}, "instances": {}})


def test_an_engine_that_failed_its_soak_is_gone_back_to_where_it_is_named_alone() -> None:
    boxes = [soaked("a", "failed"), soaked("b", "")]
    refused = (
        "a would go back to generation a1, of which this is not proven: vllm-one (its soak failed: 3 of 400 answers "
        "are garbage); name another one (the good ones that it has are a2, a1), or the same to go there nevertheless "
        "(-e rollback_to=a1,b1). Nothing was changed."
    )
    assert _rollback.plan(boxes, [], INVENTORY).problems == (refused,)
    named = _rollback.plan(boxes, ["a1", "b1"], INVENTORY)
    assert named.problems == ()
    assert named.targets["a"].unproven == ("vllm-one (its soak failed: 3 of 400 answers are garbage)",)


def test_an_engine_that_failed_its_soak_and_serves_in_any_case_keeps_nobody_from_going_back() -> None:
    good = [
        {"id": name, "answered_at": "then", "instances": [said("beside", soak="failed"), said("one", role=role)]}
        for name, role in (("a2", "new"), ("a1", "old"))
    ]
    there = {"deployment": {"serving": "a2", "good": good}, "instances": {}}
    plan = _rollback.plan([_rollback.Box.from_plain("a", there)], [], INVENTORY)
    assert plan.problems == ()
    assert plan.targets["a"].unproven == ("vllm-beside (its soak failed: 3 of 400 answers are garbage)",)
    # After a switch that could not be undone nothing goes on.
    down = _rollback.Box.from_plain("a", {**there, "deployment": {"serving": "", "good": good}})
    assert down.good[1].failed == plan.targets["a"].unproven


def test_an_engine_that_nobody_has_soaked_is_gone_back_to_and_told_of() -> None:
    plan = _rollback.plan([soaked("a", "inconclusive")], [], INVENTORY)
    assert plan.problems == ()
    assert plan.targets["a"].unproven == ("vllm-one (it speculates)",)


def test_both_sides_can_be_told_apart_where_the_instance_has_the_same_name() -> None:
    box = soaked("a", "")
    image = "image sha256:abababababab"
    assert box.engines == (f"vllm-one (model role other, {image})",)
    assert box.good[1].engines == (f"vllm-one (model role writer, {image})",)


def test_everything_is_said_at_once() -> None:
    plan = planned(a="a2=pair:2 a1", c="c2=other:1 c1", d="d1")
    assert [one.partition(" ")[0] for one in plan.problems] == ["d", "a", "c"]


def test_a_damaged_generation_is_told_beside_what_else_speaks_against_it() -> None:
    plan = planned(a="a2=pair:2 a1!", c="c3 c2! c1", d="d2 d1")
    assert [one.partition(" ")[0] for one in plan.problems] == ["a", "c", "a"]
    assert set(plan.targets) == {"d"}


def test_a_box_is_read_from_what_it_says_of_itself() -> None:
    group = {"name": "pair", "boxes": ["a", "b"], "spec": "1"}
    observed = {
        "deployment": {
            "serving": "",
            "good": [{"id": "g", "answered_at": "then", "instances": [{**said("big"), "group": group}, said("one")]}],
        },
        # A switch that could not be undone: no generation serves, and the rank is there nevertheless.
        "instances": {"big": {"name": "big", "group": group}},
    }
    found = _rollback.Box.from_plain("a", observed)
    rank = _rollback.Rank("pair", ("a", "b"), "1")
    engines = tuple(f"vllm-{name} (model role writer, image sha256:abababababab)" for name in ("big", "one"))
    assert found == _rollback.Box("a", "", (_rollback.Good("g", "then", ("big", "one"), (rank,), engines),), (rank,))
