#!/usr/bin/env python3
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure how long a plan takes: in process for one box, and playbooks/plan.yml for fleets of several sizes.

    benchmarks/plan_scale.py [--boxes 250,500,1000]

Prints milliseconds a box in process, and for each fleet wall time, processor time, seconds a box and the largest
resident memory of a process. Processor time says more than wall time on a machine that is busy otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import typing as t

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.gb10.fleet.plugins.plugin_utils._memory_plan import plan_memory

FIXTURES = ROOT / "tests" / "unit" / "plugins" / "plugin_utils" / "fixtures"
CONFIGS = json.loads((FIXTURES / "kv_models.json").read_text(encoding="utf-8"))
GIB = 1 << 30
REVISION = "0123456789abcdef0123456789abcdef01234567"
ROLES: dict[str, dict[str, t.Any]] = {
    "coordinator": {
        "vllm": "0.28.0",
        "max_model_len": 131072,
        "max_num_seqs": 8,
        "kv_cache_dtype": "fp8",
        "speculative": {"method": "mtp", "num_speculative_tokens": 3},
        "measured": {"weights_gib": 21.9, "overhead_gib": 5.8},
    },
    "extractor": {
        "vllm": "0.33.0",
        "max_model_len": 131072,
        "max_num_seqs": 4,
        "kv_cache_dtype": "fp8",
        "measured": {"weights_gib": 21.0, "overhead_gib": 5.8},
    },
}
MODELS = {"coordinator": "qwen3.6-35b-a3b", "extractor": "qwen3.6-27b"}


def main() -> int:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boxes", default="250,500,1000", help="sizes of fleets, with commas between them")
    arguments = parser.parse_args()
    in_process()
    print("\n| boxes | wall s | processor s | processor ms a box | largest process MiB |")
    print("|---|---|---|---|---|")
    for count in map(int, arguments.boxes.split(",")):
        playbook(count)
    return 0


def in_process(rounds: int = 300) -> None:
    """Plan boxes with two instances each; every box has another amount of free memory."""
    instances = [{"name": name, "config": CONFIGS[MODELS[name]], **role} for name, role in ROLES.items()]
    start = time.perf_counter()
    for index in range(rounds):
        plan = plan_memory({"total_bytes": 121 * GIB, "available_bytes": 113 * GIB - index}, instances)
        if plan["verdict"] != "fits":
            raise SystemExit("the benchmark's box must fit")
    print(f"in process: {(time.perf_counter() - start) / rounds * 1000:.2f} ms a box of two instances")


def playbook(count: int) -> None:
    """Plan a fleet with plan.yml."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        catalogue = {}
        for name, role in ROLES.items():
            checkpoint = place / "checkpoints" / "example" / name
            checkpoint.mkdir(parents=True)
            (checkpoint / "config.json").write_text(json.dumps(CONFIGS[MODELS[name]]), encoding="utf-8")
            catalogue[name] = {
                **role,
                "checkpoint": {"repo": f"example/{name}", "revision": REVISION},
                "image": {"name": "vllm/vllm-openai", "digest": "sha256:" + "ab" * 32},
            }
        hosts = {
            f"spark-{index:04}": {
                "box_memory": {"total_bytes": 121 * GIB, "available_bytes": 113 * GIB - index},
                "model_roles": ["coordinator", {"role": "extractor", "port": 8001}],
            }
            for index in range(count)
        }
        inventory = {"sparks": {"hosts": hosts, "vars": {"model_catalogue": catalogue}}}
        (place / "hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
        settings = {"plan_facts": place, "plan_checkpoints": place / "checkpoints", "plan_dest": place / "plan.json"}
        command = ["ansible-playbook", "-i", str(place / "hosts.json"), str(ROOT / "playbooks" / "plan.yml")]
        for name, value in settings.items():
            command += ["-e", f"{name}={value}"]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_INVENTORY_ENABLED": "yaml"}
        subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=True)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        plans = json.loads((place / "plan.json").read_text(encoding="utf-8"))["boxes"]
        if len(plans) != count or any(plan["verdict"] != "fits" for plan in plans.values()):
            raise SystemExit("not all boxes were planned")
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"| {count} | {wall:.1f} | {busy:.1f} | {busy / count * 1000:.1f} | {after.ru_maxrss / 1024:.0f} |", flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
