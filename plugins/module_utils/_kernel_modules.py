# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which file modprobe would load for a module, out of several.

modprobe asks modules.dep.bin, which depmod has written, with a modules.dep beside it for people. depmod prefers
folders in the order of its configuration ("search" lines of depmod.d), where Ubuntu puts updates/ before everything
else: a module that DKMS once built beats the one that Canonical signed, without a word. Where two files are of the same
rank, depmod keeps the one that the file system happens to list first, which nobody can tell in advance.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import os
import pathlib
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _kmod_index
from ansible_collections.gb10.fleet.plugins.module_utils._sysroot import Sysroot

# Those that are judged, as their files spell them. nvidia-peermem is not: it cannot load on a GB10 anyway.
NAMES: t.Final = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm")
# Without these two there is no CUDA; the others are for displays.
NEEDED: t.Final = NAMES[:2]
_FILE: t.Final = re.compile(r"(nvidia(?:[-_](?:uvm|modeset|drm))?)\.ko(?:\.gz|\.xz|\.zst)?")
# Later folders give way to files of the same name in earlier ones.
_CONFIG: t.Final = ("/etc/depmod.d", "/run/depmod.d", "/usr/local/lib/depmod.d", "/usr/lib/depmod.d", "/lib/depmod.d")
_MODPROBE_CONFIG: t.Final = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
# What keeps modprobe from loading a module that somebody asks for by name, as nvidia-persistenced does.
_BARS: t.Final = {("install", "false"), ("install", "true"), ("install", ":"), ("alias", "off")}
_BUILT_IN: t.Final = "built-in"


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A module and the file that modprobe loads; empty where it finds none. ``others`` lose against it.

    ``stale`` says that the next run of depmod would choose another file, which ``preferred`` names.
    """

    name: str
    path: str
    others: tuple[str, ...]
    chosen_by: t.Literal["modules.dep", "search", "tie", ""]
    stale: bool = False
    preferred: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class SearchOrder:
    """depmod's preferences: folders, the best first, and single modules that are taken from a certain folder."""

    folders: tuple[str, ...] = ("updates",)
    overrides: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_texts(cls, texts: c.Iterable[str], release: str) -> SearchOrder:
        """Parse configuration files in the order in which depmod reads them."""
        folders: list[str] = []
        overrides: list[tuple[str, str]] = []
        for text in texts:
            for line in text.replace("\\\n", " ").splitlines():
                words = line.split("#", 1)[0].split()
                if words[:1] == ["search"]:
                    folders += words[1:]
                elif words[:1] == ["override"] and len(words) == 4 and _matches(words[2], release):
                    overrides.insert(0, (words[1].replace("_", "-"), words[3].strip("/")))
        return cls(tuple(folders) or cls().folders, tuple(overrides))

    def rank(self, module: str, path: str) -> int:
        """Return how good a file is, the lower the better. The path is relative to the kernel's folder."""
        for position, (name, folder) in enumerate(self.overrides):
            if name == module and os.path.dirname(path) == folder:  # noqa: PTH120  # a relative path of text
                return position - len(self.overrides)
        for position, folder in enumerate(self.folders):
            if folder != _BUILT_IN and path.startswith(f"{folder.strip('/')}/"):
                return position
        return self.folders.index(_BUILT_IN) if _BUILT_IN in self.folders else len(self.folders)


def _matches(pattern: str, release: str) -> bool:
    if pattern == "*":
        return True
    try:
        return re.search(pattern, release) is not None
    except re.error:
        return False


def search_order(files: Sysroot, release: str) -> SearchOrder:
    """Read depmod's configuration."""
    texts = (files.text(path) for path in _configuration(files, _CONFIG))
    return SearchOrder.from_texts((text for text in texts if text), release)


def _configuration(files: Sysroot, folders: c.Iterable[str]) -> list[str]:
    """Return the files of a configuration, in the order in which they are read."""
    found: dict[str, str] = {}
    for folder in folders:
        for name in files.listing(folder):
            if name.endswith(".conf"):
                found.setdefault(name, f"{folder}/{name}")
    return [found[name] for name in sorted(found)]


def has_index(files: Sysroot, release: str) -> bool:
    """Return whether depmod has run for a kernel: without its index modprobe finds nothing."""
    return _listed(files, release) is not None


