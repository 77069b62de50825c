#!/usr/bin/env python3
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write the truth table of docs/cubins.md from wheels on PyPI.

    tools/cubin_table.py --work DIR add vllm==0.33.0 ...   download, scan, keep the facts, delete the wheel
    tools/cubin_table.py render                           write the tables into docs/cubins.md

The facts are kept in docs/cubins.json, a row for each wheel with its sha256 and the day it was read. A wheel has up to
700 MB; one at a time is on disk. Wheels that are in DIR already are used, and kept.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import typing as t

import yaml

if t.TYPE_CHECKING:
    import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
FACTS = ROOT / "docs/cubins.json"
PAGE = ROOT / "docs/cubins.md"
CAPABILITY = "12.1"
GLIBCS = ("2_39", "2_35", "2_34", "2_31", "2_28", "2_27", "2_24", "2_17")

# The columns of the vLLM table: heading, families.
COLUMNS = (
    ("NVFP4 dense", "nvfp4_dense"),
    ("NVFP4 MoE", "nvfp4_moe"),
    ("FP8 dense", "fp8_dense"),
    ("FP8 blockwise", "fp8_blockwise"),
    ("Marlin dense", "marlin_dense"),
    ("Marlin MoE", "marlin_moe"),
    ("Marlin repack", "marlin_repack"),
    ("MXFP4 (QuTLASS)", "mxfp4_dense"),
    ("FA2", "fa2"),
    ("FA3", "fa3"),
    ("FlashMLA", "flashmla"),
    ("GDN / KDA", "gdn"),
    ("Mamba", "mamba"),
)


def load_cubin() -> types.ModuleType:
    """Import _cubin.py as the self-contained file that it is."""
    spec = importlib.util.spec_from_file_location("_cubin", ROOT / "plugins/module_utils/_cubin.py")
    if spec is None or spec.loader is None:
        raise SystemExit("plugins/module_utils/_cubin.py is not there: run this from a checkout")
    module = importlib.util.module_from_spec(spec)
    sys.modules["_cubin"] = module
    spec.loader.exec_module(module)
    return module


def download(requirement: str, machine: str, work: pathlib.Path) -> tuple[pathlib.Path, bool]:
    """Return the wheel of a requirement for a machine, and whether it was there before."""
    name, _equals, version = requirement.partition("==")
    stem = f"{name.replace('-', '_')}-{version}-"

    def here() -> list[pathlib.Path]:
        return [path for path in work.glob(f"{stem}*.whl") if path.name.endswith((f"{machine}.whl", "any.whl"))]

    if here():
        return here()[0], True
    platforms = [f"manylinux_{glibc}_{machine}" for glibc in GLIBCS] + [f"manylinux2014_{machine}", "any"]
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(work)]
    words += [word for platform in platforms for word in ("--platform", platform)]
    subprocess.run([*words, "--python-version", "3.12", "--implementation", "cp", requirement], check=True)
    return here()[0], False


def scan(module: types.ModuleType, wheel: pathlib.Path, families: list[t.Any]) -> dict[str, t.Any]:
    """Return the row of a wheel."""
    with wheel.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    found = module.scan_request({"capability": CAPABILITY, "families": families, "paths": [str(wheel)]})
    if not found["complete"]:
        raise SystemExit(f"{wheel.name} was not read in full: {found['findings'][0]['message']}")
    prefix = f"{wheel}/"
    return {
        "wheel": wheel.name,
        "sha256": digest,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "stamp": next((facts["stamp"] for facts in found["packages"].values() if "stamp" in facts), ""),
        "families": {
            name: {key: found["kernels"][name][key] for key in ("native", "ptx", "not_loadable", "archs")}
            | {"verdict": one}
            for name, one in found["families"].items()
            if any(found["kernels"][name][key] for key in ("native", "ptx", "not_loadable"))
        },
        "files": [
            {key: row[key] for key in ("entries", "archs", "native", "ptx", "sha256")}
            | {"path": row["path"].removeprefix(prefix) if row["path"] != str(wheel) else "*.cubin"}
            for row in found["files"]
            if row["entries"]
        ],
    }


