# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import json
import shlex
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _liveness
from ansible_collections.gb10.fleet.plugins.plugin_utils import _unit

DIGEST = "sha256:" + "ab" * 32
INSTANCE: dict[str, t.Any] = {
    "name": "writer",
    "model_role": "writer",
    "kind": "chat",
    "port": 8000,
    "checkpoint": {"repo": "example/writer", "revision": "0123456789abcdef0123456789abcdef01234567"},
    "image": {"name": "vllm/vllm-openai", "digest": DIGEST, "reference": f"vllm/vllm-openai@{DIGEST}"},
    "vllm": "0.32.0",
    "max_model_len": 4096,
    "max_num_seqs": 4,
    "tensor_parallel_size": 1,
    "served_model_name": ["writer", "example/writer"],
    "speculative": {"method": "mtp", "num_speculative_tokens": 2},
    "args": {"compilation_config": {"cudagraph_mode": "PIECEWISE"}, "enforce_eager": True},
    "env": {"VLLM_LOGGING_LEVEL": "DEBUG"},
    "expects": {},
    "measured": {},
}
PLAN: dict[str, t.Any] = {
    "kv_cache_memory_bytes": 67108864,
    "gpu_memory_utilization": 0.3,
    "memory_bytes": 9,
    "memory_floor_bytes": 10,
}


def layout(**changes: t.Any) -> _unit.Layout:
    values: dict[str, t.Any] = {
        "state_folder": "/var/lib/gb10-fleet",
        "config_folder": "/etc/gb10-fleet",
        "listen_address": "127.0.0.1",
        "gpu": "cdi",
        "secrets": {},
        "gate_timeout_s": 240,
        "boot_timeout_s": 1800,
        "proof_timeout_s": 120,
        "stop_timeout_s": 60,
        "start_limit_burst": 3,
    }
    return _unit.Layout(**{**values, **changes})


def argv(**changes: t.Any) -> list[str]:
    return t.cast("list[str]", _unit.unit(INSTANCE, PLAN, layout(**changes))["argv"])


def test_the_container_is_never_privileged_and_shares_network_and_ipc() -> None:
    words = argv()
    assert words[:2] == ["/usr/bin/docker", "run"]
    assert {"--network=host", "--ipc=host", "--pull=never", "--device=nvidia.com/gpu=all"} <= set(words)
    assert not [word for word in words if "privileged" in word or word.startswith("--restart")]


def test_a_box_without_gpu_gets_no_device() -> None:
    assert not [word for word in argv(gpu="none") if word.startswith("--device")]


def test_every_flag_is_there_once_and_the_plan_is_among_them() -> None:
    words = argv()
    flags = words[words.index("serve") :]
    for flag, value in (
        ("--kv-cache-memory-bytes", "67108864"),
        ("--gpu-memory-utilization", "0.3"),
        ("--port", "8000"),
        ("--host", "127.0.0.1"),
        ("--max-model-len", "4096"),
        ("--revision", INSTANCE["checkpoint"]["revision"]),
    ):
        assert flags.count(flag) == 1
        assert flags[flags.index(flag) + 1] == value
    assert json.loads(flags[flags.index("--speculative-config") + 1]) == INSTANCE["speculative"]
    assert flags.count("--enforce-eager") == 1


def test_the_fingerprint_follows_what_the_engine_is_started_with() -> None:
    base = _unit.unit(INSTANCE, PLAN, layout())["spec"]
    assert _unit.unit(copy.deepcopy(INSTANCE), dict(PLAN), layout())["spec"] == base
    changed = copy.deepcopy(INSTANCE)
    changed["max_num_seqs"] = 5
    other = [
        _unit.unit(changed, PLAN, layout())["spec"],
        _unit.unit(INSTANCE, {**PLAN, "kv_cache_memory_bytes": 1}, layout())["spec"],
        _unit.unit(INSTANCE, PLAN, layout(secrets={"HF_TOKEN": "one"}))["spec"],
        _unit.unit(INSTANCE, PLAN, layout(secrets={"HF_TOKEN": "two"}))["spec"],
    ]
    assert len({base, *other}) == 5
    # What only the guard on the box reads does not restart an engine.
    assert _unit.unit(INSTANCE, {**PLAN, "memory_floor_bytes": 11}, layout())["spec"] == base


