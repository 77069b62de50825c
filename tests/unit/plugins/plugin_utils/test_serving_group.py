# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.plugin_utils import _known_findings
from ansible_collections.gb10.fleet.plugins.plugin_utils import _serving_group as groups
from ansible_collections.gb10.fleet.plugins.plugin_utils._group_vars import Setting
from ansible_collections.gb10.fleet.plugins.plugin_utils._schema import Problem, dotted
from ansible_collections.gb10.fleet.plugins.plugin_utils._unit import Liveness
from tests.unit.support.fabric_boxes import seen
from tests.unit.support.fabric_tree import spark

DIGEST = "sha256:" + "ab" * 32
CATALOGUE: dict[str, t.Any] = {
    "writer": {
        "checkpoint": {"repo": "example/writer", "revision": "0123456789abcdef0123456789abcdef01234567"},
        "image": {"name": "vllm/vllm-openai", "digest": DIGEST},
        "vllm": "0.32.0",
        "max_model_len": 4096,
        "max_num_seqs": 4,
    },
}
CATALOGUE["wide"] = {**CATALOGUE["writer"], "tensor_parallel_size": 2}
CATALOGUE["ray"] = {**CATALOGUE["writer"], "args": {"distributed_executor_backend": "ray"}}
CATALOGUE["named"] = {**CATALOGUE["writer"], "env": {"NCCL_SOCKET_IFNAME": "enp1s0f0np0"}}
PAIR: dict[str, t.Any] = {"model_role": "writer", "tensor_parallel_size": 2}
ADDRESSES = {f"spark-{number}": f"192.168.100.{10 + number}" for number in range(1, 5)}


def fleet(
    declared: dict[str, groups.Declared] | None = None,
    inventory: dict[str, list[str]] | None = None,
    addresses: dict[str, object] | None = None,
    playing: list[str] | None = None,
    value: object = None,
) -> groups.Fleet:
    """Two boxes of the group pair, and a third one beside it."""
    own = groups.Declared(PAIR if value is None else value, "group_vars/pair.yml:1")
    inventory = inventory or {"sparks": ["spark-1", "spark-2", "spark-3"], "pair": ["spark-1", "spark-2"]}
    everybody = inventory["sparks"]
    return groups.Fleet(
        declared={"spark-1": own, "spark-2": own} if declared is None else declared,
        groups={"all": everybody, **inventory},
        addresses=dict(ADDRESSES) if addresses is None else addresses,
        playing=everybody if playing is None else playing,
    )


def problems(value: object, **changes: t.Any) -> list[str]:
    found = fleet(value=value, **changes)
    group, wrong = groups.find("spark-1", found)
    if group:
        wrong += groups.group_problems(group, CATALOGUE, found)
    return [said(one) for one in wrong]


def said(problem: Problem) -> str:
    return f"{dotted(problem.path)}: {problem.what}; {problem.remedy}"


def instance(box: str = "spark-1", value: dict[str, t.Any] | None = None, **variables: t.Any) -> dict[str, t.Any]:
    found = dataclasses.replace(fleet(value=value), environments={box: variables.get("serving_env")})
    group, _wrong = groups.find(box, found)
    if group is None:
        raise AssertionError(box)
    made, wrong = groups.instance_of(box, group, CATALOGUE, found, variables)
    if wrong:
        raise AssertionError([said(one) for one in wrong])
    return made


def test_a_box_without_a_group_is_in_none() -> None:
    assert groups.find("spark-3", fleet()) == (None, [])


def test_the_boxes_of_a_group_are_its_ranks_in_the_order_of_the_inventory() -> None:
    head, follower = instance("spark-1"), instance("spark-2")
    for one, rank in ((head, 0), (follower, 1)):
        assert (one["nnodes"], one["node_rank"], one["tensor_parallel_size"]) == (2, rank, 2)
        assert (one["master_addr"], one["master_port"]) == ("192.168.100.11", 29501)
        assert one["serving_group"]["members"] == [
            {"rank": 0, "box": "spark-1", "address": "192.168.100.11"},
            {"rank": 1, "box": "spark-2", "address": "192.168.100.12"},
        ]
    assert "headless" not in head
    assert follower["headless"] is True
    assert [one["env"]["VLLM_HOST_IP"] for one in (head, follower)] == ["192.168.100.11", "192.168.100.12"]