def key(row: dict[str, t.Any]) -> tuple[t.Any, ...]:
    """Sort by package, version and machine."""
    name, version = row["wheel"].split("-")[:2]
    return name, [int(part) for part in re.findall(r"\d+", version)], row["wheel"]


def add(options: argparse.Namespace) -> None:
    """Read the wheels that are named and keep their facts."""
    module = load_cubin()
    families = yaml.safe_load((ROOT / "plugins/plugin_utils/data/kernel_families.yml").read_text())["families"]
    for requirement in options.requirements:
        wheel, kept = download(requirement, options.machine, options.work)
        row = scan(module, wheel, families)
        if not kept:
            wheel.unlink()
        rows = [old for old in json.loads(FACTS.read_text()) if old["wheel"] != row["wheel"]] if FACTS.exists() else []
        FACTS.write_text(json.dumps(sorted([*rows, row], key=key), indent=1) + "\n")
        print(row["wheel"], {name: facts["verdict"] for name, facts in row["families"].items()}, flush=True)


def cell(row: dict[str, t.Any], family: str) -> str:
    """Return what a table says of a family in a wheel."""
    facts = row["families"].get(family)
    if not facts:
        return "-"
    if facts["verdict"] == "native":
        return f"**native** {facts['native']}"
    if facts["verdict"] == "ptx":
        return f"ptx {facts['ptx']}" + (f", native {facts['native']}" if facts["native"] else "")
    return f"none ({', '.join(sorted(facts['archs']))})"


def arch_order(name: str) -> tuple[str, int, str]:
    """Sort sm_80, sm_100a, sm_120, compute_80."""
    prefix, _underscore, number = name.partition("_")
    digits = re.match(r"\d+", number)
    return ("z" if prefix == "compute" else prefix, int(digits[0]) if digits else 0, number)


def render() -> None:
    """Write the tables between the marks of docs/cubins.md."""
    rows = json.loads(FACTS.read_text())
    text = ["", "### vLLM wheels", "", f"| wheel | {' | '.join(head for head, _family in COLUMNS)} |"]
    text.append("|---" * (len(COLUMNS) + 1) + "|")
    vllm = [row for row in rows if row["wheel"].startswith("vllm-")]
    for row in vllm:
        name, version, *_rest = row["wheel"].removesuffix(".whl").split("-")
        machine = "aarch64" if "aarch64" in row["wheel"] else "x86_64"
        cells = " | ".join(cell(row, family) for _head, family in COLUMNS)
        text.append(f"| {name} {version} {machine} | {cells} |")
    text += ["", "### Every wheel, every file", ""]
    text += ["| wheel, sha256, date read | file | cubins and PTX in it | loads on 12.1 |", "|---|---|---|---|"]
    for row in rows:
        title = f"{row['wheel']}<br>`{row['sha256']}`<br>{row['date']}"
        for file in row["files"]:
            ordered = sorted(file["archs"], key=arch_order)
            archs = ", ".join(f"{file['archs'][arch]} {arch}" for arch in ordered)
            use = f"{file['native']} native" if file["native"] else ""
            use += (", " if use else "") + f"{file['ptx']} ptx" if file["ptx"] else ""
            text.append(f"| {title} | {file['path']} | {archs} | {use or 'nothing'} |")
            title = ""
    page = PAGE.read_text()
    start, end = "<!-- tables: tools/cubin_table.py render -->", "<!-- end of tables -->"
    head, _start, rest = page.partition(start)
    _old, _end, tail = rest.partition(end)
    PAGE.write_text(f"{head}{start}\n" + "\n".join(text) + f"\n\n{end}{tail}")


def main() -> None:
    """Read wheels, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/var/tmp"), help="where wheels are put")  # noqa: S108
    parser.add_argument("--machine", choices=("aarch64", "x86_64"), default="aarch64")
    parser.add_argument("action", choices=("add", "render"))
    parser.add_argument("requirements", nargs="*")
    options = parser.parse_args()
    if options.action == "add":
        add(options)
    else:
        render()


if __name__ == "__main__":
    main()
