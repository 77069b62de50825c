# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The programs that make a catalogue and lint a command line, run as a person runs them."""

from __future__ import annotations

import hashlib
import json
import pathlib
import subprocess
import sys
import typing as t
import zipfile

import pytest

TOOLS = pathlib.Path(__file__).parents[3] / "tools"
# As little of a vLLM as its parser needs, importing what is never installed here.
FILES = {
    "vllm/__init__.py": "import torch.cuda\n",
    "vllm/_C.abi3.so": "compiled",
    "vllm/envs.py": "environment_variables = {'VLLM_B': print, 'VLLM_A': print, 'OTHER': print}\n",
    "vllm/utils/__init__.py": "",
    "vllm/utils/argparse_utils.py": """
import argparse
import regex
class FlexibleArgumentParser(argparse.ArgumentParser):
    def parse_args(self, args=None, namespace=None):
        return super().parse_args(["--optimization-level", "3"] if args == ["-O3"] else args, namespace)
""",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": "def human_readable_int(value):\n    return int(value)\n",
    "vllm/broken.py": "raise RuntimeError('needs a GPU')\n",
    "vllm/tool_parsers/__init__.py": """
class ToolParserManager:
    tool_parsers = {"eager": object}
    lazy_parsers = {"later": "module"}
""",
    "vllm/config.py": """
import enum
import torch
from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass
class Mode(enum.Enum):
    NONE = 0
    FULL = (1, 2)
@dataclass(config={"extra": "forbid", "arbitrary_types_allowed": True})
class Graphs:
    size: int = Field(default=1, ge=1)
    mode: Mode = Mode.NONE
    dtype: torch.dtype = None
    @field_validator("mode", mode="before")
    @classmethod
    def named(cls, value):
        return Mode[value.upper()] if isinstance(value, str) else value
""",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/cli/__init__.py": "",
    "vllm/entrypoints/cli/serve.py": "from vllm.entrypoints.cli_args import make_arg_parser\n",
    "vllm/entrypoints/cli_args.py": """
import argparse
import torch
from pydantic import TypeAdapter
import vllm.broken
from vllm.config import Graphs
def make_arg_parser(parser):
    def parse_dataclass(val, cls=Graphs):
        return TypeAdapter(cls).validate_json(val)
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", "-b", choices=["a", "b"])
    parser.add_argument("--fast", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--graphs", type=parse_dataclass)
    parser.add_argument("--names", nargs="+")
    return parser
""",
}


def wheel(
    folder: pathlib.Path, name: str = "vllm-9.8.7-cp38-abi3-manylinux_2_28_aarch64.whl", **changed: str
) -> pathlib.Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (FILES | changed).items():
            archive.writestr(file, text)
    return path


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def test_a_wheel_becomes_a_catalogue(tmp_path: pathlib.Path) -> None:
    path = wheel(tmp_path)
    done = run(str(TOOLS / "vllm_catalogue"), "--date", "2026-11-29", "--output", str(tmp_path), str(path))
    assert done.returncode == 0, done.stderr
    found: dict[str, t.Any] = json.loads((tmp_path / "9.8.7.json").read_text(encoding="utf-8"))
    assert found["vllm"] == "9.8.7"
    assert found["source"] == {
        "wheel": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "date": "2026-11-29",
    }
    assert found["flags"] == {
        "--backend": {"alias": ["-b"], "type": "str", "choices": ["a", "b"]},
        "--fast": {"off": ["--no-fast"], "action": "bool", "default": True},
        "--graphs": {"type": "config:Graphs"},
        "--help": {"alias": ["-h"], "action": "help"},
        "--names": {"type": "str", "nargs": "+"},
        "--seed": {"type": "int", "default": 0},
    }
    assert found["configs"] == {
        "Graphs": {
            "extra": "forbid",
            "fields": {"dtype": "any", "mode": {"names": ["FULL", "NONE", 0, "none"]}, "size": {"int": {"ge": 1}}},
        }
    }
    assert found["parser"]["level"] == "--optimization-level"
    assert found["env"] == ["VLLM_A", "VLLM_B"]
    assert found["tool_parsers"] == ["eager", "later"]
    assert found["reasoning_parsers"] is None


