# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether the version that a package reports can be true, and agrees with the image's tag.

The tag of an image is a claim, and so is the version of a package. A build without its git tags stamps itself
0.1.devN, whatever it holds: one such image had every kernel and decoded 2.6 times slower than its tag promised.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding

_VERSION = re.compile(
    r"v?(?P<base>\d+(?:\.\d+)+)(?P<pre>(?:a|b|rc)\d+)?(?P<post>\.post\d+)?(?P<dev>\.dev\d+)?(?:\+(?P<local>[\w.]+))?"
)
_MOVING = ("nightly", "latest", "main", "dev", "edge")
# A release as tags write it, which has three parts; 26.02 (NVIDIA's calendar) and 12.9 (CUDA) have two.
_IN_TAG = re.compile(r"(?<![\d.])v?(\d+\.\d+\.\d+)(?:\.post\d+|rc\d+)?(?![\d.])")


@dataclasses.dataclass(frozen=True, slots=True)
class Stamp:
    """A version string in parts: 0.26.1rc1.dev439+g7b9f2dad8 is base 0.26.1, pre rc1.dev439, local g7b9f2dad8."""

    base: str
    pre: str
    local: str

    @classmethod
    def parse(cls, text: str) -> Stamp | None:
        """Return the parts, or None where the string is no version ("dev", "unknown")."""
        match = _VERSION.fullmatch(text.strip())
        if not match:
            return None
        pre = "".join(match[part] or "" for part in ("pre", "dev")).lstrip(".")
        return cls(match["base"], pre, match["local"] or "")

    @property
    def implausible(self) -> bool:
        """Return whether this is what setuptools-scm writes where it finds no tag to count from."""
        return self.base in {"0.0.0", "0.0"} or (self.base in {"0.1", "0.1.0"} and "dev" in self.pre)


def _numbers(base: str) -> tuple[int, ...]:
    return tuple(int(part) for part in base.split("."))


def version_in_tag(reference: str) -> str:
    """Return the release that an image reference claims, or nothing where its tag names none."""
    name = reference.partition("@")[0].rpartition("/")[2]
    match = _IN_TAG.search(name.partition(":")[2])
    return match[1] if match else ""


def moving_tag(reference: str) -> str:
    """Return the tag of an image reference where it is one that moves (nightly, latest, main), else nothing."""
    tag = reference.partition("@")[0].rpartition("/")[2].partition(":")[2]
    return tag if set(_MOVING) & set(re.split(r"[^a-z]+", tag.lower())) else ""


def stamp_findings(
    reported: str, *, package: str = "vllm", tag: str = "", expected: str = "", newest: str = ""
) -> list[Finding]:
    """Judge the version that a package reports (vLLM answers /version with it).

    ``newest`` is the newest release that is known: an image of a moving tag that is older than it is stale.
    """
    stamp, claimed = Stamp.parse(reported), version_in_tag(tag)
    if stamp is None or stamp.implausible:
        return [
            Finding(
                "VERSION_STAMP_IMPLAUSIBLE",
                "error" if claimed or expected else "warning",
                f"{package} calls itself {reported or 'nothing at all'}, which a build without its git tags does",
                evidence=f"tag {tag}" if tag else "",
                remedy="Use an image whose /version is a release, or find out which commit this one was built from.",
            )
        ]
    found = []
    latest = Stamp.parse(newest) if newest else None
    if moving_tag(tag) and latest and _numbers(stamp.base) < _numbers(latest.base):
        found.append(
            Finding(
                "STALE_IMAGE",
                "warning",
                f"the tag moves, and {package} in the image is {reported}, older than {newest}",
                evidence=f"tag {tag}",
                remedy="Take the release that is wanted by its digest; a tag that moves may also have stopped to.",
            )
        )
    if claimed and stamp.base != claimed:
        found.append(
            Finding(
                "VERSION_TAG_MISMATCH",
                "error",
                f"the tag says {claimed}, and {package} in the image is {reported}",
                evidence=f"tag {tag}",
                remedy="Take the image by the digest of the release that is wanted; the tag is only a name.",
            )
        )
    wanted = Stamp.parse(expected) if expected else None
    if wanted and wanted.base != stamp.base:
        found.append(
            Finding(
                "VERSION_NOT_EXPECTED",
                "error",
                f"{package} is {reported}, and {expected} was expected",
                remedy="Correct the vllm version of the model role, or its image.",
            )
        )
    return found