def test_a_secret_is_only_named_by_its_file() -> None:
    unit = _unit.unit(INSTANCE, PLAN, layout(secrets={"HF_TOKEN": "do-not-show"}))
    assert "--env-file=/etc/gb10-fleet/instances/writer.env" in unit["argv"]
    assert "do-not-show" not in json.dumps(unit)


@pytest.mark.parametrize(
    ("argument", "word"),
    [
        ("--port", "--port"),
        ("", '""'),
        ("a b", '"a b"'),
        ('{"a": "b"}', '"{\\"a\\": \\"b\\"}"'),
        ("100%", '"100%%"'),
        ("$HOME", '"$$HOME"'),
        ("back\\slash", '"back\\\\slash"'),
        ("it's", '"it\'s"'),
        (";", '";"'),
        ("two\nlines", '"two\\x0alines"'),
        ("a\rUser=evil", '"a\\x0dUser=evil"'),
    ],
)
def test_nothing_in_an_argument_is_left_for_systemd_to_read(argument: str, word: str) -> None:
    assert _unit.systemd_word(argument) == word
    if argument.isprintable():  # a shell reads the rest of systemd's quoting the same way
        assert shlex.split(word.replace("%%", "%").replace("$$", "$")) == [argument]


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://127.0.0.1:8000"),
        ("192.0.2.7", "http://192.0.2.7:8000"),
        ("2001:db8::7", "http://[2001:db8::7]:8000"),
    ],
)
def test_an_engine_is_asked_where_it_listens(address: str, url: str) -> None:
    assert _unit.unit(INSTANCE, PLAN, layout(listen_address=address))["settings"]["url"] == url


OBSERVED: dict[str, t.Any] = {
    "placed": ["reader", "writer"],
    "instances": {
        "reader": {"active_state": "active", "running": True, "running_spec": "r"},
        "writer": {"active_state": "active", "running": True, "running_spec": "w"},
    },
}


def wanted(name: str, spec: str) -> dict[str, t.Any]:
    return {"name": name, "spec": spec, "model_role": name, "port": 8000, "proven": True, "because": "it answered"}


@pytest.mark.parametrize(
    ("units", "leaving", "replaced", "starting"),
    [
        ([wanted("reader", "r"), wanted("writer", "w")], [], [], []),
        ([wanted("writer", "w")], ["reader"], [], []),
        ([wanted("writer", "new")], ["reader"], ["writer"], ["writer"]),
        ([wanted("other", "o")], ["reader", "writer"], [], ["other"]),
        ([], ["reader", "writer"], [], []),
    ],
)
def test_a_box_changes_into_exactly_what_is_named(
    units: list[dict[str, t.Any]], leaving: list[str], replaced: list[str], starting: list[str]
) -> None:
    changes = _unit.changes(units, OBSERVED)
    assert (changes["leaving"], changes["replaced"], changes["starting"]) == (leaving, replaced, starting)
    assert len(changes["announcement"]) == len(leaving) + len(starting)


def test_an_engine_that_serves_and_is_disabled_is_announced_and_not_started() -> None:
    disabled = {"placed": ["writer"], "instances": {"writer": {**OBSERVED["instances"]["writer"], "enabled": False}}}
    changes = _unit.changes([wanted("writer", "w")], disabled)
    assert changes["starting"] == []
    assert changes["announcement"] == ["enable vllm-writer: it serves, and would not start at the next boot"]


def test_an_engine_that_runs_but_has_not_answered_yet_is_not_taken_for_serving() -> None:
    booting = {"placed": ["writer"], "instances": {"writer": {**OBSERVED["instances"]["writer"], "active_state": "x"}}}
    assert _unit.changes([wanted("writer", "w")], booting)["starting"] == ["writer"]


LIVENESS = _unit.Liveness(period_s=300, restarts=3, window_s=21600)


@pytest.mark.parametrize(
    ("period", "answer", "every"),
    [(300, 60, 235), (3600, 60, 3535), (120, 24, 93), (22, 10, 11), (16, 10, 5), (15, 10, 5)],
)
def test_a_look_and_the_answer_that_it_waits_for_fit_into_the_period(period: int, answer: int, every: int) -> None:
    liveness = _unit.Liveness(period_s=period, restarts=3, window_s=21600)
    assert (liveness.answer_s, liveness.every_s) == (answer, every)
    # What the box makes of it: it waits for the tokens of others to move, and then for its own.
    given = {"period_s": period, "answer_s": answer, "restarts": 3, "window_s": 21600, "restart_after_hours": 0}
    limits = _liveness.Limits.from_settings(given)
    assert every + limits.witness_s + limits.answer_s <= max(period, 16)