def test_the_order_of_the_ranks_can_be_given() -> None:
    turned = {**PAIR, "ranks": ["spark-2", "spark-1"]}
    assert instance("spark-2", turned)["node_rank"] == 0
    assert instance("spark-1", turned)["master_addr"] == "192.168.100.12"


def test_a_group_overrides_its_model_role_as_an_entry_of_model_roles_does() -> None:
    made = instance(value={**PAIR, "name": "big", "port": 8100, "max_num_seqs": 2, "args": {"enforce_eager": True}})
    assert (made["name"], made["port"], made["max_num_seqs"]) == ("big", 8100, 2)
    assert made["args"] == {"enforce_eager": True}
    assert made["model_role"] == "writer"


def test_what_one_box_says_reaches_its_own_rank_only() -> None:
    made = instance(serving_env={"NCCL_SOCKET_IFNAME": "enp1s0f1np1"}, serving_devices=["/dev/infiniband"])
    assert made["env"]["NCCL_SOCKET_IFNAME"] == "enp1s0f1np1"
    assert made["box_env"] == ["NCCL_SOCKET_IFNAME", "VLLM_HOST_IP"]
    assert made["devices"] == ["/dev/infiniband"]


def test_layers_can_be_dealt_out_as_well_as_heads() -> None:
    boxes = ["spark-1", "spark-2", "spark-3", "spark-4"]
    value = {"model_role": "writer", "tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    declared = dict.fromkeys(boxes, groups.Declared(value, "group_vars/ring.yml:1"))
    found = fleet(declared, {"sparks": boxes, "ring": boxes})
    group, wrong = groups.find("spark-4", found)
    assert group is not None
    assert not [*wrong, *groups.group_problems(group, CATALOGUE, found)]
    made, wrong = groups.instance_of("spark-4", group, CATALOGUE, found, {})
    assert not wrong
    assert (made["tensor_parallel_size"], made["pipeline_parallel_size"], made["node_rank"]) == (2, 2, 3)


@pytest.mark.parametrize(
    ("value", "boxes", "sizes"),
    [
        ({}, 2, (2, 1)),
        ({"pipeline_parallel_size": 2}, 4, (2, 2)),
        ({"tensor_parallel_size": 3}, 3, (3, 1)),
        ({"pipeline_parallel_size": 2}, 2, (1, 2)),
    ],
)
def test_sizes_that_are_left_out_follow_from_the_boxes(
    value: dict[str, t.Any], boxes: int, sizes: tuple[int, int]
) -> None:
    assert groups.sizes(value, CATALOGUE["writer"], boxes) == sizes


def test_a_size_that_is_left_out_is_that_of_the_model_role() -> None:
    assert groups.sizes({}, CATALOGUE["wide"], 3) == (2, 1)


def test_two_groups_that_read_alike_are_told_apart_by_where_they_were_written() -> None:
    boxes = ["spark-1", "spark-2", "spark-3", "spark-4"]
    first, second = groups.Declared(PAIR, "group_vars/east.yml:2"), groups.Declared(PAIR, "group_vars/west.yml:2")
    declared = dict(zip(boxes, (first, first, second, second), strict=True))
    found = fleet(declared, {"sparks": boxes, "east": boxes[:2], "west": boxes[2:]})
    names = [group.name for box in boxes if (group := groups.find(box, found)[0])]
    assert names == ["east", "east", "west", "west"]


def test_of_two_inventory_groups_with_the_same_boxes_the_one_that_says_it_gives_its_name() -> None:
    inventory = {"sparks": ["spark-1", "spark-2"], "a": ["spark-1", "spark-2"], "pair": ["spark-1", "spark-2"]}
    group, _wrong = groups.find("spark-1", fleet(inventory=inventory))
    assert group is not None
    assert group.name == "pair"


@pytest.mark.parametrize(
    ("value", "changes", "says"),
    [
        ("writer", {}, ("serving_group: 'writer' is a string, not a mapping", "tensor_parallel_size: 2")),
        ({}, {}, ("serving_group.model_role: is missing",)),
        ({**PAIR, "modle_role": "x"}, {}, ("there is no key 'modle_role'", "did you mean model_role")),
        ({**PAIR, "model_role": "wrter"}, {}, ("there is no model role 'wrter'", "did you mean writer")),
        ({**PAIR, "tensor_parallel_size": "2"}, {}, ("'2' is a string, not a whole number",)),
        (
            {**PAIR, "tensor_parallel_size": 4},
            {},
            ("tensor_parallel_size 4 makes 4 ranks", "the group pair has 2 boxes (spark-1, spark-2)"),
        ),
        ({**PAIR, "pipeline_parallel_size": 2}, {}, ("times pipeline_parallel_size 2 makes 4 ranks",)),
        ({**PAIR, "ranks": ["spark-1", "spark-3"]}, {}, ("serving_group.ranks", "spark-1, spark-2", "the head first")),
        ({**PAIR, "ranks": ["spark-1", "spark-1"]}, {}, ("name every box of the group once",)),
        ({**PAIR, "ranks": []}, {}, ("it names no box, and",)),
        ({"role": "writer"}, {}, ("there is no key 'role' here; did you mean model_role?",)),
        (
            PAIR,
            {"inventory": {"sparks": ["spark-1"], "pair": ["spark-1", "spark-2"]}},
            ("spark-2 of the group pair is not in the group sparks", "add it there"),
        ),
        (PAIR, {"addresses": {"spark-1": "fd00::1", "spark-2": "10.0.0.2"}}, ("10.0.0.2 of spark-2 is IPv4",)),
        (PAIR, {"playing": ["spark-1"]}, ("spark-2 of the group pair is not in this run", "-l pair")),
        (PAIR, {"addresses": {"spark-1": "192.0.2.1"}}, ("spark-2 of the group pair does not say", "host_vars")),
        (PAIR, {"addresses": {"spark-1": "10.0.0.01", "spark-2": "10.0.0.2"}}, ("'10.0.0.01' of spark-1 is no IP",)),
        (PAIR, {"addresses": {"spark-1": 5, "spark-2": "10.0.0.2"}}, ("5 of spark-1 is no IP address",)),
        (PAIR, {"addresses": {"spark-1": "127.0.0.1", "spark-2": "10.0.0.2"}}, ("cannot be reached from another",)),
        (PAIR, {"addresses": {"spark-1": "10.0.0.2", "spark-2": "10.0.0.2"}}, ("spark-2 and spark-1 both have",)),
    ],
)
def test_a_wrong_group_is_refused(value: object, changes: dict[str, t.Any], says: tuple[str, ...]) -> None:
    found = "\n".join(problems(value, **changes))
    assert all(part in found for part in says), found


def test_a_group_of_one_box_is_refused() -> None:
    one = groups.Declared({"model_role": "writer"}, "group_vars/solo.yml:1")
    found = fleet({"spark-1": one}, {"sparks": ["spark-1"], "solo": ["spark-1"]})
    group, _wrong = groups.find("spark-1", found)
    assert group is not None
    assert "model_roles of spark-1" in said(next(groups.group_problems(group, CATALOGUE, found)))


def test_a_box_in_two_groups_is_refused() -> None:
    first, second = groups.Declared(PAIR, "group_vars/east.yml:1"), groups.Declared(PAIR, "group_vars/west.yml:1")
    # Ansible gives spark-2 the variables of one of its groups only.
    declared = {"spark-1": first, "spark-2": second, "spark-3": second}
    inventory = {"sparks": list(declared), "east": ["spark-1", "spark-2"], "west": ["spark-2", "spark-3"]}
    group, wrong = groups.find("spark-1", fleet(declared, inventory))
    assert group is None
    assert "spark-2, a box of the group east, is in another serving group as well" in said(wrong[0])


def test_a_second_group_over_the_same_boxes_is_refused_with_both_places() -> None:
    inventory = {"sparks": ["spark-1", "spark-2"], "pair": ["spark-1", "spark-2"], "other": ["spark-1", "spark-2"]}
    naming = {
        "pair": Setting("group_vars/pair.yml:1"),
        "other": Setting("group_vars/other.yml:3", frozenset({"sparks"})),
    }
    both = dataclasses.replace(fleet(inventory=inventory), naming=naming)
    (first,), (second,) = (groups.find(box, both)[1] for box in ("spark-1", "spark-2"))
    assert first == second
    assert (
        "spark-1, spark-2 would be in 2 serving groups, other (group_vars/other.yml:3) and pair (group_vars/pair.yml:1)"
        in said(first)
    )


def test_what_a_group_sets_goes_before_what_the_group_sets_that_it_is_part_of() -> None:
    inventory = {"sparks": ["spark-1", "spark-2"], "pairs": ["spark-1", "spark-2"], "pair": ["spark-1", "spark-2"]}
    naming = {
        "pair": Setting("group_vars/pair.yml:1", frozenset({"pairs", "sparks", "all"})),
        "pairs": Setting("group_vars/pairs.yml:1", frozenset({"sparks", "all"})),
    }
    group, wrong = groups.find("spark-1", dataclasses.replace(fleet(inventory=inventory), naming=naming))
    assert (group is not None, wrong) == (True, [])


def test_a_group_that_is_none_of_the_inventory_is_refused() -> None:
    alone = {"spark-3": groups.Declared(PAIR, "host_vars/spark-3.yml:1")}
    group, wrong = groups.find("spark-3", fleet(alone))
    assert group is None
    assert "group_vars of a group that holds exactly the boxes of its ranks" in said(wrong[0])


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            {**PAIR, "model_role": "ray"},
            "distributed_executor_backend is 'ray', and groups are served by vLLM's own mp",
        ),
        ({**PAIR, "model_role": "named"}, "env sets NCCL_SOCKET_IFNAME for all boxes"),
        ({**PAIR, "env": {"VLLM_HOST_IP": "192.0.2.1"}}, "write serving_address into the host_vars of each box"),
        ({**PAIR, "port": 29501}, "master_port 29501 is the port of the group already"),
        ({**PAIR, "peer_port": 8000}, "peer_port 8000 is the port of the group already"),
        ({**PAIR, "peer_port": 29501}, "peer_port 29501 is the master_port of the group already"),
    ],
)
def test_a_wrong_instance_is_refused(value: dict[str, t.Any], says: str) -> None:
    with pytest.raises(AssertionError) as refused:
        instance(value=value)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"serving_env": {"VLLM_HOST_IP": "192.0.2.1"}}, "write serving_address instead"),
        ({"serving_env": {"NCCL_IB_HCA": "rocepXsYfZ"}}, "'rocepXsYfZ' of spark-1 is a placeholder"),
        ({"serving_env": {"NCCL_IB_GID_INDEX": ""}}, "sets NCCL_IB_GID_INDEX to an empty string"),
        ({"serving_env": []}, "not a mapping"),
        ({"serving_devices": ["infiniband"]}, "is not a path in /dev"),
        ({"serving_devices": ["/dev/../etc"]}, "is not a path in /dev"),
        ({"vllm_server_stop_timeout": 10}, "10 is too short for a rank of the group pair"),
    ],
)
def test_wrong_variables_of_one_box_are_refused(variables: dict[str, t.Any], says: str) -> None:
    group, _wrong = groups.find("spark-1", fleet())
    assert group is not None
    assert says in "\n".join(said(one) for one in groups.rank_problems("spark-1", group, variables))


