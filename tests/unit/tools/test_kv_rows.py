# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import typing as t

ROOT = pathlib.Path(__file__).parents[3]
ROW: dict[str, t.Any] = {
    "vllm": "0.28.0",
    "tp": 1,
    "kv_cache_dtype": "auto",
    "mamba_cache_dtype": "auto",
    "mamba_ssm_cache_dtype": "auto",
    "num_speculative_tokens": 0,
    "prefix_caching": True,
    "max_model_len": 4096,
    "max_num_batched_tokens": 8192,
    "kv_bytes": 1 << 30,
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def run(program: str, *arguments: str, lines: list[str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / program), *arguments],
        input="".join(line + "\n" for line in lines or []),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_answers_every_line_in_order(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    row = {**ROW, "config_path": str(tmp_path / "config.json")}
    lines = [
        json.dumps(row),
        json.dumps({**row, "kv_bytes": 1 << 20}),
        json.dumps({**row, "vllm": "0.12.0"}),
        json.dumps({**row, "config_path": str(tmp_path / "nothing.json")}),
        json.dumps({**row, "vllm": "0.28.1", "config_path": str(tmp_path)}),
        json.dumps({key: value for key, value in row.items() if key != "kv_bytes"}),
        "not json",
        "[1]",
    ]
    status, output = run("kv_rows", lines=lines)
    answers = [json.loads(line) for line in output.splitlines()]
    assert status == 0
    assert answers[0] == {
        "fits": True,
        "block_size": 16,
        "bytes_per_block": 8192,
        "num_blocks": 131072,
        "tokens": 2097152,
        "max_concurrency": 512.0,
        "blocks_per_request": 256,
    }
    assert answers[1] == {"fits": False, "need_gib": 0.0, "estimated_max_len": 2048}
    assert "older than 0.22.0" in answers[2]["unsupported"]
    assert "nothing.json" in answers[3]["unsupported"]
    assert answers[4]["tokens"] == answers[0]["tokens"]
    assert "0.28.0, the nearest lower release" in answers[4]["note"]
    assert answers[5] == {"unsupported": "the line lacks 'kv_bytes'."}
    assert [sorted(answer) for answer in answers[6:]] == [["unsupported"], ["unsupported"]]


def test_check_reports_what_differs(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    good = {
        **ROW,
        "config": "config.json",
        "fits": True,
        "block_size": 16,
        "bytes_per_block_all_groups": 8192,
        "num_blocks": 131072,
        "tokens": 2097152,
        "max_concurrency": 512.0,
        "blocks_per_request": 256,
    }
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(good) + "\n", encoding="utf-8")
    assert run("kv_check", str(rows)) == (0, "     1 equal\n")
    rows.write_text(json.dumps({**good, "tokens": 2097151}) + "\n", encoding="utf-8")
    status, output = run("kv_check", str(rows))
    assert status == 1
    assert output.endswith("     1 different\n")
