# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""docs/faults.md says what the fault suite tries."""

from __future__ import annotations

import collections
import subprocess
import sys

from lab.scripted import faults as scripted
from tests.lab import kit
from tests.lab.faults.suite import BENCHES, SUITE
from tests.unit.support.faults import FAULTS


def test_the_table_is_the_suite() -> None:
    tool = kit.CHECKOUT / "tools" / "faults_table.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], check=False)
    assert done.returncode == 0, "run tools/faults_table.py"


def test_there_are_enough_faults_and_each_has_a_name_of_its_own() -> None:
    names = collections.Counter(fault.id for fault in SUITE)
    assert len(names) >= 40
    assert set(names.values()) == {1}


def test_every_fault_has_a_bench_and_words() -> None:
    for fault in SUITE:
        assert fault.bench in BENCHES, fault.id
        assert all(fault.says), fault.id
        assert fault.says, fault.id


def test_no_fault_of_the_scripted_engine_is_left_out_without_a_reason() -> None:
    tried = {fault.id.removeprefix("watch_").removeprefix("new_") for fault in SUITE}
    died = {*scripted.AT_BOOT, *scripted.LINES, *scripted.WHILE_SERVING} - {"memory_hog", "memory_hog_while_serving"}
    # Readiness sees the same in another one, or sees nothing wrong with it; unit tests try them all.
    alike = {
        "body_cut", "empty_null", "finish_reason_error", "garbage_controls", "garbage_syllables", "hang_mid_stream",
        "json_too_deep", "json_without_choices", "none", "not_streamed", "odd_chunks", "port_proxy_closes",
        "proxy_without_upstream", "slow_first_token", "squatter_404", "squatter_redirect", "squatter_ssh",
        "stream_not_json", "stream_reset", "too_many_requests",
    }  # fmt: skip
    assert {*died, *FAULTS} - tried == alike