def test_the_exact_match_of_a_hca_is_no_placeholder() -> None:
    group, _wrong = groups.find("spark-1", fleet())
    assert group is not None
    assert not list(groups.rank_problems("spark-1", group, {"serving_env": {"NCCL_IB_HCA": "=rocep1s0f1"}}))


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"name": "writer", "port": 8001}, "name writer is taken by model_roles of spark-1"),
        ({"name": "reader", "port": 8000}, "port 8000 is the port of reader on spark-1"),
        ({"name": "reader", "port": 29501}, "master_port 29501 is the port of reader"),
        ({"name": "reader", "port": 29511}, "peer_port 29511 is the port of reader"),
    ],
)
def test_an_instance_beside_the_rank_needs_a_name_and_ports_of_its_own(other: dict[str, t.Any], says: str) -> None:
    assert says in "\n".join(said(one) for one in groups.clashes(instance(), [other], "spark-1"))


def test_an_instance_beside_the_rank_is_fine() -> None:
    assert not groups.clashes(instance(), [{"name": "reader", "port": 8001}], "spark-1")


# --- what a fabric gives ---------------------------------------------------------------------------------------------

FABRIC: dict[str, t.Any] = {"members": ["spark-1", "spark-2"]}
LOOKED = {"spark-1": seen(spark(cabled=[1])), "spark-2": seen()}