def test_the_watch_is_settled_beside_the_engine_and_does_not_restart_it() -> None:
    off = _unit.unit(INSTANCE, PLAN, layout())
    on = _unit.unit({**INSTANCE, "restart_after_hours": 20}, PLAN, layout(liveness=LIVENESS))
    assert on["spec"] == off["spec"]
    assert off["settings"]["liveness"] is None
    assert on["settings"]["liveness"]["restart_after_hours"] == 20
    names = [[path.rpartition("/")[2] for path in destinations(one)] for one in (off, on)]
    watch = {"gb10-fleet-watch@.service", "gb10-fleet-watch@.timer"}
    assert set(names[1]) - set(names[0]) == watch
    alone = _unit.unit({**INSTANCE, "liveness": False}, PLAN, layout(liveness=LIVENESS))
    assert (alone["spec"], alone["settings"]["liveness"]) == (off["spec"], None)


def destinations(unit: dict[str, t.Any]) -> list[str]:
    """Return where the files of a unit go."""
    return [file["dest"] for file in _unit.files([unit], "/etc/gb10-fleet", "units")]


def rank(number: int, **changes: t.Any) -> dict[str, t.Any]:
    """Return the unit of one rank of two."""
    address = f"192.168.100.{11 + number}"
    members = [{"rank": at, "box": f"spark-{at + 1}", "address": f"192.168.100.{11 + at}"} for at in range(2)]
    instance = {
        **INSTANCE,
        "tensor_parallel_size": 2,
        "nnodes": 2,
        "node_rank": number,
        "master_addr": "192.168.100.11",
        "master_port": 29501,
        "env": {**INSTANCE["env"], "VLLM_HOST_IP": address, "GLOO_SOCKET_IFNAME": f"enp1s0f{number}np0"},
        "box_env": ["GLOO_SOCKET_IFNAME", "VLLM_HOST_IP"],
        "devices": ["/dev/infiniband"],
        "serving_group": {"name": "pair", "rank": number, "members": members, "peer_port": 29511},
        **({"headless": True} if number else {}),
        **changes,
    }
    return _unit.unit(instance, PLAN, layout())


def test_the_ranks_of_a_group_differ_in_their_rank_and_in_what_is_of_their_box() -> None:
    head, follower = rank(0), rank(1)
    only_head = [word for word in head["argv"] if word not in follower["argv"]]
    only_follower = [word for word in follower["argv"] if word not in head["argv"]]
    assert [word for word in only_head if "label" not in word] == [
        "--env=GLOO_SOCKET_IFNAME=enp1s0f0np0",
        "--env=VLLM_HOST_IP=192.168.100.11",
        "0",
    ]
    assert [word for word in only_follower if "label" not in word] == [
        "--env=GLOO_SOCKET_IFNAME=enp1s0f1np0",
        "--env=VLLM_HOST_IP=192.168.100.12",
        "1",
        "--headless",
    ]
    for one in (head, follower):
        words = " ".join(one["argv"])
        assert "--tensor-parallel-size 2 --nnodes 2 --node-rank" in words
        assert "--master-addr 192.168.100.11 --master-port 29501" in words
        assert "--device=/dev/infiniband" in words
    assert head["spec"] != follower["spec"]


@pytest.mark.parametrize("gpu", ["cdi", "none"])
def test_a_container_gets_what_rdma_needs_once(gpu: str) -> None:
    container = {"ulimits": {"memlock": "-1", "stack": "67108864"}, "capabilities": ["IPC_LOCK"]}
    instance = {**INSTANCE, "devices": ["/dev/infiniband"], **container}
    argv = _unit.docker_run(instance, [], layout(gpu=gpu), {})
    for word in ("--ulimit=memlock=-1", "--ulimit=stack=67108864", "--cap-add=IPC_LOCK", "--device=/dev/infiniband"):
        assert argv.count(word) == 1
    assert ("--ulimit=memlock=-1" in _unit.docker_run(INSTANCE, [], layout(gpu=gpu), {})) is (gpu == "cdi")


def test_a_speculating_group_is_proven_on_all_boxes_by_a_soak_of_its_head() -> None:
    head, follower = rank(0), rank(1)
    assert (head["proven"], follower["proven"]) == (False, True)
    assert [one["settings"]["max_num_seqs"] for one in (head, follower)] == [4, 4]
    record = {"recorded_spec": follower["spec"], "proven": follower["proven"], "because": follower["because"]}
    assert _unit.changes([follower], {"placed": [], "instances": {"writer": record}})["unproven"] == []


