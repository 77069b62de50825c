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
    """What the boot log has to name: one of ``names``; none where it is not known. ``why`` says how we know.

    ``forced`` says that the command line left no choice. ``passed_over`` are kernels that vLLM would have preferred and
    the image lacks; ``refused`` are all that the image lacks where none is left.
    """

    names: tuple[str, ...]
    why: str
    forced: bool = False
    passed_over: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

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


@dataclasses.dataclass(frozen=True, slots=True)
class Kernels:
    """What an image holds, as far as it was looked at; what was not looked at is taken for granted.

    ``families`` are native, ptx, none or unknown; ``packages`` the Python packages and the CUDA tools (None: not
    known); ``compiles`` says by family whether FlashInfer can compile it there (None: not known).
    """

    families: c.Mapping[str, str] = dataclasses.field(default_factory=dict)
    packages: frozenset[str] | None = None
    compiles: c.Mapping[str, bool | None] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_image(cls, found: c.Mapping[str, t.Any]) -> Kernels:
        """Take what cubin_info returned."""
        # Of single files and wheels it is not known what will be installed beside them.
        packages = frozenset(found["packages"]) | frozenset(found["tools"]) if "tools" in found else None
        compiles = {name: detail.get("jit") for name, detail in found["kernels"].items()}
        return cls(found["families"], packages, compiles)

    def lacks(self, name: str) -> str:
        """Return what vLLM asks for before it picks a kernel and does not find, empty where it finds all."""
        kernel = _data()["kernels"].get(name, {})
        package = kernel.get("package", "")
        if package and not self._has(package):
            return str(package)
        family = kernel.get("family", "")
        return str(family) if self.families.get(family, "native") == "none" else ""

    def _has(self, package: str) -> bool:
        if self.packages is None:
            return True
        helpers = _data()["packages"].get(package, {}).get("any", ())
        return package in self.packages and (not helpers or bool(self.packages & set(helpers)))

    def cannot_compile(self, name: str) -> str:
        """Return the kernels that vLLM takes for granted and that can neither be loaded nor compiled; mostly empty."""
        family = _data()["kernels"].get(name, {}).get("takes", "")
        is_missing = self.families.get(family, "native") == "none" and self.compiles.get(family) is False
        return str(family) if is_missing else ""

    def verdict(self, name: str) -> str:
        """Return whether a kernel is there as native code or as ptx; empty where it is not known."""
        return self.families.get(_data()["kernels"].get(name, {}).get("family", ""), "")


def expected_backends(
    version: str,
    scheme: str | None,
    *,
    kernels: Kernels | None = None,
    flags: c.Mapping[str, t.Any] | None = None,
) -> Expected:
    """Return which kernels a release picks for a checkpoint's scheme.

    ``kernels`` are those of the image, where it was looked at; ``flags`` are those of the command line, because a
    forced backend is no choice any more.
    """
    there = kernels or Kernels()
    return Expected(
        moe=_choice("moe", version, scheme, there, (flags or {}).get("moe_backend")),
        linear=_choice("linear", version, scheme, there, (flags or {}).get("linear_backend")),
    )


def native_since(name: str) -> str:
    """Return the first vLLM wheel in which a kernel is native code for 12.1, empty where it is not known."""
    family = _data()["kernels"].get(name, {}).get("family", "")
    return str(_data()["native_since"].get(family, ""))


@functools.cache
def _data() -> dict[str, t.Any]:
    found: dict[str, t.Any] = yaml.safe_load(_DATA.read_text(encoding="utf-8"))
    return found


def _choice(part: str, version: str, scheme: str | None, kernels: Kernels, forced: str | None) -> Choice:
    if forced and forced != "auto":
        name = _data()["forced"][part].get(forced)
        return Choice((name,) if name else (), f"--{part}-backend {forced} was given", forced=True)
    rule = _data()["schemes"].get(scheme)
    if rule is None:
        return Choice((), f"how vLLM chooses for {scheme or 'an unknown scheme'} is not known")
    if "only" in rule[part]:
        possible = tuple(rule[part]["only"])
        lacking = tuple(name for name in possible if kernels.lacks(name))
        left = tuple(name for name in possible if name not in lacking)
        return Choice(left, f"{rule['source']} ({rule['date']})", refused=() if left else lacking)
    try:
        catalogue, exact = catalogues.catalogue_for(version)
    except catalogues.UnknownVersionError as error:
        return Choice((), str(error))
    order = catalogue.auto.get(rule[part]["order"], [])
    known = [name for name in order if _data()["kernels"].get(name, {}).get("runs")]
    lacking = tuple(name for name in known if kernels.lacks(name))
    picked = next((name for name in known if name not in lacking), "")
    if not picked:
        nothing = f"vLLM {catalogue.version} has no order of kernels that could be read"
        return Choice((), nothing if not known else "the image has none of them", refused=lacking)
    stand_in = "" if exact else f", which stands in for {version}"
    why = f"the first of vLLM {catalogue.version}{stand_in} that runs on 12.1: {', '.join(order)}"
    return Choice((picked,), why, passed_over=lacking[: known.index(picked)])
