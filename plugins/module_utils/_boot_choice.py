# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which kernel the boot loader starts next, read from what GRUB itself reads: generated configuration and variables.

/etc/default/grub only says what somebody wanted; the drop-ins beside it win over it, and nothing holds until grub.cfg
was generated. An entry inside a submenu is found only by "<submenu>><entry>": its bare name matches nothing at the
top, and GRUB then starts the first entry without a word.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import itertools
import re
import shlex
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._sysroot import Sysroot

CONFIG: t.Final = "/boot/grub/grub.cfg"
ENVIRONMENT: t.Final = "/boot/grub/grubenv"
_WISHES: t.Final = "/etc/default/grub"
_DROP_INS: t.Final = "/etc/default/grub.d"
_OPENS: t.Final = re.compile(r"^\s*(menuentry|submenu)\s+(.*)\{\s*$")
_KERNEL: t.Final = re.compile(r"^\s*linux\S*\s+\S*?(?:vmlinu[xz]|Image)-(\S+)")
_DEFAULT: t.Final = re.compile(r'^\s*set default="?([^"]*)"?\s*$')
_TIMEOUT: t.Final = re.compile(r"^\s*set timeout=(-?\d+)\s*$")
_STYLE: t.Final = re.compile(r"^\s*set timeout_style=(\w+)\s*$")
_SAVED_RELEASE: t.Final = re.compile(r"(\d+\.\d+\.\d+-[\w.+-]+?)(?:-advanced|-recovery|-simple|$|>|\s)")
_DEPTH: t.Final = 16


@dataclasses.dataclass(slots=True)
class Entry:
    """An entry of the menu, with the kernel that it starts, or a submenu with its entries."""

    title: str
    id: str
    release: str = ""
    initrd: bool = False
    children: list[Entry] | None = None

    def is_called(self, name: str) -> bool:
        """Return whether a part of the default means this entry."""
        return name in (self.id, self.title)


@dataclasses.dataclass(frozen=True, slots=True)
class Boot:
    """What the boot loader will do. ``releases`` are the kernels of its entries, None where they could not be read."""

    loader: t.Literal["grub", "unknown"]
    kernel: str = ""
    certain: bool = False
    reason: str = ""
    releases: tuple[str, ...] | None = None
    menu_hidden: bool | None = None
    hidden_by: str = ""
    lost_default: str = ""


def version_key(release: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts releases of kernels as people count: 1029 comes after 999."""
    parts = re.findall(r"\d+|[^\d.-]+", release)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)


def observe(files: Sysroot, bootable: c.Sequence[str]) -> Boot:
    """Return which kernel boots next. ``bootable`` are those with an image, the highest version first."""
    text = files.text(CONFIG)
    environment = variables(files.text(ENVIRONMENT) or "")
    if text is not None:
        known = None if ENVIRONMENT in files.unreadable else environment
        return _from_config(text, known, _hiding_drop_in(files))
    highest = bootable[0] if bootable else ""
    if CONFIG not in files.unreadable:
        reason = "no boot loader's configuration was found, so it is the highest version" if highest else ""
        return Boot("unknown", highest, False, reason)
    wishes = _wishes(files)
    default = wishes.get("GRUB_DEFAULT", "0")
    if default == "0":
        reason = f"{CONFIG} may not be read; GRUB_DEFAULT is 0, which is the highest version as a rule"
        return Boot("grub", highest, False, reason if highest else "")
    named = _SAVED_RELEASE.search(environment.get("saved_entry", "") if default == "saved" else default)
    if named and named[1] in bootable:
        return Boot("grub", named[1], False, f"{CONFIG} may not be read; the default names this kernel")
    return Boot("grub", "", False, f"{CONFIG} may not be read, and the default {default} does not name a kernel")


def variables(text: str) -> dict[str, str]:
    """Parse GRUB's environment block."""
    lines = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, found, value in lines if found}


def _from_config(text: str, environment: dict[str, str] | None, hidden_by: str) -> Boot:
    entries = menu(text)
    releases = tuple(dict.fromkeys(entry.release for entry in _flat(entries) if entry.release))
    hidden = _is_hidden(text)
    common: dict[str, t.Any] = {
        "releases": releases,
        "menu_hidden": hidden,
        "hidden_by": hidden_by if hidden else "",
    }
    wanted, known = _wanted(text, environment)
    if not known:
        return Boot(
            "grub", "", False, f"{CONFIG} takes the default from {ENVIRONMENT}, which may not be read", **common
        )
    entry, certain, lost = resolve(wanted, entries)
    if entry is None or not entry.release:
        what = f"the default {wanted or 0}" + (
            f" is {entry.title!r}, which names no kernel" if entry else " is nothing"
        )
        return Boot("grub", "", False, f"{CONFIG}: {what}", lost_default=lost, **common)
    reason = f"{CONFIG}: the default {wanted or 0} is {entry.title!r}"
    return Boot("grub", entry.release, certain, reason, lost_default=lost, **common)


