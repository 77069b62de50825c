# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._version_stamp import Stamp, stamp_findings, version_in_tag


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.33.0", Stamp("0.33.0", "", "")),
        ("0.26.1rc1.dev439+g7b9f2dad8", Stamp("0.26.1", "rc1.dev439", "g7b9f2dad8")),
        ("v0.23.1rc1.dev1053+gf2317c227.d20260712", Stamp("0.23.1", "rc1.dev1053", "gf2317c227.d20260712")),
        ("0.1.dev18498", Stamp("0.1", "dev18498", "")),
        ("0.1.dev21+g67195691e.precompiled", Stamp("0.1", "dev21", "g67195691e.precompiled")),
        ("0.15.1+befbc472", Stamp("0.15.1", "", "befbc472")),
        ("0.6.16.post3", Stamp("0.6.16", "", "")),
        ("dev", None),
        ("", None),
    ],
)
def test_a_version_is_taken_apart(text: str, expected: Stamp | None) -> None:
    assert Stamp.parse(text) == expected


@pytest.mark.parametrize(
    ("reference", "version"),
    [
        ("vllm/vllm-openai:v0.25.1-aarch64-cu129-ubuntu2404", "0.25.1"),
        ("vllm/vllm-openai:vllm-arm64-cu13-0.25.1-d2f1e0a", "0.25.1"),
        ("registry:5000/vllm:0.6.2", "0.6.2"),
        ("vllm:v0.22.0@sha256:0123", "0.22.0"),
        ("vllm:0.26.1rc1", "0.26.1"),
        # NVIDIA's calendar, CUDA's and Ubuntu's versions are no release of vLLM.
        ("registry.example/nvidia/vllm:26.02-py3", ""),
        ("vllm:cu12.9-ubuntu24.04", ""),
        ("vllm:cu130-nightly", ""),
        ("vllm@sha256:0123", ""),
        ("vllm", ""),
    ],
)
def test_a_tag_claims_a_release_or_none(reference: str, version: str) -> None:
    assert version_in_tag(reference) == version


@pytest.mark.parametrize(
    ("tag", "reported", "expected"),
    [
        ("vllm:vllm-arm64-cu13-0.25.1-d2f1e0a", "0.1.dev18498", [("VERSION_STAMP_IMPLAUSIBLE", "error")]),
        ("vllm:v0.6.2", "0.5.5", [("VERSION_TAG_MISMATCH", "error")]),
        ("djl:latest", "0.1.dev21+g67195691e.precompiled", [("VERSION_STAMP_IMPLAUSIBLE", "warning")]),
        ("registry.example/nvidia/vllm:26.02-py3", "0.15.1+befbc472", []),
        ("vllm-node:latest", "0.26.1rc1.dev439+g7b9f2dad8", []),
        ("vllm-node:v0.23.1", "v0.23.1rc1.dev1053+gf2317c227.d20260712", []),
        ("vllm:v0.33.0", "0.33.0", []),
        ("vllm:latest", "dev", [("VERSION_STAMP_IMPLAUSIBLE", "warning")]),
        ("vllm:latest", "", [("VERSION_STAMP_IMPLAUSIBLE", "warning")]),
    ],
)
def test_a_mis_stamped_build_is_seen(tag: str, reported: str, expected: list[tuple[str, str]]) -> None:
    assert [(one.id, one.severity) for one in stamp_findings(reported, tag=tag)] == expected


@pytest.mark.parametrize(
    ("tag", "reported", "stale"),
    [
        ("vllm:cu130-nightly", "0.19.2.dev3", True),
        ("vllm:latest", "0.31.0", True),
        ("vllm:latest", "0.33.0", False),
        ("vllm:nightly", "0.34.0rc1.dev5", False),
        ("vllm:v0.19.0", "0.19.0", False),
        ("vllm@sha256:0123", "0.19.0", False),
        ("vllm:maintained", "0.19.0", False),
    ],
)
def test_a_tag_that_moves_is_held_against_the_newest_release(tag: str, reported: str, stale: bool) -> None:
    found = stamp_findings(reported, tag=tag, newest="0.33.0")
    assert [(one.id, one.severity) for one in found] == ([("STALE_IMAGE", "warning")] if stale else [])
    assert stamp_findings(reported, tag=tag) == []


def test_another_version_than_expected_is_said() -> None:
    (finding,) = stamp_findings("0.22.0+cu129", expected="0.33.0")
    assert (finding.id, finding.message) == (
        "VERSION_NOT_EXPECTED",
        "vllm is 0.22.0+cu129, and 0.33.0 was expected",
    )
    assert stamp_findings("0.33.0+cu129", expected="0.33.0") == []