def on_fabric(
    observed: dict[str, t.Any] | None = None,
    fabric: object = None,
    value: object = None,
    boxes: int = 2,
    trial: bool = False,
    others: tuple[str, ...] = (),
    **variables: dict[str, t.Any],
) -> groups.Fleet:
    """Boxes that are one group with a fabric, and what else their host_vars say; without a look where None is."""
    names = [f"spark-{number}" for number in range(1, boxes + 1)]
    own = groups.Declared(PAIR if value is None else value, "group_vars/pair.yml:1")
    of_box = {name: variables.get(name.replace("-", "_"), {}) for name in names}
    fabric = FABRIC if fabric is None else fabric
    return groups.Fleet(
        declared=dict.fromkeys(names, own),
        groups={"all": [*names, *others], "sparks": [*names, *others], "pair": names},
        addresses={name: of_box[name].get("serving_address") for name in names},
        environments={name: of_box[name].get("serving_env") for name in names},
        playing=names,
        fabrics={name: of_box[name].get("fabric", fabric) for name in names},
        hosts={name: f"10.0.0.{number}" for number, name in enumerate(names, start=21)},
        observed=observed or {},
        looked=observed is not None,
        trial=trial,
    )


def of_rank(box: str, found: groups.Fleet, **variables: t.Any) -> dict[str, t.Any]:
    group, _wrong = groups.find(box, found)
    if group is None:
        raise AssertionError(box)
    wrong = list(groups.group_problems(group, CATALOGUE, found))
    made, more = groups.instance_of(box, group, CATALOGUE, found, variables)
    if wrong or more:
        raise AssertionError([said(one) for one in (*wrong, *more)])
    return made


