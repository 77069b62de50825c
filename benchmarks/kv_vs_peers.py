#!/usr/bin/env python3
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the tokens of a KV cache, as three planners compute them, with what vLLM's own code says.

    benchmarks/kv_vs_peers.py [--rows GOLDEN.jsonl] [--peers VENV]

Without --rows the rows are the fixture of the unit tests (one of each kind). The peers are sparkfit and kvfit of PyPI,
installed into a throw-away virtual environment, or into VENV where that is given. All three answer the same rows, in
one run. A peer states bytes per request; the tokens are then bytes / bytes per request * context. Neither peer knows
vLLM versions or prefix caching, and only kvfit some kinds of layers. Rows of one rank only: sparkfit has no ranks.
"""

from __future__ import annotations

import argparse
import csv
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import typing as t
import venv

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.gb10.fleet.plugins.module_utils._model_geometry import ModelGeometry
from ansible_collections.gb10.fleet.plugins.plugin_utils._kv_cache import (
    KvFit,
    KvRequest,
    KvUnsupportedError,
    kv_layout,
)

FIXTURES = ROOT / "tests" / "unit" / "plugins" / "plugin_utils" / "fixtures"
PACKAGES = ("sparkfit==0.5.0", "kvfit==0.3.0")

# What the peers run: it reads rows on its input and writes bytes per request (null: refused) and seconds per row.
PEER = """
import json, sys, time
rows = json.load(sys.stdin)
def sparkfit(row):
    import sparkfit
    spec = sparkfit.parse_hf_config(row["config"])
    return sparkfit.kv_total_bytes(spec, row["length"], 1, "fp8" if row["fp8"] else "bf16")
def kvfit(row):
    from kvfit.architectures import estimate_cache
    return estimate_cache(row["config"], context_tokens=row["length"], kv_bytes=1.0 if row["fp8"] else 2.0).total_bytes
out = {}
for name, ask in (("sparkfit", sparkfit), ("kvfit", kvfit)):
    answers, start = [], time.perf_counter()
    for row in rows:
        try:
            answers.append(ask(row))
        except BaseException:
            answers.append(None)
    out[name] = {"bytes": answers, "seconds": time.perf_counter() - start}
json.dump(out, sys.stdout)
"""


def main() -> int:
    """Read the rows, ask all three, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=pathlib.Path, help="JSON lines as tools/kv_check reads them")
    parser.add_argument(
        "--peers", type=pathlib.Path, help="virtual environment for the peers; made where it is missing"
    )
    arguments = parser.parse_args()
    rows = [row for row in read_rows(arguments.rows) if row["tp"] == 1 and row["tokens"]]
    with tempfile.TemporaryDirectory() as scratch:
        place = arguments.peers or pathlib.Path(scratch) / "peers"
        answers = ask_peers(place, rows)
    answers["gb10.fleet"] = ask_ourselves(rows)
    report(rows, answers)
    return 0


def read_rows(path: pathlib.Path | None) -> list[dict[str, t.Any]]:
    """Return rows with the parsed config of their model."""
    if path is None:
        configs = json.loads((FIXTURES / "kv_models.json").read_text(encoding="utf-8"))
        with (FIXTURES / "kv_golden.csv").open(encoding="utf-8", newline="") as file:
            rows: list[dict[str, t.Any]] = list(csv.DictReader(file))
        for row in rows:
            row["config"] = configs[row["model"]]
            row["prefix_caching"] = row["prefix_caching"] == "1"
    else:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        for row in rows:
            file_of_row = path.parent / row.get("config_path", row.get("config", ""))
            row["config"] = json.loads(file_of_row.read_text(encoding="utf-8"))
    numbers = ("tp", "num_speculative_tokens", "max_model_len", "max_num_batched_tokens", "kv_bytes")
    for row in rows:
        row.update({name: int(row[name]) for name in numbers})
        row["tokens"] = int(row.get("tokens") or 0)
    return rows