def _listed(files: Sysroot, release: str) -> dict[str, str] | None:
    """Return the paths that modprobe finds, by module, or None where it has no index to look into."""
    base = f"/lib/modules/{release}"
    index = files.read(f"{base}/modules.dep.bin")
    if index is None:
        return None
    try:
        lines = {name: _kmod_index.lookup(index, name.replace("-", "_")) for name in NAMES}
    except _kmod_index.IndexDamagedError:
        return None
    paths = {name: line.partition(":")[0].removeprefix(f"{base}/") for name, line in lines.items()}
    return {name: path for name, path in paths.items() if path}


def is_complete(files: Sysroot, release: str) -> bool:
    """Return whether all of a kernel's folder could be read."""
    base = f"/lib/modules/{release}"
    return not any(path == base or path.startswith(f"{base}/") for path in files.unreadable)


def choices(files: Sysroot, release: str) -> dict[str, Choice]:
    """Return, by name, the modules that are there for a kernel or that its index speaks of."""
    base = f"/lib/modules/{release}"
    candidates = _files(files, base)
    index = _listed(files, release)
    listed = index or {}
    order = search_order(files, release)
    if not is_complete(files, release):
        # What the index names may be in a folder that is closed to us: it is there until the opposite is seen.
        for name, path in listed.items():
            candidates.setdefault(name, []).append(path)
    return {
        name: _choose(name, base, candidates.get(name, []), None if index is None else listed.get(name, ""), order)
        for name in NAMES
        if name in candidates or name in listed
    }


def _choose(name: str, base: str, found: c.Iterable[str], listed: str | None, order: SearchOrder) -> Choice:
    paths = sorted(set(found))
    ranks = {path: order.rank(name, path) for path in paths}
    best = [path for path in paths if ranks[path] == min(ranks.values())]
    if listed is None:
        path, by = (best[0] if best else ""), "search" if len(best) == 1 else "tie"
    else:
        path, by = listed if listed in paths else "", "modules.dep"
    preferred = "" if path in best else best[0] if best else listed or ""
    return Choice(
        name=name,
        path=f"{base}/{path}" if path else "",
        others=tuple(f"{base}/{other}" for other in paths if other != path),
        chosen_by=t.cast("t.Literal['modules.dep', 'search', 'tie', '']", by if path else ""),
        stale=bool(preferred) or (listed is not None and listed != path),
        preferred=f"{base}/{preferred}" if preferred else "",
    )


def _name(stem: str) -> str:
    return stem.replace("_", "-")


def _files(files: Sysroot, base: str) -> dict[str, list[str]]:
    """Return, by module, the paths of its files, relative to the kernel's folder. Linked folders are followed once."""
    found: dict[str, list[str]] = {}
    top = files.at(base)
    seen: set[tuple[int, int]] = set()

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            files.unreadable[files.name(pathlib.Path(error.filename))] = error.strerror or str(error)

    for folder, folders, names in os.walk(top, onerror=note, followlinks=True):
        status = os.stat(folder)  # noqa: PTH116  # a Path for each of a thousand folders takes its time
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        if folder == str(top):
            folders[:] = [name for name in folders if name not in ("build", "source")]
        for name in names:
            match = _FILE.fullmatch(name)
            if match:
                found.setdefault(_name(match[1]), []).append(os.path.relpath(os.path.join(folder, name), top))  # noqa: PTH118
    return found


def barred(files: Sysroot) -> dict[str, str]:
    """Return, by module, the line of modprobe.d that has modprobe do something else than load it."""
    found: dict[str, str] = {}
    for path in _configuration(files, _MODPROBE_CONFIG):
        for line in (files.text(path) or "").replace("\\\n", " ").splitlines():
            words = line.split("#", 1)[0].split()
            name = _name(words[1]) if len(words) > 2 else ""
            command = words[2].rpartition("/")[2] if name else ""
            if name in NEEDED and (words[0], command) in _BARS:
                found.setdefault(name, f"{path}: {' '.join(words)}")
    return found


def unsigned_objects(files: Sysroot, release: str) -> tuple[str, ...]:
    """Return folders with the parts of a split package (objects here, signatures there) that lack the signatures."""
    base = f"/lib/modules/{release}/kernel"
    lacking = []
    for name in files.listing(base):
        if name.startswith("nvidia-"):
            parts = files.listing(f"{base}/{name}/bits")
            objects = [part for part in parts if part.endswith(".o")]
            if objects and not any(part.endswith(".ko.sig") for part in parts):
                lacking.append(f"{base}/{name}/bits")
    return tuple(lacking)
