# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Packs the collection's program for a box: one zipapp of the module_utils that it needs.

The same sources give the same bytes, so that copying it twice changes nothing.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import ast
import io
import pathlib
import typing as t
import zipfile

_PACKAGE: t.Final = "ansible_collections.gb10.fleet.plugins.module_utils"
_SOURCES: t.Final = pathlib.Path(__file__).parents[1] / "module_utils"
_ENTRY: t.Final = "_box"
_FIXED_TIME: t.Final = (1980, 1, 1, 0, 0, 0)
_MAIN: t.Final = f"import sys\nfrom {_PACKAGE} import {_ENTRY}\nsys.exit({_ENTRY}.main())\n"


def program(sources: pathlib.Path = _SOURCES) -> bytes:
    """Return the zipapp."""
    folder = _PACKAGE.replace(".", "/")
    files = {"__main__.py": _MAIN.encode()}
    parts = folder.split("/")
    for depth in range(1, len(parts) + 1):
        files["/".join((*parts[:depth], "__init__.py"))] = b""
    for name in needed(sources):
        files[f"{folder}/{name}.py"] = (sources / f"{name}.py").read_bytes()
    packed = io.BytesIO()
    packed.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _FIXED_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return packed.getvalue()


def needed(sources: pathlib.Path = _SOURCES) -> tuple[str, ...]:
    """Return the module_utils that the program imports, directly or through another, in order of name."""
    found: set[str] = set()
    waiting = [_ENTRY]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _imports((sources / f"{name}.py").read_text(encoding="utf-8"))
    return tuple(sorted(found))


def _imports(source: str) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == _PACKAGE:
                names += [alias.name for alias in node.names]
            elif node.module.startswith(f"{_PACKAGE}."):
                names.append(node.module.removeprefix(f"{_PACKAGE}."))
    return names
