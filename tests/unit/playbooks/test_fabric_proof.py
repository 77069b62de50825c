# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The tasks that measure NCCL between boxes, on this machine: the measurement is the shipped one, its torch is not."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import typing as t

import ansible_runner
import pytest
import yaml

CHECKOUT = pathlib.Path(__file__).parents[3]
SCRIPTS = pathlib.Path(sys.executable).parent
ROLE = CHECKOUT / "roles/fabric"
BOXES = ("spark-1", "spark-2")
# What the measurement asks of PyTorch. Its clock moves with the bytes of a collective, GBS of them in GB/s.
TORCH = """\
import os, sys, time, types

now = 0.0
time.perf_counter = lambda: now
cuda = types.SimpleNamespace(nccl=types.SimpleNamespace(version=lambda: (2, 28, 9)), synchronize=lambda: None)
device = lambda kind: types.SimpleNamespace(type=kind)


class Tensor:
    def __init__(self, count, device):
        self.count = count

    def numel(self):
        return self.count

    def __ne__(self, other):
        return self

    def sum(self):
        return self

    def item(self):
        return 0


ones = empty = Tensor


def move(count, factor):
    global now
    now += 4 * count * factor / 2 / 1e9 / float(os.environ["GBS"])


dist = types.ModuleType("torch.distributed")
dist.init_process_group = lambda *given, **named: None
dist.get_rank = lambda: int(os.environ["RANK"])
dist.get_world_size = lambda: 2
dist.barrier = dist.destroy_process_group = lambda: None
dist.ReduceOp = types.SimpleNamespace(MAX=0)
dist.all_reduce = lambda mine, op: move(mine.count, 2)
dist.all_gather_into_tensor = lambda every, mine: move(every.count, 1)
distributed = sys.modules["torch.distributed"] = dist
"""
# What takes the place of `docker run`: NCCL's own words, and the measurement.
ENGINE = f"""\
box=$1; rank=$2; last=$5
if [ -n "$BROKEN" ] && [ "$rank" = 1 ]; then echo "docker: no such image" >&2; exit 125; fi
echo "$box:7:7 [0] NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; OOB eth1:10.1.1.1<0>"
echo "$box:7:7 [0] NCCL INFO Using network $NETWORK"
RANK=$rank exec {sys.executable} {ROLE}/files/collective.py "$last"
"""


def measure(folder: pathlib.Path, **environment: str) -> tuple[dict[str, str], str]:
    """Measure between two boxes; return by box with what words it was refused, and all that was said."""
    tasks = [
        task for task in yaml.safe_load((ROLE / "tasks/nccl.yml").read_text()) if "ansible.builtin.copy" not in task
    ]
    (folder / "tasks.json").write_text(json.dumps(tasks), encoding="utf-8")
    (folder / "torch.py").write_text(TORCH, encoding="utf-8")
    (folder / "engine.sh").write_text(ENGINE, encoding="utf-8")
    play: dict[str, t.Any] = {"hosts": "all", "connection": "local", "gather_facts": False}
    play["environment"] = {"PYTHONPATH": str(folder), "GBS": "23.9", "NETWORK": "IB", "BROKEN": "", **environment}
    play["tasks"] = [{"ansible.builtin.include_tasks": str(folder / "tasks.json")}]
    hosts = {
        box: {
            "ansible_python_interpreter": sys.executable,
            "fabric_nccl_image": "image",
            "__fabric_plan": {"topology": "pair"},
            "__fabric_mine_rank": {"rank": rank},
            "__fabric_docker": ["sh", str(folder / "engine.sh"), box, str(rank)],
        }
        for rank, box in enumerate(BOXES)
    }
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}), encoding="utf-8")
    (folder / "play.json").write_text(json.dumps([play]), encoding="utf-8")
    (folder / "runner").mkdir()
    runner = ansible_runner.run(
        private_data_dir=str(folder / "runner"),
        playbook=str(folder / "play.json"),
        inventory=str(folder / "hosts.json"),
        envvars={
            "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"),
            "ANSIBLE_INVENTORY_ENABLED": "yaml",
            "ANSIBLE_NOCOLOR": "1",
            "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
        },
        quiet=True,
    )
    refused = {
        event["event_data"]["host"]: event["event_data"]["res"]["msg"]
        for event in runner.events
        if event["event"] == "runner_on_failed" and not event["event_data"].get("ignore_errors")
    }
    return refused, runner.stdout.read()


def test_a_healthy_fabric_is_proven_on_every_rank(tmp_path: pathlib.Path) -> None:
    refused, output = measure(tmp_path)

    assert not refused, output
    assert "all_reduce 23.9 GB/s" in output


@pytest.mark.parametrize(
    ("environment", "boxes", "says"),
    [
        pytest.param(
            {"GBS": "10"},
            BOXES,
            ["all_reduce ended with exit status 0 and was judged bad: ", "all_gather ended", "10.00 GB/s", "_perf."],
            id="half",
        ),
        pytest.param({"NETWORK": "Socket"}, BOXES, ["NCCL sends over TCP", "cure why RDMA is not used"], id="tcp"),
        pytest.param(
            {"BROKEN": "1"},
            BOXES[1:],
            ["exit status 125 and was judged unknown (nothing was measured)", "lines: docker: no such image."],
            id="a rank whose container does not start",
        ),
    ],
)
def test_what_is_refused_is_said_with_the_verdict_and_the_last_lines(
    tmp_path: pathlib.Path, environment: dict[str, str], boxes: tuple[str, ...], says: list[str]
) -> None:
    refused, output = measure(tmp_path, **environment)

    assert tuple(sorted(refused)) == boxes, output
    for box, message in refused.items():
        assert message.startswith(f"{box}: NCCL is not as it should be over the fabric. all_reduce ")
        assert not [words for words in says if words not in message], message