def ask_peers(place: pathlib.Path, rows: list[dict[str, t.Any]]) -> dict[str, dict[str, t.Any]]:
    """Return tokens (None: refused) and seconds of each peer."""
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    asked = [
        {"config": row["config"], "length": row["max_model_len"], "fp8": row["kv_cache_dtype"].startswith("fp8")}
        for row in rows
    ]
    done = subprocess.run([python, "-c", PEER], input=json.dumps(asked), capture_output=True, text=True, check=True)
    answers: dict[str, dict[str, t.Any]] = json.loads(done.stdout)
    for answer in answers.values():
        answer["tokens"] = [
            None if size is None else row["kv_bytes"] / size * row["max_model_len"]
            for row, size in zip(rows, answer["bytes"], strict=True)
        ]
    return answers


def ask_ourselves(rows: list[dict[str, t.Any]]) -> dict[str, t.Any]:
    """Return our tokens and seconds; the caches of parsed configs are not used, as the peers have none."""
    tokens: list[float | None] = []
    start = time.perf_counter()
    for row in rows:
        request = KvRequest(
            vllm=row["vllm"],
            max_model_len=row["max_model_len"],
            max_num_batched_tokens=row["max_num_batched_tokens"],
            kv_cache_dtype=row["kv_cache_dtype"],
            num_speculative_tokens=row["num_speculative_tokens"],
            prefix_caching=row["prefix_caching"],
            mamba_cache_dtype=row["mamba_cache_dtype"],
            mamba_ssm_cache_dtype=row["mamba_ssm_cache_dtype"],
        )
        try:
            kv_layout.cache_clear()
            result = kv_layout(ModelGeometry.from_config(row["config"]), request).fit(row["kv_bytes"])
        except (KvUnsupportedError, ValueError):
            tokens.append(None)
            continue
        tokens.append(result.tokens if isinstance(result, KvFit) else 0)
    return {"tokens": tokens, "seconds": time.perf_counter() - start}


def report(rows: list[dict[str, t.Any]], answers: dict[str, dict[str, t.Any]]) -> None:
    """Print errors in tokens against vLLM, over all rows and by model."""
    print(f"{len(rows)} rows in which one rank's cache fits; error = planner's tokens / vLLM's tokens - 1\n")
    print("| planner | answered | exact | median error | least | most | ms a row |")
    print("|---|---|---|---|---|---|---|")
    for name, answer in answers.items():
        errors = errors_of(rows, answer["tokens"])
        if not errors:
            print(f"| {name} | 0 | 0 | - | - | - | - |")
            continue
        print(
            f"| {name} | {len(errors)} | {sum(error == 0 for error in errors)} | {statistics.median(errors):+.1%} | "
            f"{min(errors):+.1%} | {max(errors):+.1%} | {answer['seconds'] / len(rows) * 1000:.3f} |"
        )
    print(f"\n| model | rows | {' | '.join(f'{name}: median, worst' for name in answers)} |")
    print("|---|---|" + "---|" * len(answers))
    for model in sorted({row["model"] for row in rows}):
        chosen = [index for index, row in enumerate(rows) if row["model"] == model]
        cells = []
        for answer in answers.values():
            errors = errors_of([rows[i] for i in chosen], [answer["tokens"][i] for i in chosen])
            worst = max(errors, key=abs, default=0.0)
            cells.append(f"{statistics.median(errors):+.1%}, {worst:+.1%}" if errors else "refused")
        print(f"| {model} | {len(chosen)} | {' | '.join(cells)} |")


def errors_of(rows: list[dict[str, t.Any]], tokens: list[float | None]) -> list[float]:
    """Return the relative errors of the rows that were answered."""
    return [one / row["tokens"] - 1 for row, one in zip(rows, tokens, strict=True) if one is not None]


if __name__ == "__main__":
    sys.exit(main())
