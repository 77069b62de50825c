# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Soaks of an engine that does as it is told: a healthy one, one that does not draft, and one that dies under load."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import typing as t

import pytest

from tests.lab import kit

BOX, NAME = "spark-1", "scripted"
FAULT = f"/var/lib/gb10-fleet/cache/{NAME}/lab-fault"
SPECULATES = "speculative: {method: ngram, num_speculative_tokens: 2, prompt_lookup_max: 2}"


def deploy(folder: pathlib.Path, more: str = "") -> kit.Run:
    """Deploy the scripted engine, and return the run."""
    text = f"model_roles:\n  - role: {NAME}\n    {more}\n"
    run = kit.play(limit=BOX, inventory=kit.edited_inventory(folder, {f"host_vars/{BOX}.yml": text}))
    assert run.status == "successful", run.failures
    return run


def soak(requests: int, concurrency: int = 4) -> kit.Run:
    """Run the playbook."""
    extra = {"soak_requests": requests, "soak_concurrency": concurrency}
    return kit.play(limit=BOX, playbook="playbooks/soak.yml", extra=extra)


def record() -> dict[str, t.Any]:
    """Return the deploy record."""
    found: dict[str, t.Any] = json.loads(kit.on_box(BOX, f"cat /var/lib/gb10-fleet/records/{NAME}.json"))
    return found


def have_fault(name: str) -> None:
    """Have the engine do something wrong from now on."""
    kit.on_box(BOX, f"echo {name} > {FAULT}")


def job_says() -> str:
    """Return the last word of the soak that is under way."""
    return kit.on_box(BOX, "cat /run/gb10-fleet/gb10-fleet-soak-*.json || true", check=False)


@pytest.fixture(autouse=True)
def _well() -> t.Iterator[None]:
    yield
    kit.on_box(BOX, f"rm -f {FAULT}")


def test_a_soak_that_passes_is_in_the_record(tmp_path: pathlib.Path) -> None:
    deployed = deploy(tmp_path)
    assert f"vllm-{NAME} is not proven" not in deployed.output
    assert (record()["proven"], record().get("soak")) == (True, None)
    run = soak(60)
    assert run.status == "successful", run.failures
    kept = record()
    assert (kept["soak"]["verdict"], kept["soak"]["requests"], kept["proven"]) == ("passed", 60, True)
    assert kept["soak"]["spec"] == kept["spec"]
    assert kept["soak"]["latency_ms"]["first_token"]["p50"] > 0
    # What was soaked is what serves: the next run has nothing to do and nothing to say.
    assert kit.play(limit=BOX, inventory=tmp_path / "inventories" / "lab").count("changed", BOX) == 0
    assert record() == kept


def test_what_speculates_is_not_proven_by_an_answer_alone(tmp_path: pathlib.Path) -> None:
    deployed = deploy(tmp_path, SPECULATES)
    hint = f"vllm-{NAME} is not proven: it speculates, and no soak has shown that its answers are right under load"
    assert hint in " ".join(deployed.output.split())
    assert (record()["proven"], "no soak" in record()["because"]) == (False, True)
    # This engine takes the flag and drafts nothing, as one does whose speculation was switched off silently.
    run = soak(30)
    assert run.status == "failed"
    assert "failed: 30 of 30 requests, 4 at a time: Nothing was drafted." in run.failures[0]
    assert (record()["proven"], record()["because"]) == (False, "its soak failed: Nothing was drafted.")


def test_a_killed_playbook_does_not_end_the_soak(tmp_path: pathlib.Path) -> None:
    deploy(tmp_path)
    have_fault("slow_first_token")
    argv = [str(kit.SCRIPTS / "ansible-playbook"), "playbooks/soak.yml", "--limit", BOX]
    argv += ["--extra-vars", '{"soak_requests": 300, "soak_concurrency": 2}']
    playbook = subprocess.Popen(
        argv, cwd=kit.CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    kit.wait_for(lambda: "of 300 requests" in job_says(), seconds=60, what="a soak that is under way")
    os.killpg(playbook.pid, signal.SIGKILL)
    playbook.wait()
    # There may be the verdict of an earlier soak of the same engine, which served before the one that speculates.
    assert record().get("soak", {}).get("requests") != 300
    kit.wait_for(
        lambda: record().get("soak", {}).get("requests") == 300, seconds=120, what="a verdict that nobody waits for"
    )
    assert record()["soak"]["verdict"] == "passed"


def test_a_restart_by_hand_is_no_verdict_about_the_engine(tmp_path: pathlib.Path) -> None:
    deploy(tmp_path)
    before = record()
    have_fault("slow_first_token")
    argv = [str(kit.SCRIPTS / "ansible-playbook"), "playbooks/soak.yml", "--limit", BOX]
    argv += ["--extra-vars", '{"soak_requests": 1900, "soak_concurrency": 2}']
    playbook = subprocess.Popen(argv, cwd=kit.CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    kit.wait_for(lambda: "of 1900 requests" in job_says(), seconds=60, what="a soak that is under way")
    kit.on_box(BOX, f"systemctl restart vllm-{NAME}.service")
    output, _none = playbook.communicate(timeout=180)
    assert playbook.returncode != 0, output
    said = " ".join(output.split())
    assert "inconclusive" in said
    assert "somebody stopped or restarted it" in said
    assert (record().get("proven"), record().get("soak")) == (before["proven"], before.get("soak"))


def test_an_engine_that_dies_under_load_loses_its_proof(tmp_path: pathlib.Path) -> None:
    deploy(tmp_path)
    have_fault("slow_first_token")
    argv = [str(kit.SCRIPTS / "ansible-playbook"), "playbooks/soak.yml", "--limit", BOX]
    argv += ["--extra-vars", '{"soak_requests": 2000, "soak_concurrency": 2}']
    playbook = subprocess.Popen(argv, cwd=kit.CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    kit.wait_for(lambda: "of 2000 requests" in job_says(), seconds=60, what="a soak that is under way")
    have_fault("exit_137 0")
    output, _none = playbook.communicate(timeout=180)
    assert playbook.returncode != 0, output
    kept = record()
    found = {one["id"] for one in kept["soak"]["findings"]}
    assert {"SOAK_ENGINE_RESTARTED", "SOAK_REQUESTS_FAILED"} & found, kept["soak"]
    assert (kept["soak"]["verdict"], kept["proven"]) == ("failed", False)
    assert kept["soak"]["requests"] < 2000
