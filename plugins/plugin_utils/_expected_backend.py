# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which kernels a vLLM release will pick on a GB10, and what its boot log must therefore show.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import functools
import pathlib
import typing as t

import yaml

from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_catalogue as catalogues

_DATA: t.Final = pathlib.Path(__file__).parent / "data" / "backends.yml"


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What the boot log has to name: one of ``names``; none where it is not known. ``why`` says how we know."""

    names: tuple[str, ...]
    why: str

    @property
    def is_certain(self) -> bool:
        """Whether there is exactly one answer."""
        return len(self.names) == 1


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """The kernels for experts and for dense layers."""

    moe: Choice
    linear: Choice

    def as_expects(self) -> dict[str, t.Any]:
        """Return what is known in the words of a model role's ``expects``."""
        known = {"moe_backend": self.moe.names, "linear_backend": self.linear.names}
        return {key: list(names) if len(names) > 1 else names[0] for key, names in known.items() if names}


def expected_backends(
    version: str,
    scheme: str | None,
    *,
    families: c.Mapping[str, str] | None = None,
    flags: c.Mapping[str, t.Any] | None = None,
) -> Expected:
    """Return which kernels a release picks for a checkpoint's scheme.

    ``families`` are those of the image (native, ptx or none, as cubin_info returns them), where they are known;
    ``flags`` are those of the command line, because a forced backend is no choice any more.
    """
    return Expected(
        moe=_choice("moe", version, scheme, families or {}, (flags or {}).get("moe_backend")),
        linear=_choice("linear", version, scheme, families or {}, (flags or {}).get("linear_backend")),
    )


@functools.cache
def _data() -> dict[str, t.Any]:
    found: dict[str, t.Any] = yaml.safe_load(_DATA.read_text(encoding="utf-8"))
    return found


def _choice(part: str, version: str, scheme: str | None, families: c.Mapping[str, str], forced: str | None) -> Choice:
    if forced and forced != "auto":
        name = _data()["forced"][part].get(forced)
        return Choice((name,) if name else (), f"--{part}-backend {forced} was given")
    rule = _data()["schemes"].get(scheme)
    if rule is None:
        return Choice((), f"how vLLM chooses for {scheme or 'an unknown scheme'} is not known")
    if "only" in rule[part]:
        return Choice(tuple(rule[part]["only"]), f"{rule['source']} ({rule['date']})")
    try:
        catalogue, exact = catalogues.catalogue_for(version)
    except catalogues.UnknownVersionError as error:
        return Choice((), str(error))
    order = catalogue.auto.get(rule[part]["order"], [])
    picked = _first_that_runs(order, families)
    if not picked:
        return Choice((), f"vLLM {catalogue.version} has no order of kernels that could be read")
    stand_in = "" if exact else f", which stands in for {version}"
    return Choice((picked,), f"the first of vLLM {catalogue.version}{stand_in} that runs on 12.1: {', '.join(order)}")


def _first_that_runs(order: c.Sequence[str], families: c.Mapping[str, str]) -> str:
    for name in order:
        kernel = _data()["kernels"].get(name, {})
        if kernel.get("runs") and families.get(kernel.get("family", ""), "native") != "none":
            return name
    return ""