def test_ranks_that_were_deployed_alike_know_each_other_by_their_settings() -> None:
    spec = rank(0)["settings"]["group"]["spec"]
    assert rank(1)["settings"]["group"]["spec"] == spec
    other_image = {**INSTANCE["image"], "reference": "vllm/vllm-openai@sha256:" + "cd" * 32}
    for changes in ({"max_num_seqs": 8}, {"image": other_image}, {"master_port": 29502}):
        assert rank(1, **changes)["settings"]["group"]["spec"] != spec
    env = {**INSTANCE["env"], "VLLM_LOGGING_LEVEL": "INFO", "VLLM_HOST_IP": "192.168.100.12"}
    assert rank(1, env=env)["settings"]["group"]["spec"] != spec


def test_an_instance_of_one_box_has_no_group_and_no_daemon() -> None:
    alone, head = _unit.unit(INSTANCE, PLAN, layout()), rank(0)
    assert alone["settings"]["group"] is None
    for units, daemons in (([alone], 0), ([alone, head], 1)):
        templates = [one.get("template") for one in _unit.files(units, "/etc/gb10-fleet", "units")]
        assert templates.count("gb10-fleet-peer@.service.j2") == daemons


def test_what_failed_the_last_time_is_announced_as_another_try() -> None:
    last = {"reason": "vllm-writer.service hangs.", "specs": {"writer": "new"}}
    failed = {**OBSERVED, "deployment": {"last": last}}
    again = _unit.changes([wanted("writer", "new")], failed)["announcement"]
    assert again[-1] == "try again what failed the last time: vllm-writer.service hangs."
    assert not any("try again" in line for line in _unit.changes([wanted("writer", "newer")], failed)["announcement"])


def test_a_set_of_secrets_is_one_file_of_its_own_and_named_by_its_hash() -> None:
    one, two = ([_unit.unit(INSTANCE, PLAN, layout(secrets={"HF_TOKEN": token}))] for token in ("one", "two"))
    files = _unit.files([*one, *one], "/etc/gb10-fleet", "secrets")
    assert [(file["mode"], file["template"]) for file in files] == [("0600", "secrets.env.j2")]
    assert files[0]["dest"] == one[0]["secrets"]["file"] != two[0]["secrets"]["file"]
    assert one[0]["secrets"]["hash"].startswith(files[0]["dest"].removeprefix("/var/lib/gb10-fleet/secrets/")[:32])
    assert _unit.files([_unit.unit(INSTANCE, PLAN, layout())], "/etc/gb10-fleet", "secrets") == []


def test_the_box_is_told_what_a_boot_is_held_to() -> None:
    numbers = {"kv_tokens": {"value": 2176}, "kv_block_size": {"value": 128}, "weights": {"value": 7}}
    instance = {**INSTANCE, "expects": {"moe_backend": "MARLIN"}}
    settings = _unit.unit(instance, {**PLAN, "numbers": numbers}, layout())["settings"]
    assert settings["expects"] == {"moe_backend": "MARLIN"}
    # What the image can run decides as well, where it was looked at.
    expects = {"moe_backend": "MARLIN", "linear_backend": "MarlinNvFp4LinearKernel"}
    for seen, wanted_ in ((True, expects), (False, {"moe_backend": "MARLIN"})):
        planned = {**PLAN, "numbers": numbers, "expects": expects, "image_seen": seen}
        assert _unit.unit(instance, planned, layout())["settings"]["expects"] == wanted_
    assert settings["planned"] == {
        "kv_tokens": 2176,
        "kv_block_size": 128,
        "weights": 7,
        "kv_cache_memory_bytes": PLAN["kv_cache_memory_bytes"],
        "max_model_len": 4096,
        "vllm": "0.32.0",
    }


@pytest.mark.parametrize(
    ("changes", "checks"),
    [
        ({}, []),
        ({"tool_call_parser": "qwen3_coder"}, ["chat", "stream", "completions", "answer", "tools"]),
        ({"tool_call_parser": "qwen3_coder", "kind": "base"}, []),
    ],
)
def test_tool_calls_are_proven_where_there_is_a_parser_for_them(changes: dict[str, str], checks: list[str]) -> None:
    assert _unit.unit({**INSTANCE, **changes}, PLAN, layout())["settings"]["checks"] == checks
