# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Public configurations: what is read of them, and how they are judged."""

from __future__ import annotations

import collections
import pathlib
import typing as t

import pytest
import yaml

from ansible_collections.gb10.fleet.plugins.plugin_utils import _claims, _vllm_import
from ansible_collections.gb10.fleet.plugins.plugin_utils._instance_facts import with_observed
from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_import import Imported, image_of, undoubled
from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_lint import lint_args

_FIXTURES = pathlib.Path(__file__).parent / "fixtures"
CASES = yaml.safe_load((_FIXTURES / "public_configurations.yml").read_text(encoding="utf-8"))


def read(case: dict[str, t.Any]) -> Imported:
    readers: dict[str, t.Callable[[t.Any], Imported]] = {
        "words": lambda words: Imported(tuple(words)),
        "shell": _vllm_import.from_shell,
        "recipe": _vllm_import.from_recipe,
        "service": _vllm_import.from_service,
    }
    return readers[case["form"]](case["input"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_a_public_configuration(case: dict[str, t.Any]) -> None:
    imported = read(case)
    assert imported.is_vllm is case.get("is_vllm", True)
    lint = lint_args(case["vllm"], imported.words, imported.env)
    facts = with_observed(imported.facts(case["vllm"]), case.get("observed", {}))
    claims = _claims.claims_for(facts, "2026-11-29")
    found = collections.Counter(one.id for one in (*imported.findings, *lint.findings, *claims))
    assert not collections.Counter(case.get("finds", [])) - found
    assert not set(case.get("never", [])) & set(found)
    if "parses" in case:
        assert lint.parses is case["parses"]
    for name, value in case.get("flags", {}).items():
        assert facts["flags"][name] == value
    assert imported.env.items() >= case.get("env", {}).items()
    for name in ("nodes", "kind"):
        assert name not in case or facts[name] == case[name]
    if "graphs" in case:
        assert facts["graphs"].items() >= case["graphs"].items()
    if "image" in case:
        assert imported.image == case["image"]


@pytest.mark.parametrize(
    ("written", "right"),
    [
        (
            '--compilation-config \'{{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}}\'',
            '--compilation-config \'{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}\'',
        ),
        (
            "--default-chat-template-kwargs '{{\"thinking\":true}}'",
            "--default-chat-template-kwargs '{\"thinking\":true}'",
        ),
    ],
)
def test_doubled_braces_of_a_recipe(written: str, right: str) -> None:
    value, finding = undoubled(written)
    assert value == right
    assert finding is not None
    assert finding.id == "DOUBLE_BRACE_JSON"


@pytest.mark.parametrize("plain", ['{"a": 1}', "{{ variable }}", "x"])
def test_what_is_not_doubled(plain: str) -> None:
    assert undoubled(plain) == (plain, None)


@pytest.mark.parametrize(
    ("reference", "name", "tag", "digest"),
    [
        ("vllm/vllm-openai:v0.32.0", "vllm/vllm-openai", "v0.32.0", None),
        ("vllm/vllm-openai", "vllm/vllm-openai", "latest", None),
        ("localhost:5000/a/b@sha256:0", "localhost:5000/a/b", None, "sha256:0"),
        ("a/b:1@sha256:0", "a/b", "1", "sha256:0"),
    ],
)
def test_an_image_reference(reference: str, name: str, tag: str | None, digest: str | None) -> None:
    assert image_of(reference) == {"name": name, "tag": tag, "digest": digest}


def test_a_script_without_a_server() -> None:
    imported = _vllm_import.from_shell("echo hello\nsglang serve --model-path x")
    assert not imported.is_vllm
    assert [one.id for one in imported.findings] == ["RUNTIME_NOT_VLLM"]
