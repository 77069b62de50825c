# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""After the main job: every box serves what its inventory names, and serves it as the documentation says."""

from __future__ import annotations

import json

import pytest

from tests.lab import kit

SERVED = {"spark-1": "coordinator", "spark-2": "extractor"}
BAR = 30


@pytest.mark.parametrize(("box", "name"), SERVED.items())
def test_the_unit_is_active_and_starts_at_boot(box: str, name: str) -> None:
    unit = kit.unit(box, name)
    assert (unit["ActiveState"], unit["UnitFileState"], unit["NRestarts"]) == ("active", "enabled", "0")
    assert (unit["Restart"], unit["Type"]) == ("always", "exec")


@pytest.mark.parametrize(("box", "name"), SERVED.items())
def test_the_model_answers(box: str, name: str) -> None:
    assert kit.chat(box, "What is 7 plus 5? Answer with the number only.", model=name).strip() == "12"


@pytest.mark.parametrize(("box", "name"), SERVED.items())
def test_the_start_limit_holds_full_tries(box: str, name: str) -> None:
    unit = kit.unit(box, name)
    burst, interval = int(unit["StartLimitBurst"]), seconds(unit["StartLimitIntervalUSec"])
    one_try = seconds(unit["TimeoutStartUSec"]) + seconds(unit["RestartUSec"])
    assert interval > burst * one_try


def seconds(shown: str) -> float:
    """Return a time span as systemd shows it ("1h 2min 3s") in seconds."""
    units = {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86400}
    total = 0.0
    for part in shown.split():
        digits = "".join(char for char in part if char.isdigit() or char == ".")
        total += float(digits) * units[part.removeprefix(digits)]
    return total


@pytest.mark.parametrize(("box", "name"), SERVED.items())
def test_the_container_is_what_the_inventory_says(box: str, name: str) -> None:
    container = json.loads(kit.on_box(box, f"docker inspect vllm-{name}"))[0]
    image = kit.lab_facts()["lab_images"]["base"]
    host = container["HostConfig"]
    assert container["Config"]["Image"] == f"{image['name']}@{image['digest']}"
    assert (host["NetworkMode"], host["IpcMode"], host["Privileged"]) == ("host", "host", False)
    assert host["RestartPolicy"]["Name"] in {"no", ""}
    mounts = {mount["Destination"] for mount in container["Mounts"]}
    assert mounts == {"/root/.cache", "/root/.cache/huggingface"}


def test_the_record_says_what_was_proven() -> None:
    record = json.loads(kit.on_box("spark-1", "cat /var/lib/gb10-fleet/records/coordinator.json"))
    assert record["model_role"] == "coordinator"
    assert record["plan"]["kv_cache_memory_bytes"] > 0
    assert record["proof"]["chat"]["text"]
    running = json.loads(kit.on_box("spark-1", "docker inspect vllm-coordinator"))[0]["Config"]["Labels"]
    assert running["gb10.fleet.spec"] == record["spec"]


def test_the_engine_has_the_cache_that_was_planned() -> None:
    record = json.loads(kit.on_box("spark-1", "cat /var/lib/gb10-fleet/records/coordinator.json"))
    planned = int(record["plan"]["numbers"]["kv_tokens"]["value"])
    log = kit.on_box("spark-1", "journalctl --unit vllm-coordinator --boot --output cat | grep -F 'KV cache size'")
    assert f"KV cache size: {planned:,} tokens" in log


def test_the_readiness_was_proven_before_the_unit_became_active() -> None:
    log = kit.on_box("spark-1", "journalctl --unit vllm-coordinator --boot --output cat")
    opened, ready, started = (
        log.index("the gate is open"),
        log.index("ready: it answered"),
        log.index("Started vllm-coordinator.service"),
    )
    assert opened < ready < started


def test_a_second_run_changes_nothing_and_asks_little(capsys: pytest.CaptureFixture[str]) -> None:
    run = kit.play(limit="spark-1", verbosity=3)
    executions = run.remote_executions("spark-1")
    with capsys.disabled():
        print(f"\nA second run of site.yml on one box: {executions} remote executions (bar: {BAR})")
    assert run.status == "successful", run.output
    assert run.count("changed", "spark-1") == 0
    assert 0 < executions <= BAR