def _wanted(text: str, environment: dict[str, str] | None) -> tuple[str, bool]:
    """Return the default that holds at the next boot, and whether it is known."""
    defaults = [match[1] for match in map(_DEFAULT.match, text.splitlines()) if match]
    once = any("next_entry" in default for default in defaults)
    standing = [default for default in defaults if "next_entry" not in default]
    last = standing[-1] if standing else "0"
    if environment is None:
        return last, not once and "$" not in last
    if once and environment.get("next_entry"):
        return environment["next_entry"], True
    named = re.fullmatch(r"\$\{?(\w+)\}?", last)
    if named:
        return environment.get(named[1], ""), True
    return last, "$" not in last


def menu(text: str) -> list[Entry]:
    """Parse the menu of a generated grub.cfg."""
    top: list[Entry] = []
    # Each open brace: the list that entries inside go to, and the entry whose lines these are.
    open_: list[tuple[list[Entry], Entry | None]] = []
    for line in text.splitlines():
        match = _OPENS.match(line)
        siblings, current = open_[-1] if open_ else (top, None)
        if match and len(open_) < _DEPTH:
            entry = _entry(match[2])
            if match[1] == "submenu":
                entry.children = []
            siblings.append(entry)
            open_.append((entry.children, None) if entry.children is not None else (siblings, entry))
        elif line.rstrip().endswith("{") and "${" not in line.split()[-1]:
            open_.append((siblings, current))
        elif line.strip() == "}":
            open_ = open_[:-1]
        elif current is not None:
            kernel = _KERNEL.match(line)
            if kernel:
                current.release = kernel[1]
            current.initrd = current.initrd or line.split()[:1] == ["initrd"]
    return top


def _entry(words: str) -> Entry:
    try:
        parts = shlex.split(words)
    except ValueError:
        parts = words.split()
    name = ""
    for flag, value in itertools.pairwise(parts):
        if flag in ("--id", "$menuentry_id_option"):
            name = value
    return Entry(title=parts[0] if parts else "", id=name)


def _flat(entries: c.Iterable[Entry]) -> c.Iterator[Entry]:
    for entry in entries:
        yield entry
        yield from _flat(entry.children or ())


def resolve(wanted: str, entries: list[Entry]) -> tuple[Entry | None, bool, str]:
    """Return the entry that a default means, whether that is certain, and the part of it that matches nothing."""
    found: Entry | None = None
    certain, lost, level = True, "", entries
    for part in re.split(r"(?<!>)>(?!>)", wanted or "0")[:_DEPTH]:
        if not level:
            break
        found = next((entry for entry in level if entry.is_called(part)), None)
        if found is None and part.isdigit() and int(part) < len(level):
            found = level[int(part)]
        if found is None:
            found, lost = level[0], part
        level = found.children or []
    while found is not None and found.children is not None:
        # A default that is a submenu opens it; which entry starts then depends on the timeout of another menu.
        found, certain = (found.children[0] if found.children else None), False
    return found, certain and found is not None, lost


def _is_hidden(text: str) -> bool | None:
    """Return whether the menu does not show: the first timeout after a style, as grub-mkconfig writes them."""
    style = ""
    timeout: int | None = None
    for line in text.splitlines():
        match = _STYLE.match(line)
        if match:
            style, timeout = match[1], None
        match = _TIMEOUT.match(line)
        if match and (timeout is None or not style):
            timeout = int(match[1])
    if timeout is None and not style:
        return None
    return style in ("hidden", "countdown") or timeout == 0


def _wishes(files: Sysroot) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in (_WISHES, *(f"{_DROP_INS}/{name}" for name in files.listing(_DROP_INS) if name.endswith(".cfg"))):
        found |= _assignments(files.text(path) or "")
    return found


def _assignments(text: str) -> dict[str, str]:
    lines = (line.strip().removeprefix("export ").partition("=") for line in text.splitlines())
    return {name: value.strip("\"'") for name, found, value in lines if found and name.isidentifier()}


def _hiding_drop_in(files: Sysroot) -> str:
    """Return the last drop-in that hides the menu, or an empty string."""
    hiding = ""
    for name in files.listing(_DROP_INS):
        if name.endswith(".cfg"):
            said = _assignments(files.text(f"{_DROP_INS}/{name}") or "")
            if said.get("GRUB_TIMEOUT_STYLE") == "hidden" or said.get("GRUB_TIMEOUT") == "0":
                hiding = f"{_DROP_INS}/{name}"
            elif "GRUB_TIMEOUT" in said or "GRUB_TIMEOUT_STYLE" in said:
                hiding = ""
    return hiding