def complaints(found: groups.Fleet, box: str = "spark-1") -> list[str]:
    group, wrong = groups.find(box, found)
    return [said(one) for one in (*wrong, *(groups.group_problems(group, CATALOGUE, found) if group else ()))]


def test_a_rank_takes_everything_from_the_fabric_of_its_box() -> None:
    head, follower = (of_rank(box, on_fabric(LOOKED)) for box in ("spark-1", "spark-2"))
    assert head["master_addr"] == follower["master_addr"] == "192.168.100.11"
    assert [one["address"] for one in follower["serving_group"]["members"]] == ["192.168.100.11", "192.168.100.12"]
    # Each with the names of its own box: the cable is in another cage.
    assert head["env"] == {
        "VLLM_HOST_IP": "192.168.100.11",
        "NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1",
        "NCCL_NET": "IB",
        **dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), "enp1s0f1np1"),
    }
    assert follower["env"]["NCCL_IB_HCA"] == "rocep1s0f0,roceP2p1s0f0"
    for one in (head, follower):
        assert one["devices"] == ["/dev/infiniband"]
        assert one["ulimits"] == {"memlock": "-1", "stack": "67108864"}
        assert one["capabilities"] == ["IPC_LOCK"]


def test_what_is_of_one_box_only_is_the_same_list_on_every_box() -> None:
    found = on_fabric(LOOKED, spark_1={"serving_env": {"NCCL_DEBUG": "INFO"}})
    head = of_rank("spark-1", found, serving_env={"NCCL_DEBUG": "INFO"})
    follower = of_rank("spark-2", found)
    # Otherwise the ranks would take each other for differently deployed ones, and never start.
    assert head["box_env"] == follower["box_env"]
    assert set(head["box_env"]) == {
        "VLLM_HOST_IP",
        "NCCL_IB_HCA",
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "NCCL_DEBUG",
    }
    same = {box: {k: v for k, v in one["env"].items() if k not in one["box_env"]} for box, one in
            (("spark-1", head), ("spark-2", follower))}  # fmt: skip
    assert same["spark-1"] == same["spark-2"] == {"NCCL_NET": "IB"}


