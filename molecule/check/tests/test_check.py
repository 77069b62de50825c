# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""After a check of fresh boxes: nothing is there."""

from __future__ import annotations

import pytest

from tests.lab import kit

BOXES = ("spark-1", "spark-2")


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize(
    "path",
    [
        "/etc/gb10-fleet",
        "/etc/tmpfiles.d/gb10-fleet.conf",
        "/etc/systemd/system/vllm-coordinator.service",
        "/usr/local/lib/gb10-fleet",
        "/run/gb10-fleet",
    ],
)
def test_a_check_leaves_no_file(box: str, path: str) -> None:
    assert kit.on_box(box, f"ls -d {path} 2>/dev/null || true") == ""


@pytest.mark.parametrize("box", BOXES)
def test_a_check_pulls_and_starts_nothing(box: str) -> None:
    wanted = kit.lab_facts()["lab_images"]["base"]["digest"]
    assert wanted not in kit.on_box(box, "docker images --digests --no-trunc")
    assert kit.on_box(box, "docker ps --all --quiet") == ""


def test_a_check_names_what_would_happen() -> None:
    run = kit.play(limit="spark-1", check=True)
    assert run.status == "successful", run.output
    assert run.count("changed", "spark-1") > 0
    said = "\n".join(run.messages)
    assert "start vllm-coordinator (model role coordinator, port 8000)" in said
    assert "+ExecStart=/usr/bin/docker" in run.output
