# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gb10.fleet.plugins.module_utils import _boot_sources
from ansible_collections.gb10.fleet.plugins.modules import boot_log_info
from tests.unit.plugins.module_utils.fixtures import boot_logs


def run(arguments: dict[str, t.Any], capsys: pytest.CaptureFixture[str]) -> dict[str, t.Any]:
    """Run the module in this process and return what it prints."""
    with patch_module_args(arguments), pytest.raises(SystemExit):
        boot_log_info.main()
    return t.cast("dict[str, t.Any]", json.loads(capsys.readouterr().out))


def test_every_returned_value_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    ready = run({"text": boot_logs.V0_28_0_PINNED}, capsys)
    failed = run({"text": boot_logs.NO_MEMORY, "_ansible_check_mode": True}, capsys)

    documented = yaml.safe_load(boot_log_info.RETURN)
    for result in (ready, failed):
        assert result.pop("changed") is False
        result.pop("invocation", None)
        assert set(result) == set(documented)
        assert set(result["kv_cache"]) == set(documented["kv_cache"]["contains"])
        assert set(result["graphs"]) == set(documented["graphs"]["sample"])
        assert set(result["memory"]) == set(documented["memory"]["sample"])
    assert set(failed["first_error"]) == set(documented["first_error"]["contains"])


def test_expectations_and_plan_become_findings(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(
        {
            "text": boot_logs.V0_28_0_PINNED,
            "expects": {"moe_backend": "MARLIN"},
            "plan": {"kv_tokens": 1000000, "max_model_len": 131072},
        },
        capsys,
    )

    assert [finding["id"] for finding in result["findings"]] == ["BOOT_BACKEND_DIFFERS", "BOOT_KV_POOL_DIFFERS"]


def test_several_logs(capsys: pytest.CaptureFixture[str]) -> None:
    logs = [
        {"name": "spark-2", "text": boot_logs.RANK_1_LOUD},
        {"name": "spark-1", "text": boot_logs.RANK_0_QUIET},
    ]

    assert run({"logs": logs}, capsys)["first_error"]["log"] == "spark-1"


def test_a_source_that_is_not_there_fails_in_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_boot_sources, "run_limited", None)
    for source in ("unit", "container"):
        result = run({source: "no name"}, capsys)
        assert result["failed"] is True
        assert result["msg"].startswith("no name is no name of a ")


@pytest.mark.parametrize("arguments", [{}, {"unit": "a", "text": "b"}])
def test_exactly_one_source_is_wanted(arguments: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments, capsys)["failed"] is True