@pytest.mark.parametrize(
    ("name", "changed", "says"),
    [
        ("other-1.0-py3-none-any.whl", {}, "is not the name of a vLLM wheel"),
        ("vllm-9.8.7-py3-none-any.whl", {"vllm/config.py": "raise RuntimeError('gone')\n"}, "RuntimeError: gone"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: pathlib.Path, name: str, changed: dict[str, str], says: str) -> None:
    path = wheel(tmp_path, name, **changed)
    done = run(str(TOOLS / "vllm_catalogue"), "--date", "2026-11-29", "--output", str(tmp_path), str(path))
    assert done.returncode != 0
    assert says in done.stderr
    assert not list(tmp_path.glob("*.json"))


def test_a_file_that_is_no_wheel(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "vllm-9.8.7-py3-none-any.whl"
    path.write_text("no zip", encoding="utf-8")
    done = run(str(TOOLS / "vllm_catalogue"), "--date", "2026-11-29", str(path))
    assert done.returncode != 0
    assert "cannot be read as a wheel" in done.stderr
    assert "Traceback" not in done.stderr


def test_lint_args_answers_in_json() -> None:
    words = [
        "--vllm",
        "0.28.0",
        "--env",
        "VLLM_NVFP4_GEMM_BACKEND=marlin",
        "--",
        "--moe-backend",
        "b12x",
        "--swap-space",
        "4",
    ]
    done = run(str(TOOLS / "lint_args"), *words)
    answer = json.loads(done.stdout)
    assert (answer["parses"], done.returncode) == (False, 1)
    assert [finding["id"] for finding in answer["findings"]] == ["FLAG_REMOVED", "FLAG_VALUE_INVALID", "ENV_REMOVED"]


def test_judge_config_reads_what_people_have(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve owner/x --gpu-memory-utilization 0.9 --max-model-len 4096\n", encoding="utf-8")
    words = ["--vllm", "0.32.0", "--today", "2026-11-29", "--observed", '{"driver": "590.48.01"}', str(script)]
    answer = json.loads(run(str(TOOLS / "judge_config"), *words).stdout)
    assert answer["words"][:2] == ["owner/x", "--gpu-memory-utilization"]
    assert answer["parses"] is True
    assert {"UTIL_ABOVE_CEILING", "DRIVER_590_48_LEAKS"} <= {finding["id"] for finding in answer["findings"]}


def test_judge_config_reads_a_service(tmp_path: pathlib.Path) -> None:
    compose = tmp_path / "compose.yml"
    compose.write_text("services: {one: {image: 'a/b:latest', command: [--seed, '1']}}\n", encoding="utf-8")
    words = ["--vllm", "0.32.0", "--today", "2026-11-29", "--service", "one", str(compose)]
    answer = json.loads(run(str(TOOLS / "judge_config"), *words).stdout)
    assert answer["words"] == ["--seed", "1"]
    assert "IMAGE_MOVING_TAG" in {finding["id"] for finding in answer["findings"]}
    missing = run(
        str(TOOLS / "judge_config"), "--vllm", "0.32.0", "--today", "2026-11-29", "--service", "x", str(compose)
    )
    assert missing.returncode != 0
    assert "has no service x; it has one" in missing.stderr


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--vllm", "0.33.0", "--", "--seed", "1"], 0),
        (["--vllm", "0.33.0", "--", "--gpu-memory-utilization", "7"], 0),
        (["--vllm", "0.33.0", "--", "--no-such-flag"], 1),
        (["--vllm", "0.1.0", "--", "--seed", "1"], 2),
        (["--vllm", "0.33.0", "--", "--kv-transfer-config", '{"a":' * 3000 + "1" + "}" * 3000], 1),
    ],
)
def test_the_status_says_whether_the_parser_takes_it(words: list[str], status: int) -> None:
    done = run(str(TOOLS / "lint_args"), *words)
    assert (done.returncode, done.stderr) == (status, "")
    assert json.loads(done.stdout)["parses"] is {0: True, 1: False, 2: None}[status]


@pytest.mark.parametrize("text", ["", "services: {x: {image: 'a/b@sha256:1', command: 5}}\n"])
def test_judge_config_does_not_judge_what_starts_no_server(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / ("compose.yml" if text else "serve.sh")
    path.write_text(text, encoding="utf-8")
    service = ["--service", "x"] if text else []
    done = run(str(TOOLS / "judge_config"), "--vllm", "0.32.0", "--today", "2026-11-29", *service, str(path))
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["parses"]) == (2, None)
    assert "RUNTIME_NOT_VLLM" in {finding["id"] for finding in answer["findings"]}
