# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The tasks that resolve what a box is to serve, on this machine: folders stand for the boxes' own cards."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import sys
import typing as t

import ansible_runner

from tests.unit.support import fabric_tree

CHECKOUT = pathlib.Path(__file__).parents[3]
SCRIPTS = pathlib.Path(sys.executable).parent
WRITER = {
    "checkpoint": {"repo": "example/writer", "revision": "0123456789abcdef0123456789abcdef01234567"},
    "image": {"name": "vllm/vllm-openai", "digest": "sha256:" + "ab" * 32},
    "vllm": "0.32.0",
    "max_model_len": 4096,
    "max_num_seqs": 4,
}
LOOK_AT_FABRIC: dict[str, t.Any] = {
    "ansible.builtin.include_role": {"name": "gb10.fleet.fabric", "tasks_from": "observe"},
    "when": "fabric is defined",
}
RESOLVE: list[dict[str, t.Any]] = [
    {"ansible.builtin.include_role": {"name": "gb10.fleet.vllm_server", "tasks_from": "resolve"}},
    {"ansible.builtin.debug": {"var": "__vllm_server_resolved.instances"}},
]


def resolve(
    folder: pathlib.Path, *, check: bool = False, rdma: bool = True, fabric: bool = False, **of_box: dict[str, t.Any]
) -> tuple[dict[str, t.Any], str]:
    """Return the rank of each box by its name, and what was said; the cable of spark-1 is in its second cage.

    Without ``rdma`` the driver that makes /dev/infiniband is not loaded yet; ``fabric`` has that role look first.
    """
    play: dict[str, t.Any] = {"hosts": "sparks", "connection": "local", "gather_facts": False}
    play["tasks"] = [*([LOOK_AT_FABRIC] if fabric else []), *RESOLVE]
    hosts = {}
    for number, cage in ((1, 1), (2, 0)):
        root = fabric_tree.build(folder / f"box-{number}", fabric_tree.spark(cabled=[cage]))
        if not rdma:
            shutil.rmtree(root / "dev/infiniband")
        own = {"fabric_sysroot": str(root), "ansible_host": f"10.0.0.{number}"}
        hosts[f"spark-{number}"] = own | of_box.get(f"spark_{number}", {})
    group = {
        "serving_group": {"model_role": "writer", "tensor_parallel_size": 2},
        "fabric": {"members": ["spark-1", "spark-2"]},
    }
    common = {"ansible_python_interpreter": sys.executable, "model_catalogue": {"writer": WRITER}}
    # A third box is in no group: it has nothing to be looked at for.
    alone: dict[str, t.Any] = {"spark-3": {"model_roles": []}}
    inventory = {"sparks": {"hosts": alone, "vars": common, "children": {"pair": {"hosts": hosts, "vars": group}}}}
    (folder / "hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
    (folder / "play.json").write_text(json.dumps([play]), encoding="utf-8")
    (folder / "runner").mkdir()
    runner = ansible_runner.run(
        private_data_dir=str(folder / "runner"),
        playbook=str(folder / "play.json"),
        inventory=str(folder / "hosts.json"),
        cmdline="--check" if check else None,
        envvars={
            "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"),
            "ANSIBLE_INVENTORY_ENABLED": "yaml",
            "ANSIBLE_NOCOLOR": "1",
            "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
        },
        quiet=True,
    )
    ranks = {
        event["event_data"]["host"]: instance
        for event in runner.events
        if event["event"] == "runner_on_ok" and event["event_data"]["task_action"] == "ansible.builtin.debug"
        for instance in event["event_data"]["res"].get("__vllm_server_resolved.instances", [])
    }
    return ranks, runner.stdout.read()


def test_ranks_get_their_network_from_the_boxes_without_a_word_in_host_vars(tmp_path: pathlib.Path) -> None:
    ranks, output = resolve(tmp_path)
    assert sorted(ranks) == ["spark-1", "spark-2"], output
    assert "WARNING" not in output
    assert ranks["spark-2"]["master_addr"] == "192.168.100.11"
    assert {box: one["env"]["NCCL_IB_HCA"] for box, one in ranks.items()} == {
        "spark-1": "rocep1s0f1,roceP2p1s0f1",
        "spark-2": "rocep1s0f0,roceP2p1s0f0",
    }
    assert ranks["spark-1"]["devices"] == ["/dev/infiniband"]


def test_an_address_of_another_box_is_refused_with_its_place(tmp_path: pathlib.Path) -> None:
    ranks, output = resolve(tmp_path, spark_2={"serving_address": "192.168.100.99"})
    assert not ranks or "spark-2" not in ranks
    assert "serving_address: 192.168.100.99 is in 192.168.100.0/24, a subnet of the fabric, and no address" in output
    assert "[SERVING_ADDRESS_NOT_OF_BOX]" in output


def test_a_box_that_cannot_be_read_is_refused_and_left_open_by_a_trial_run(tmp_path: pathlib.Path) -> None:
    broken = {"ansible_python_interpreter": "/nonexistent/python"}
    for check in (False, True):
        folder = tmp_path / str(check)
        folder.mkdir()
        ranks, output = resolve(folder, check=check, spark_2=broken)
        said = "the fabric of spark-2, of the group pair, could not be read, so its interfaces are not known"
        assert (said in " ".join(output.split())) is not check
        assert sorted(ranks) == (["spark-1", "spark-2"] if check else []), output
    assert "spark-2: its fabric could not be read, so what its rank talks over is left open" in " ".join(output.split())
    assert ranks["spark-2"]["env"] == {"VLLM_HOST_IP": "192.168.100.12"}


def test_a_trial_run_does_not_stop_at_a_driver_that_the_run_itself_would_load(tmp_path: pathlib.Path) -> None:
    ranks, output = resolve(tmp_path, check=True, rdma=False, fabric=True)
    assert sorted(ranks) == ["spark-1", "spark-2"], output
    assert ranks["spark-1"]["env"]["GLOO_SOCKET_IFNAME"] == "enp1s0f1np1"
    # What it says nevertheless: that the devices are missing.
    assert "has no /dev/infiniband" in " ".join(output.split())
