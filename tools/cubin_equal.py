#!/usr/bin/env python3
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare what _cubin.py reads, entry for entry, with NVIDIA's cuobjdump (PyPI: nvidia-cuda-cuobjdump).

    tools/cubin_equal.py --cuobjdump PATH FILE_OR_WHEEL ...

Every .so of a wheel is compared. One line a file; exits 1 on the first kind of difference that is not the order of
.nv_fatbin and __nv_relfatbin, which cuobjdump lists the other way round in some files. Only the full listing of
cuobjdump is good for this: --list-elf drops the f suffix.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import mmap
import pathlib
import re
import subprocess
import sys
import tempfile
import typing as t
import zipfile

if t.TYPE_CHECKING:
    import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
Row = tuple[str, str, int, int, bool]


def load_cubin() -> types.ModuleType:
    """Import _cubin.py as the self-contained file that it is."""
    spec = importlib.util.spec_from_file_location("_cubin", ROOT / "plugins/module_utils/_cubin.py")
    if spec is None or spec.loader is None:
        raise SystemExit("plugins/module_utils/_cubin.py is not there: run this from a checkout")
    module = importlib.util.module_from_spec(spec)
    sys.modules["_cubin"] = module
    spec.loader.exec_module(module)
    return module


def by_cuobjdump(program: str, path: pathlib.Path) -> list[Row]:
    """Return kind, architecture, version and compression of every entry that cuobjdump lists."""
    done = subprocess.run([program, "-all", str(path)], check=False, capture_output=True, text=True)
    rows: list[Row] = []
    block: dict[str, str] = {}

    def close() -> None:
        if "arch" in block:
            version = re.findall(r"\d+", block.get("code version", "0,0"))
            rows.append((block["kind"], block["arch"], int(version[0]), int(version[1]), "compressed" in block))

    for line in done.stdout.splitlines():
        header = re.match(r"Fatbin (\S+) code:", line)
        if header:
            close()
            block = {"kind": header[1]}
        elif line.startswith("compressed"):
            block["compressed"] = ""
        elif " = " in line:
            key, _equals, value = line.partition(" = ")
            block.setdefault(key, value)
    close()
    return rows


def by_cubin(module: types.ModuleType, path: pathlib.Path) -> tuple[list[Row], list[str]]:
    """Return the same from our reader, and what it complains about."""
    if not path.stat().st_size:
        return [], ["empty"]
    with path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as buf:
        listing = module.parse(buf, str(path))
    rows = [(one.kind, f"sm_{one.sm}{one.suffix}", *one.version, bool(one.codec)) for one in listing.entries]
    return rows, [one["message"] for one in listing.problems]


def files(path: pathlib.Path, folder: pathlib.Path) -> t.Iterator[tuple[str, pathlib.Path]]:
    """Yield the file, or every .so of the wheel, unpacked one after the other."""
    if path.suffix != ".whl":
        yield str(path), path
        return
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            if re.search(r"\.so(\.\d+)*$", name):
                target = pathlib.Path(wheel.extract(name, folder))
                yield f"{path.name}/{name}", target
                target.unlink()


def main() -> int:
    """Compare all files and say how many entries of how many files are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuobjdump", required=True)
    parser.add_argument("paths", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    module = load_cubin()
    total = equal = entries = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in options.paths:
            for name, file in files(path, pathlib.Path(folder)):
                theirs = by_cuobjdump(options.cuobjdump, file)
                ours, problems = by_cubin(module, file)
                verdict = "equal" if ours == theirs else "other order" if sorted(ours) == sorted(theirs) else "DIFFERS"
                total, entries = total + 1, entries + len(ours)
                equal += verdict != "DIFFERS" and not problems
                print(
                    json.dumps({"file": name, "entries": len(ours), "verdict": verdict, "problems": problems}),
                    flush=True,
                )
    print(f"{equal} of {total} files equal, {entries} entries")
    return int(equal != total)


if __name__ == "__main__":
    sys.exit(main())