def test_host_vars_override_the_fabric_key_by_key() -> None:
    mine = {
        "serving_address": "192.168.101.11",
        "serving_env": {"NCCL_NET": "Socket", "NCCL_IB_GID_INDEX": 3},
        "serving_devices": [],
    }
    found = on_fabric(LOOKED, spark_1=mine)
    head = of_rank("spark-1", found, **mine)
    assert head["env"]["VLLM_HOST_IP"] == head["master_addr"] == "192.168.101.11"
    assert (head["env"]["NCCL_NET"], head["env"]["NCCL_IB_GID_INDEX"]) == ("Socket", 3)
    assert head["env"]["NCCL_IB_HCA"] == "rocep1s0f1,roceP2p1s0f1"
    assert (head["devices"], head["ulimits"], head["capabilities"]) == ([], {}, [])
    follower = of_rank("spark-2", found)
    assert follower["master_addr"] == "192.168.101.11"
    assert (follower["env"]["NCCL_NET"], follower["devices"]) == ("IB", ["/dev/infiniband"])


def test_what_the_group_says_for_all_boxes_wins_over_the_fabric() -> None:
    value = {**PAIR, "env": {"NCCL_NET": "Socket"}}
    made = of_rank("spark-2", on_fabric(LOOKED, value=value))
    assert made["env"]["NCCL_NET"] == "Socket"
    assert "NCCL_NET" not in made["box_env"]


@pytest.mark.parametrize(
    ("devices", "capabilities"), [([], []), (["/dev/infiniband/uverbs0"], ["IPC_LOCK"]), (["/dev/fuse"], [])]
)
def test_a_rank_without_rdma_may_not_lock_memory(devices: list[str], capabilities: list[str]) -> None:
    box = {"serving_devices": devices, "serving_env": {"NCCL_NET": "Socket"}}
    made = of_rank("spark-2", on_fabric(LOOKED, spark_2=box), **box)
    assert (made["devices"], made["capabilities"]) == (devices, capabilities)
    assert bool(made["ulimits"]) is bool(capabilities)


def test_before_a_look_at_the_boxes_the_addresses_are_known_and_nothing_is_guessed() -> None:
    made = of_rank("spark-2", on_fabric())
    assert (made["master_addr"], made["env"]) == ("192.168.100.11", {"VLLM_HOST_IP": "192.168.100.12"})
    assert (made["devices"], made["ulimits"], made["capabilities"]) == ([], {}, [])


def test_nobody_is_told_to_name_devices_that_the_fabric_names() -> None:
    def ids(made: dict[str, t.Any]) -> list[str]:
        return [one.id for one in _known_findings.known_findings(made, "2026-11-29")]

    assert "NCCL_IB_HCA_NOT_SET" in ids(instance())
    assert "NCCL_IB_HCA_NOT_SET" not in ids(of_rank("spark-1", on_fabric()))
    assert "NCCL_IB_HCA_NOT_SET" not in ids(of_rank("spark-1", on_fabric(LOOKED)))


def test_two_groups_behind_one_switch_have_a_head_each() -> None:
    names = [f"spark-{number}" for number in range(1, 5)]
    fabric = {"topology": "switch", "members": names}
    east, west = groups.Declared(PAIR, "group_vars/east.yml:1"), groups.Declared(PAIR, "group_vars/west.yml:1")
    found = dataclasses.replace(
        on_fabric({name: seen() for name in names}, fabric, boxes=4),
        declared=dict(zip(names, (east, east, west, west), strict=True)),
        groups={"all": names, "sparks": names, "east": names[:2], "west": names[2:]},
    )
    made = of_rank("spark-4", found)
    assert (made["master_addr"], made["env"]["VLLM_HOST_IP"]) == ("192.168.100.13", "192.168.100.14")


