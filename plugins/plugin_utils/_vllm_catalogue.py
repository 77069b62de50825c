# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What each vLLM release's command line knows: its flags, parser names and environment variables.

One file per release under data/vllm, made by tools/vllm_catalogue from the release's wheel.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import pathlib
import re
import typing as t

FOLDER: t.Final = pathlib.Path(__file__).parent / "data" / "vllm"

_VERSION: t.Final = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>a|b|rc)[-_.]?(?P<pre_number>\d*))?"
    r"(?:[-_.]?post[-_.]?(?P<post>\d*))?"
    r"(?:[-_.]?dev[-_.]?(?P<dev>\d*))?"
    r"(?:\+(?P<local>[\w.]+))?",
    re.IGNORECASE,
)
_RELEASE_PARTS: t.Final = 4
_LATEST: t.Final = 1 << 30

VersionKey = tuple[tuple[int, ...], int, int, int, int]


class UnknownVersionError(ValueError):
    """A version that no catalogue can stand in for."""


def version_key(version: str) -> VersionKey:
    """Return a key that sorts vLLM versions, development builds before their release.

    A local part such as +cu130 is ignored.
    """
    match = _VERSION.fullmatch(version.strip())
    if not match:
        raise UnknownVersionError(
            f"{version!r} is not a vLLM version; write it like 0.33.0, as `vllm --version` prints it in the image."
        )
    numbers = [int(part) for part in match["release"].split(".")]
    release = tuple((numbers + [0] * _RELEASE_PARTS)[:_RELEASE_PARTS])
    is_dev = match["dev"] is not None
    is_pre = match["pre"] is not None
    is_post = match["post"] is not None
    stage = {"a": 0, "b": 1, "rc": 2}[match["pre"].lower()] if is_pre else (-1 if is_dev and not is_post else 3)
    return (
        release,
        stage,
        int(match["pre_number"] or 0) if is_pre else 0,
        int(match["post"] or 0) if is_post else -1,
        int(match["dev"] or 0) if is_dev else _LATEST,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    """One option of ``vllm serve``, under the long name that its release prefers.

    ``off`` holds the spellings that switch a boolean off, the preferred one first. ``kind`` names the converter of the
    value ("str", "int", "json", "config:CompilationConfig", ...). An ``optional`` value may also be "" or "None".
    """

    name: str
    action: str = "store"
    alias: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    kind: str = "str"
    optional: bool = False
    nargs: str | int | None = None
    const: t.Any = None
    choices: tuple[t.Any, ...] | None = None
    default: t.Any = None
    deprecated: bool = False

    @classmethod
    def from_entry(cls, name: str, entry: dict[str, t.Any]) -> Flag:
        """Make a flag of its entry in a catalogue file."""
        choices = entry.get("choices")
        return cls(
            name=name,
            action=entry.get("action", "store"),
            alias=tuple(entry.get("alias", ())),
            off=tuple(entry.get("off", ())),
            kind=entry.get("type", "str"),
            optional=entry.get("optional", False),
            nargs=entry.get("nargs"),
            const=entry.get("const"),
            choices=None if choices is None else tuple(choices),
            default=entry.get("default"),
            deprecated=entry.get("deprecated", False),
        )

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every spelling that the parser takes for this flag."""
        return (self.name, *self.alias, *self.off)

    @property
    def takes_json(self) -> bool:
        """Whether the value is JSON."""
        return self.kind in {"json", "json_or_str"} or self.kind.startswith("config:")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParserTraits:
    """How a release's parser rewrites a command line before argparse reads it, and which checks follow.

    ``level`` is what -O3 stands for, ``dotted_level`` what -O.x stands for (empty: nothing special); ``serve_model``
    says whether ``vllm serve --model M`` is moved, rejected or kept.
    """

    level: str
    dotted_level: str
    serve_model: str
    serve_needs_model: bool
    dotted_suffixes: bool
    json_suffixes: bool
    tera_suffix: bool
    rules: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """What one release's command line knows. Lists that could not be read from the release are None."""

    version: str
    source: dict[str, str]
    parser: ParserTraits
    flags: dict[str, Flag]
    configs: dict[str, t.Any]
    limits: dict[str, dict[str, float]]
    config_rules: frozenset[str]
    auto: dict[str, list[str]]
    tool_parsers: frozenset[str] | None
    reasoning_parsers: frozenset[str] | None
    reasoning_efforts: frozenset[str] | None
    kv_cache_dtypes: frozenset[str] | None
    load_formats: frozenset[str] | None
    quantization: frozenset[str] | None
    attention_backends: frozenset[str] | None
    env: frozenset[str] | None

    @functools.cached_property
    def by_spelling(self) -> dict[str, Flag]:
        """Return every spelling with its flag."""
        return {spelling: flag for flag in self.flags.values() for spelling in flag.spellings}

    def find(self, name: str) -> Flag | None:
        """Return the flag of a long name, with or without leading dashes, in "_" or "-"."""
        return self.by_spelling.get(long_name(name))


def long_name(name: str) -> str:
    """Return a flag's name as the command line has it: max_model_len is --max-model-len."""
    bare = name.lstrip("-")
    head, dot, tail = bare.partition(".")
    return "--" + head.replace("_", "-") + dot + tail


@functools.cache
def releases() -> tuple[str, ...]:
    """Return the releases that have a catalogue, the oldest first."""
    return tuple(sorted((path.stem for path in FOLDER.glob("*.json") if path.stem[:1].isdigit()), key=version_key))


@functools.cache
def load(release: str) -> Catalogue:
    """Return the catalogue of a release that has one."""
    return parse(json.loads((FOLDER / f"{release}.json").read_text(encoding="utf-8")))


def parse(data: dict[str, t.Any]) -> Catalogue:
    """Return a catalogue from the data of its file."""

    def names(key: str) -> frozenset[str] | None:
        found = data.get(key)
        return None if found is None else frozenset(found)

    return Catalogue(
        version=data["vllm"],
        source=data["source"],
        parser=ParserTraits(**data["parser"] | {"rules": tuple(data["parser"]["rules"])}),
        flags={name: Flag.from_entry(name, entry) for name, entry in data["flags"].items()},
        configs=data["configs"],
        limits=data.get("limits", {}),
        config_rules=frozenset(data.get("config_rules", ())),
        auto=data["auto"],
        tool_parsers=names("tool_parsers"),
        reasoning_parsers=names("reasoning_parsers"),
        reasoning_efforts=names("reasoning_efforts"),
        kv_cache_dtypes=names("kv_cache_dtypes"),
        load_formats=names("load_formats"),
        quantization=names("quantization"),
        attention_backends=names("attention_backends"),
        env=names("env"),
    )


def catalogue_for(version: str) -> tuple[Catalogue, bool]:
    """Return the catalogue of a version, or of the nearest lower release, and whether it is the version's own."""
    wanted = version_key(version)
    lower = [release for release in releases() if version_key(release) <= wanted]
    if not lower:
        first = releases()[0] if releases() else "none"
        raise UnknownVersionError(
            f"vLLM {version} is older than the oldest release whose flags are known ({first}); use a newer image."
        )
    return load(lower[-1]), version_key(lower[-1]) == wanted


@functools.cache
def _releases_by_spelling() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for release in releases():
        for spelling in load(release).by_spelling:
            found.setdefault(spelling, []).append(release)
    return found


def releases_with(spelling: str) -> tuple[str, ...]:
    """Return the releases whose command line takes a spelling, the oldest first."""
    return tuple(_releases_by_spelling().get(spelling, ()))


def nearest(name: str, known: t.Iterable[str]) -> str:
    """Return the known name most like ``name``, or an empty string where none is like it."""
    return _nearest(name, tuple(sorted(known)))


@functools.lru_cache(maxsize=256)
def _nearest(name: str, known: tuple[str, ...]) -> str:
    # The dashes in front are no likeness: --bogus is not --uds.
    bare = {one.lstrip("-"): one for one in known}
    like = difflib.get_close_matches(name.lstrip("-"), list(bare), n=1, cutoff=0.7)
    return bare[like[0]] if like else ""
