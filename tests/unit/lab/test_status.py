# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from lab.status import render, table


def test_table_aligns_and_trims() -> None:
    assert table([["a", "bb"], ["ccc", "d"]]) == "a    bb\nccc  d"


def test_render_without_hosts() -> None:
    assert render({"lab_id": "0123", "hosts": {}}) == 'Lab 0123: no hosts. Start them with "python -m lab up".'


def test_render() -> None:
    text = render(
        {
            "lab_id": "0123",
            "vllm": "0.32.0",
            "ssh_config": "/x/.lab/ssh_config",
            "hosts": {
                "spark-1": {"state": "running", "address": "10.208.0.11", "boot_id": "b-1", "registry": "active"},
                "spark-2": {"state": "exited", "address": "10.208.0.12"},
            },
            "lab_images": {"base": {"name": "127.0.0.1:5000/vllm/vllm-openai", "digest": "sha256:aa"}},
            "lab_models": {"coordinator": {"repo": "gb10-lab/coordinator", "revision": "f00"}},
        }
    )
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["Lab", "0123,", "vLLM", "0.32.0"]
    assert ["base", "127.0.0.1:5000/vllm/vllm-openai@sha256:aa"] in lines
    assert ["coordinator", "gb10-lab/coordinator", "f00"] in lines
    stopped = next(line for line in lines if line and line[0] == "spark-2")
    assert stopped[1:3] == ["exited", "10.208.0.12"]
    assert set(stopped[3:]) == {"-"}
    assert text.endswith("ssh -F /x/.lab/ssh_config spark-1")