@pytest.mark.parametrize("boxes", [3, 4])
def test_the_ranks_of_a_ring_meet_over_the_management_network(boxes: int) -> None:
    names = [f"spark-{number}" for number in range(1, boxes + 1)]
    fabric = {"topology": "ring", "members": names}
    value = {"model_role": "writer", "pipeline_parallel_size": boxes}
    observed = {name: seen(spark(cabled=[0, 1]), {"enP7s7": (f"10.0.0.{at}/24",)}) for at, name in enumerate(names, 11)}
    made = of_rank(names[-1], on_fabric(observed, fabric, value, boxes))
    assert (made["master_addr"], made["env"]["VLLM_HOST_IP"]) == ("10.0.0.11", f"10.0.0.{10 + boxes}")
    assert made["env"]["NCCL_SOCKET_IFNAME"] == "enP7s7"
    assert made["env"]["NCCL_IB_SUBNET_AWARE_ROUTING"] == "1"
    assert len(made["env"]["NCCL_IB_HCA"].split(",")) == 4
    # Before a look at the boxes what Ansible connects to stands in, and a name for nothing.
    assert of_rank(names[-1], on_fabric(None, fabric, value, boxes))["master_addr"] == "10.0.0.21"
    by_name = dataclasses.replace(on_fabric(None, fabric, value, boxes), hosts=dict.fromkeys(names, "box.example"))
    unknown = of_rank(names[-1], by_name)
    assert "master_addr" not in unknown
    assert "VLLM_HOST_IP" not in unknown["env"]


def test_a_group_without_fabric_and_addresses_is_refused_in_one_sentence() -> None:
    (sentence,) = complaints(dataclasses.replace(on_fabric(), fabrics={}))
    assert sentence == (
        "serving_group: nothing says where the ranks of the group pair reach each other: spark-1, spark-2 have neither "
        "a fabric nor a serving_address; put fabric: {members: [spark-1, spark-2]} into the group_vars of pair "
        "(docs/fabric.md), or serving_address into the host_vars of each box"
    )
    (sentence,) = complaints(dataclasses.replace(on_fabric(boxes=3, value={"model_role": "writer"}), fabrics={}))
    assert "fabric: {topology: switch, members: [spark-1, spark-2, spark-3]}" in sentence


def test_a_box_that_the_fabric_leaves_out_is_said_where_its_group_stands() -> None:
    """Each box of the group runs into it; said of the same place, it is one sentence and not three."""
    three: dict[str, t.Any] = {"model_role": "writer", "pipeline_parallel_size": 3}
    found = on_fabric(value=three, boxes=3)
    problems = []
    for box in ("spark-1", "spark-2", "spark-3"):
        group, _wrong = groups.find(box, found)
        assert group is not None
        problems += list(groups.group_problems(group, CATALOGUE, found))
    (one,) = {said(problem) for problem in problems}
    assert one.startswith(
        "serving_group: spark-3 of the group pair does not say where its rank is reached, and no fabric"
    )
    assert all(problem.value is three for problem in problems)


GONE: dict[str, t.Any] = {
    "ports": [],
    "single": [],
    "virtual": [],
    "others": [],
    "management": {},
    "infiniband_devices": [],
}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (on_fabric(fabric={}, spark_1={"fabric": FABRIC}), "spark-2 of the group pair does not say where its rank"),
        (
            on_fabric(fabric={"topology": "switch", "members": ["spark-1", "spark-3"]}, others=("spark-3",)),
            "name it in fabric.members, or put the address of its fabric interface into host_vars of spark-2",
        ),
        (
            on_fabric(fabric={"members": ["spark-1", "spark-3"]}),
            "fabric.members[1]: spark-3 is no host of the group sparks, nor of the inventory at all; did you mean",
        ),
        (on_fabric(fabric={"members": ["spark-1"]}), "fabric.topology: a pair has two members, and there are 1"),
        (
            on_fabric(spark_2={"fabric": {**FABRIC, "first_host": 40}}),
            "pair: its boxes are in different fabrics (spark-1; spark-2)",
        ),
        (
            on_fabric({"spark-1": seen(), "spark-2": seen(spark(cabled=[]))}),
            "spark-2 of the group pair has no cable with a link yet",
        ),
        (on_fabric({"spark-1": seen()}), "the fabric of spark-2, of the group pair, could not be read"),
        (
            on_fabric({"spark-1": seen(), "spark-2": {**seen(), "infiniband_devices": []}}),
            (
                "spark-2 has no /dev/infiniband, so no container can use RDMA, and NCCL would quietly use TCP "
                "[INFINIBAND_DEVICES_MISSING]"
            ),
        ),
        (
            on_fabric(
                dict.fromkeys(["spark-1", "spark-2", "spark-3"], GONE),
                {"topology": "ring", "members": [{"box": f"spark-{n}", "interfaces": list("abcd")} for n in (1, 2, 3)]},
                {"model_role": "writer"},
                3,
            ),
            "has no cable with a link yet",
        ),
        (on_fabric(LOOKED, spark_1={"serving_address": "192.168.100.12"}), "spark-2 and spark-1 both have"),
    ],
)
def test_a_group_whose_fabric_is_not_enough_is_refused(found: groups.Fleet, says: str) -> None:
    told = "\n".join(complaints(found))
    assert says in told, told


