# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gb10.fleet.plugins.module_utils import _job, _soak
from ansible_collections.gb10.fleet.plugins.modules import vllm_soak

REPORT: dict[str, t.Any] = {
    "verdict": "passed",
    "because": "every answer was sane, and nothing broke",
    "requests": 400,
    "wanted": 400,
    "concurrency": 8,
    "failed_requests": 0,
    "latency_ms": {"first_token": {"p50": 80.0, "p95": 120.0}, "per_token": None, "whole": None},
    "tokens_per_second": 150.5,
    "acceptance": {"acceptance": 0.86},
}


def run(capsys: pytest.CaptureFixture[str], **options: t.Any) -> dict[str, t.Any]:
    """Run the module and return what it printed."""
    with patch_module_args(options), pytest.raises(SystemExit):
        vllm_soak.main()
    printed: dict[str, t.Any] = json.loads(capsys.readouterr().out)
    return printed


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[_job.Job]:
    """A box whose soaks are over at once, and a list of them."""
    begun: list[_job.Job] = []

    def wait(_run: object, job: _job.Job, *, begin: bool, step_s: float) -> _job.Outcome:
        begun.append(job)
        return _job.Outcome("passed: done")

    monkeypatch.setattr(_job, "wait", wait)
    monkeypatch.setattr(_soak, "left", lambda _name: dict(REPORT))
    return begun


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "one of the following is required: instance, url"),
        ({"instance": "writer", "url": "http://127.0.0.1:8000"}, "mutually exclusive: instance|url"),
        ({"instance": "writer", "concurrency": 0}, "concurrency has to be more than zero, and less than"),
        ({"instance": "writer", "concurrency": 100_000}, "concurrency has to be 4096 at most."),
        ({"instance": "writer", "timeout": "inf"}, "timeout has to be more than zero, and less than"),
        ({"instance": "../writer"}, "'../writer' cannot be the name of an instance"),
        ({"instance": ""}, "'' cannot be the name of an instance"),
        ({"instance": "writer", "shared_prefix": -1}, "shared_prefix has to be zero or more."),
        (
            {"instance": "writer", "scripts": ["cjk", "latein"]},
            "scripts does not know 'latein'; it knows any, arabic, ",
        ),
        ({"url": "127.0.0.1:8000"}, "does not start with http://"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str], jobs: list[_job.Job], options: dict[str, t.Any], says: str
) -> None:
    result = run(capsys, **options)
    assert result["failed"] is True
    assert says in result["msg"]
    assert jobs == []


def test_check_mode_asks_nothing(capsys: pytest.CaptureFixture[str], jobs: list[_job.Job]) -> None:
    result = run(capsys, instance="writer", _ansible_check_mode=True)
    assert (result["changed"], result["progress"]) == (True, "400 requests would be sent, 8 at a time")
    assert jobs == []


def test_a_passed_soak_returns_its_report(capsys: pytest.CaptureFixture[str], jobs: list[_job.Job]) -> None:
    result = run(capsys, instance="writer", concurrency=16)
    assert (result["finished"], result["changed"], result["verdict"]) == (True, True, "passed")
    assert result["msg"] == (
        "passed: 400 of 400 requests, 8 at a time: every answer was sane, and nothing broke; "
        "first token 80 ms (p95 120), 150.5 tokens/s in all, 86% of the drafts accepted"
    )
    assert _soak.from_json(jobs[0].argv[-1]) == _soak.Request(instance="writer", concurrency=16)


def test_a_verdict_that_is_not_recorded_or_proves_nothing_says_so(
    capsys: pytest.CaptureFixture[str], jobs: list[_job.Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = {"not_recorded": "the deploy record is of another engine", "not_proven": "it speculates"}
    monkeypatch.setattr(_soak, "left", lambda _name: {**REPORT, **notes})
    said = run(capsys, instance="writer")["msg"]
    assert said.endswith("; not recorded: the deploy record is of another engine; not proven: it speculates")


@pytest.mark.parametrize("fails", [True, False])
def test_a_failed_soak_fails_the_task_unless_it_is_only_to_look(
    capsys: pytest.CaptureFixture[str], jobs: list[_job.Job], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    report = {**REPORT, "verdict": "failed", "because": "3 of 400 answers are garbage.", "failed_requests": 2}
    monkeypatch.setattr(_soak, "left", lambda _name: report)
    result = run(capsys, instance="writer", fail_on_verdict=fails)
    assert result.get("failed", False) is fails
    assert "3 of 400 answers are garbage" in result["msg"]


def test_a_key_travels_in_a_file_of_its_own(capsys: pytest.CaptureFixture[str], jobs: list[_job.Job]) -> None:
    run(capsys, url="http://127.0.0.1:8000", api_key="sk-secret")
    assert jobs[0].secrets == {"VLLM_API_KEY": "sk-secret"}
    assert "sk-secret" not in " ".join(jobs[0].argv)


def test_a_report_that_is_missing_is_told(
    capsys: pytest.CaptureFixture[str], jobs: list[_job.Job], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    def left(name: str) -> dict[str, t.Any]:
        raise _soak.SoakError(f"the report of the soak is not there; see `journalctl -u {name}`")

    monkeypatch.setattr(_soak, "left", left)
    assert "journalctl -u gb10-fleet-soak-" in run(capsys, instance="writer")["msg"]
