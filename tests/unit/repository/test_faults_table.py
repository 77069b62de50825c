# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""docs/faults.md says what the fault suite tries."""

from __future__ import annotations

import collections
import re
import subprocess
import sys

import pytest
import yaml

from ansible_collections.gb10.fleet.plugins.module_utils._probe_questions import Question
from ansible_collections.gb10.fleet.plugins.plugin_utils import _settings
from lab.scripted import faults as scripted
from tests.lab import kit
from tests.lab.faults.bench import Bench
from tests.lab.faults.entry import By, When
from tests.lab.faults.suite import BENCHES, CORE, CORE_KINDS, SUITE, chosen
from tests.unit.support.faults import FAULTS


def test_the_table_is_the_suite() -> None:
    tool = kit.CHECKOUT / "tools" / "faults_table.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], check=False)
    assert done.returncode == 0, "run tools/faults_table.py"


def test_there_are_enough_faults_and_each_has_a_name_of_its_own() -> None:
    names = collections.Counter(fault.id for fault in SUITE)
    assert len(names) >= 40
    assert set(names.values()) == {1}


def test_the_selection_holds_enough_of_them_and_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(CORE) >= 40
    assert sum(map(len, CORE_KINDS.values())) == len(CORE)
    monkeypatch.setenv("GB10_LAB_FAULTS", "core")
    assert {fault.id for fault in chosen()} == CORE
    assert {fault.when for fault in chosen()} == set(When)
    assert {fault.by for fault in chosen()} == set(By)
    monkeypatch.delenv("GB10_LAB_FAULTS")
    assert chosen() == SUITE
    monkeypatch.setenv("GB10_LAB_FAULTS", "some")
    with pytest.raises(ValueError, match="GB10_LAB_FAULTS is 'some'"):
        chosen()


def test_every_fault_has_a_bench_and_words() -> None:
    for fault in SUITE:
        assert fault.bench in BENCHES, fault.id
        assert all(fault.says), fault.id
        assert fault.says, fault.id


@pytest.mark.parametrize("bench", BENCHES.values(), ids=BENCHES.keys())
def test_the_settings_of_a_bench_are_none_that_a_deployment_refuses(bench: Bench) -> None:
    lab = kit.CHECKOUT / "inventories" / "lab" / "group_vars" / "sparks" / "vllm_server.yml"
    assert list(_settings.problems({**yaml.safe_load(lab.read_text()), **yaml.safe_load(bench.settings)})) == []


def test_no_fault_of_the_scripted_engine_is_left_out_without_a_reason() -> None:
    tried = {fault.id.removeprefix("watch_").removeprefix("new_") for fault in SUITE}
    groups = (scripted.ANSWERS, scripted.AT_BOOT, scripted.LINES, scripted.WHILE_SERVING)
    died = {name for group in groups for name in group} - {"memory_hog", "memory_hog_while_serving"}
    # Readiness sees the same in another one, or sees nothing wrong with it; unit tests try them all.
    alike = {
        "body_cut", "empty_null", "finish_reason_error", "garbage_controls", "garbage_syllables",
        "json_too_deep", "json_without_choices", "none", "not_streamed", "odd_chunks", "port_proxy_closes",
        "proxy_without_upstream", "slow_first_token", "squatter_404", "squatter_redirect", "squatter_ssh",
        "stream_not_json", "stream_reset", "too_many_requests",
    }  # fmt: skip
    assert {*died, *FAULTS} - tried == alike


def test_wrong_words_answer_no_question() -> None:
    """A number among them would be the right answer to some sum, and the fault would not be one now and then."""
    words = "purple if the velvet, walking"
    assert [fault.id for fault in SUITE if any(words.startswith(said) for said in fault.says)]
    assert not [number for number in range(41) if Question("", str(number)).answered_by(words)]


def test_the_clock_that_the_suite_turns_is_the_only_one_that_a_box_reckons_with() -> None:
    """tests/lab/faults/clock.py replaces time.time(); what else tells the date may be written down, and no more."""
    other = re.compile(r"\bdatetime\b|time\.time_ns|localtime|CLOCK_REALTIME|from time import")
    folders = [kit.CHECKOUT / "plugins" / name for name in ("module_utils", "modules")]
    sources = {path: path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py")}
    assert sum("time.time" in text for text in sources.values()) > 5
    assert [path.name for path, text in sources.items() if other.search(text)] == []
