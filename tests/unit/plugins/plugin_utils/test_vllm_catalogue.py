# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The flag catalogues and the version that each stands for."""

from __future__ import annotations

import itertools
import re

import pytest

from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_catalogue as catalogues


def test_versions_sort_like_releases() -> None:
    ordered = [
        "0.9.2",
        "0.25.2.dev0+g1",
        "0.25.2a1",
        "0.25.2rc1.dev30",
        "0.25.2rc1",
        "0.25.2rc2",
        "0.25.2",
        "0.25.2.post1",
        "0.26.0",
    ]
    keys = [catalogues.version_key(version) for version in ordered]
    assert all(low < high for low, high in itertools.pairwise(keys))


@pytest.mark.parametrize("same", ["0.33.0", "v0.33.0", "0.33.0+cu130", " 0.33.0", "0.33"])
def test_spellings_of_one_version(same: str) -> None:
    assert catalogues.version_key(same) == catalogues.version_key("0.33.0")


@pytest.mark.parametrize("wrong", ["", "latest", "nightly", "26.05-py3", "0.33.x"])
def test_what_is_no_version(wrong: str) -> None:
    with pytest.raises(catalogues.UnknownVersionError, match="is not a vLLM version"):
        catalogues.version_key(wrong)


@pytest.mark.parametrize(
    ("version", "release", "exact"),
    [
        ("0.33.0", "0.33.0", True),
        ("0.25.1+cu130", "0.25.1", True),
        ("0.26.1rc1.dev30+g0123456", "0.26.0", False),
        ("0.25.2.dev0", "0.25.1", False),
        ("0.33.0rc1", "0.32.0", False),
        ("7.0.0", "0.33.0", False),
    ],
)
def test_an_unknown_version_gets_the_nearest_lower_release(version: str, release: str, exact: bool) -> None:
    catalogue, is_exact = catalogues.catalogue_for(version)
    assert (catalogue.version, is_exact) == (release, exact)


def test_a_version_below_all_catalogues_gets_none() -> None:
    with pytest.raises(catalogues.UnknownVersionError, match="older than the oldest release"):
        catalogues.catalogue_for("0.1.dev18498")


@pytest.mark.parametrize("release", catalogues.releases())
def test_a_catalogue_says_where_it_comes_from(release: str) -> None:
    catalogue = catalogues.load(release)
    assert catalogue.version == release
    assert catalogue.source["wheel"].startswith(f"vllm-{release}-")
    assert re.fullmatch(r"[0-9a-f]{64}", catalogue.source["sha256"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", catalogue.source["date"])
    assert all(name.startswith("--") for name in catalogue.flags)
    assert catalogue.find("max_model_len") is catalogue.flags["--max-model-len"]
    assert catalogue.tool_parsers
    assert catalogue.reasoning_parsers
    assert catalogue.env


@pytest.mark.parametrize(
    ("flag", "first", "last"),
    [
        ("--linear-backend", "0.22.0", "0.33.0"),
        ("--calculate-kv-scales", "0.10.2", "0.27.1"),
        ("--override-attention-dtype", "0.10.2", "0.27.1"),
        ("--max-num-partial-prefills", "0.10.2", "0.26.0"),
        ("--swap-space", "0.10.2", "0.17.1"),
        ("--disable-prefix-caching", "0.33.0", "0.33.0"),
    ],
)
def test_which_releases_have_a_flag(flag: str, first: str, last: str) -> None:
    having = catalogues.releases_with(flag)
    assert (having[0], having[-1]) == (first, last)


def test_a_flag_that_no_release_has() -> None:
    assert catalogues.releases_with("--mxfp4-backend") == ()