def test_a_ring_whose_management_address_nobody_knows_is_refused_once_it_was_looked_at() -> None:
    names = ["spark-1", "spark-2", "spark-3"]
    observed = {name: {**seen(spark(cabled=[0, 1])), "others": []} for name in names}
    found = on_fabric(observed, {"topology": "ring", "members": names}, {"model_role": "writer"}, 3)
    by_name = dataclasses.replace(found, hosts=dict.fromkeys(names, "box.example"))
    assert "spark-2 of the group pair shows no IPv4 address there" in "\n".join(complaints(by_name))


def test_a_trial_run_lives_with_what_cannot_be_known_without_a_change() -> None:
    missing = {**seen(), "infiniband_devices": []}
    assert not complaints(on_fabric({"spark-1": seen(), "spark-2": missing}, trial=True))
    assert not complaints(on_fabric({"spark-1": seen()}, trial=True))
    # A cable is not plugged in by the run that is tried.
    assert complaints(on_fabric({"spark-1": seen(), "spark-2": seen(spark(cabled=[]))}, trial=True))


def test_a_group_that_says_all_by_hand_is_not_held_to_a_fabric_that_cannot_be_set_up() -> None:
    one, two = ({"serving_address": f"192.168.100.{number}"} for number in (11, 12))
    observed = {"spark-1": seen(), "spark-2": {**seen(), "infiniband_devices": []}}
    assert not complaints(on_fabric(observed, spark_1=one, spark_2=two))


def against(variables: dict[str, t.Any], value: object = None) -> list[tuple[str, str]]:
    """Return what of the host_vars of spark-1 goes against its fabric."""
    found = on_fabric(LOOKED, value=value, spark_1=variables)
    group, _wrong = groups.find("spark-1", found)
    if group is None:
        raise AssertionError
    made = of_rank("spark-1", found, **variables)
    return [(dotted(path), one.id) for path, one in groups.contradictions("spark-1", group, found, made, variables)]


def test_what_goes_against_the_fabric_is_told_by_its_key() -> None:
    assert against({}) == []
    assert against({"serving_address": "192.168.100.99"}) == [("serving_address", "SERVING_ADDRESS_NOT_OF_BOX")]
    hca = {"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0"}
    assert against({"serving_env": hca}) == [("serving_env.NCCL_IB_HCA", "SERVING_HCA_NOT_PLANNED")]
    # The same for all boxes, whose cages differ.
    assert against({}, {**PAIR, "env": hca}) == [("serving_group.env.NCCL_IB_HCA", "SERVING_HCA_NOT_PLANNED")]
    assert against({"serving_devices": []}) == [("serving_devices", "SERVING_DEVICES_WITHOUT_RDMA")]


def test_what_agrees_with_the_fabric_is_not_told() -> None:
    by_hand = {
        "serving_address": "192.168.100.11",
        "serving_env": {"NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1", "GLOO_SOCKET_IFNAME": "enp1s0f1np1"},
        "serving_devices": ["/dev/infiniband"],
    }
    assert against(by_hand) == []


def test_an_idle_head_spends_less_than_a_thousandth_of_its_tokens_on_being_looked_at() -> None:
    # docs/liveness.md, "What it costs": three tokens for each beat, and for every fourth look of the watch.
    day = 24 * 3600
    looks = day / Liveness(period_s=300, restarts=3, window_s=21600).every_s
    assert 3 * (day / groups._HEARTBEAT_S + looks / 4) < 0.001 * 20 * day
