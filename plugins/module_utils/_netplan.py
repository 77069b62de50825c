# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tries a netplan file in a copy of the box's netplan before it is put in place, and says what it would change.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import pathlib
import re
import shutil
import tempfile
import typing as t

_FOLDERS: t.Final = ("etc/netplan", "run/netplan", "lib/netplan", "usr/lib/netplan")
# What `netplan generate` writes for the daemons behind it.
_GENERATED: t.Final = ("run/systemd/network", "run/NetworkManager", "run/udev/rules.d", "etc/systemd/network")
_NETPLAN_S: t.Final = 60.0

Run = c.Callable[[list[str]], tuple[int, str, str]]


class NetplanError(Exception):
    """A netplan file that must not be put in place, with the reason."""


def trial(run: Run, path: pathlib.Path, text: str, interfaces: c.Collection[str], root: pathlib.Path) -> None:
    """Generate with the file and without it, in a folder of its own; raise NetplanError where it does too much.

    Only what is generated for the given interfaces may differ. Whatever carries the management connection is so left
    alone, however it is named.
    """
    with tempfile.TemporaryDirectory(prefix="gb10-fleet-netplan-") as folder:  # 0700: netplan files may hold passwords
        before = _generated(run, pathlib.Path(folder) / "before", root, path, None)
        after = _generated(run, pathlib.Path(folder) / "after", root, path, text)
    foreign = sorted(
        name
        for name in before.keys() | after.keys()
        if not any(interface in name for interface in interfaces)
        and _without(before.get(name, ""), interfaces) != _without(after.get(name, ""), interfaces)
    )
    if foreign:
        raise NetplanError(
            f"{path} would also change what netplan generates for others: {', '.join(foreign)}; nothing was changed"
        )


def _generated(
    run: Run, scratch: pathlib.Path, root: pathlib.Path, path: pathlib.Path, text: str | None
) -> dict[str, str]:
    """Return every file that netplan generates in a copy of the box, with our file or without it."""
    for name in _FOLDERS:
        source = root / name
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, scratch / name, dirs_exist_ok=True)
    ours = scratch / path.relative_to("/")
    ours.parent.mkdir(parents=True, exist_ok=True)
    ours.unlink(missing_ok=True)
    if text is not None:
        ours.touch(mode=0o600)
        ours.write_text(text, encoding="utf-8")
    code, _out, err = run(["netplan", "generate", "--root-dir", str(scratch)])
    if code != 0:
        reason = " ".join(err.replace(str(scratch), "").split())
        whose = "without the fabric, too" if text is None else "with the fabric in it"
        raise NetplanError(f"`netplan generate` fails in a copy of this box, {whose}: {reason}; nothing was changed")
    return {
        str(file.relative_to(scratch)): file.read_text(encoding="utf-8", errors="replace")
        for folder in _GENERATED
        for file in sorted((scratch / folder).rglob("*"))
        if file.is_file()
    }


def _without(text: str, interfaces: c.Collection[str]) -> list[str]:
    """Return the lines of a file that several interfaces share, without what they say of the given ones.

    Such are udev's rules (a line each), and NetworkManager's list of what it has to leave alone (one line for all).
    """
    kept = []
    for line in text.splitlines():
        names = [name for name in interfaces if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", line)]
        if names and "interface-name:" not in line:
            continue
        for name in names:
            line = re.sub(rf"interface-name:{re.escape(name)}(?![\w.-]),?", "", line)  # noqa: PLW2901
        if line.strip() and not line.startswith(("#", "[")) and not line.endswith("="):
            kept.append(line.rstrip(","))
    return kept


def apply(run: t.Callable[..., tuple[int, str, str]]) -> str:
    """Put in place what netplan's files say; return why that failed, empty where it did not."""
    code, _out, err = run(["netplan", "apply"], timeout_s=_NETPLAN_S)
    return "" if code == 0 else " ".join(err.split()) or f"exit status {code}"
