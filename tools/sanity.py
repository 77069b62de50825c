#!/usr/bin/env python3
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs ansible-test sanity on what an installed collection would be.

ansible-test wants to stand in ``ansible_collections/<namespace>/<name>``. The artifact that ansible-galaxy builds is
unpacked there, so that what is tested is what a user gets, and not what else lies in the checkout.

    tools/sanity.py [arguments of ansible-test sanity]
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

import ansible_test
import yaml

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]
# ansible-test keeps its virtual environments below the home folder; this one goes away with "make clean".
HOME = CHECKOUT / ".cache" / "sanity"

# ansible-test fetches a script that puts pip into an empty environment. Python brings its own copy of pip along, so
# with this in its place nothing but the package index is needed.
BOOTSTRAP = """\
import subprocess, sys
subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
wanted = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(subprocess.run([sys.executable, "-m", "pip", "install", *wanted]).returncode)
"""


def main() -> int:
    """Build, unpack, test."""
    galaxy = yaml.safe_load((CHECKOUT / "galaxy.yml").read_text(encoding="utf-8"))
    scripts = pathlib.Path(sys.executable).parent
    prepare_pip()
    with tempfile.TemporaryDirectory(prefix="gb10-fleet-sanity-") as folder:
        root = pathlib.Path(folder)
        built = root / "built"
        subprocess.run(
            [scripts / "ansible-galaxy", "collection", "build", CHECKOUT, "--output-path", built],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        target = root / "ansible_collections" / galaxy["namespace"] / galaxy["name"]
        target.mkdir(parents=True)
        with tarfile.open(next(built.glob("*.tar.gz"))) as artifact:
            artifact.extractall(target, filter="data")
        # ansible-test lists the files of a git repository, and falls back to walking the folder with warnings.
        for git in (["init", "--quiet"], ["add", "--all"]):
            subprocess.run(["git", *git], cwd=target, check=True)
        path = os.pathsep.join((str(scripts), *interpreters(), os.environ["PATH"]))
        wanted = sys.argv[1:] or ["--color", "no"]
        return subprocess.run(
            [scripts / "ansible-test", "sanity", *wanted],
            cwd=target,
            env={**os.environ, "PATH": path, "HOME": str(HOME)},
            check=False,
        ).returncode


def prepare_pip() -> None:
    """Put our script where ansible-test would keep the one that it fetches, under the name that it asks for."""
    source = pathlib.Path(ansible_test.__file__).parent / "_internal" / "python_requirements.py"
    version = re.search(r"\bpip='([0-9.]+)'", source.read_text(encoding="utf-8"))
    if version is None:
        raise SystemExit(f"tools/sanity.py: {source} no longer says which pip ansible-test wants; adapt prepare_pip()")
    cache = HOME / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    # ansible-test passes no PIP_* variable on, so what they say goes into the file that pip reads anyway.
    settings = "".join(
        f"{name.removeprefix('PIP_').lower().replace('_', '-')} = {value}\n"
        for name, value in sorted(os.environ.items())
        if name.startswith("PIP_") and name != "PIP_CONFIG_FILE"
    )
    (HOME / ".config" / "pip").mkdir(parents=True, exist_ok=True)
    (HOME / ".config" / "pip" / "pip.conf").write_text(f"[global]\n{settings}", encoding="utf-8")
    (cache / f"get_pip_{version[1].replace('.', '_')}.py").write_text(BOOTSTRAP, encoding="utf-8")


def interpreters() -> list[str]:
    """Return the folders of the Pythons that modules run on here: found by running them, since a shim may be dead."""
    found = []
    for version in ("3.11", "3.12", "3.13"):
        for folder in (*os.environ["PATH"].split(os.pathsep), *map(str, known_folders(version))):
            program = pathlib.Path(folder) / f"python{version}"
            if program.is_file() and "shims" not in program.parts and runs(program):
                found.append(folder)
                break
    return found


def known_folders(version: str) -> list[pathlib.Path]:
    """Return where version managers keep a Python of this version."""
    return sorted((pathlib.Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin"), reverse=True)


def runs(program: pathlib.Path) -> bool:
    """Return whether an interpreter can be started."""
    return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
