# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The facts of data/kv_cache_rules.yml as they hold for one vLLM version.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
import typing as t

import yaml

Version = tuple[int, int, int]

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?P<rest>.*)")
_PRE_RELEASE = re.compile(r"[.\-_]?(a|b|c|rc|alpha|beta|pre|preview|dev)\d*", re.IGNORECASE)


class KvUnsupportedError(ValueError):
    """The cache of this model on this vLLM version is not known; the message says why, ``remedy`` what else to do."""

    remedy = ""


class KvIndivisibleError(KvUnsupportedError):
    """The model cannot be split so, whatever is known of its cache."""

    remedy = "Use a tensor_parallel_size that divides them, and pipeline_parallel_size for the rest."


@dataclasses.dataclass(frozen=True, slots=True)
class FirstRelease:
    """A kind of layer or an architecture that releases before ``since`` cannot serve on a GB10."""

    kind: str
    architecture: str
    since: Version
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class KvRules:
    """The sizing rules of one release; data/kv_cache_rules.yml explains each field."""

    release: str
    note: str
    group_padding_limit: float
    batches_in_flight: dict[str, int]
    mamba2_prefix_mode: str
    latent_hybrid_alignment: int
    gated_delta_net_prefix_alignment: int
    checkpoint_states: dict[str, int]
    null_block_reserved: bool
    packing: str
    request_blocks: str
    pads_odd_pages: bool
    indexed_block: int
    kimi_delta_ssm_dtypes: tuple[str, ...]
    compressed_takes_auto: bool
    draft_limits_context: bool
    platforms: dict[str, dict[str, int]]
    not_yet: tuple[FirstRelease, ...]

    def block(self, platform: str, kind: str) -> int:
        """Return the tokens of a block that the platform starts from; raise where it cannot hold such layers."""
        sizes = self.platforms.get(platform)
        if sizes is None:
            raise KvUnsupportedError(f"platform {platform} is not known; known are {', '.join(self.platforms)}.")
        if kind not in sizes:
            raise KvUnsupportedError(f"the cache of {kind.replace('_', ' ')} attention on {platform} is not known.")
        return sizes[kind]


def parse_version(text: str) -> tuple[Version, bool]:
    """Return the release number in a version, and whether the version comes before that release."""
    match = _VERSION.match(text.strip())
    if match is None:
        raise KvUnsupportedError(f"{text!r} is not a vLLM version.")
    numbers = (int(match[1]), int(match[2]), int(match[3] or 0))
    return numbers, _PRE_RELEASE.match(match["rest"]) is not None


@functools.cache
def rules_for(version: str) -> KvRules:
    """Return the rules of a vLLM version: its own, or those of the nearest lower release that was read.

    ``note`` is empty where the version's own source was read, and says otherwise which release stands in for it.
    """
    data = _load()
    wanted, pre_release = parse_version(version)
    releases = sorted(parse_version(str(release))[0] for release in data["releases"])
    known = [release for release in releases if release < wanted or (release == wanted and not pre_release)]
    if not known:
        raise KvUnsupportedError(
            f"vLLM {version} is older than {_dotted(releases[0])}, the oldest release whose sizing is known."
        )
    release = known[-1]
    note = ""
    if release != wanted:
        note = f"vLLM {version} was not read; the rules of {_dotted(release)}, the nearest lower release, stand in."
    values: dict[str, t.Any] = {}
    for change in data["changes"]:
        if parse_version(str(change["since"]))[0] <= release:
            values.update(change["set"])
    values["kimi_delta_ssm_dtypes"] = tuple(values["kimi_delta_ssm_dtypes"])
    firsts = (
        FirstRelease(
            entry.get("kind", ""), entry.get("architecture", ""), parse_version(str(entry["since"]))[0], entry["reason"]
        )
        for entry in data["first_release"]
    )
    return KvRules(
        release=_dotted(release),
        note=note,
        platforms={
            name: {kind: size for kind, size in sizes.items() if isinstance(size, int)}
            for name, sizes in data["platforms"].items()
        },
        not_yet=tuple(first for first in firsts if release < first.since),
        **values,
    )


@functools.cache
def _load() -> dict[str, t.Any]:
    path = pathlib.Path(__file__).parent / "data" / "kv_cache_rules.yml"
    data: dict[str, t.Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data


def _dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)
