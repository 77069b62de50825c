# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write requirements.lock, the engine's wheels by version and hash.

Run it with Python 3.11, the interpreter of the engine image (markers are evaluated for the interpreter that resolves):

    python3.11 lab/engine/lock.py

pip's own configuration says where packages come from. One index has to offer torch with the +cpu suffix.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

# What a text-only server on a CPU never imports (tried by serving chats without it), or what breaks it.
DROP = {
    "torchvision": "the build on PyPI does not fit torch with the +cpu suffix",
    "torchaudio": "as torchvision",
    "torchcodec": "as torchvision",
    "triton": "GPU only; vLLM says that it is not installed even when it is",
    "numba": "n-gram speculation only, with llvmlite 240 MB",
    "llvmlite": "only numba needs it",
    "opencv-python-headless": "video input only",
    "pycountry": "only mistral_common needs it",
    "mistral-common": "Mistral's own tokenizers only",
    "hf-xet": "downloads only; the lab serves offline",
    "anthropic": "types for an API that the lab does not serve",
    "supervisor": "not a part of serving",
    "outlines-core": "one of several back ends for structured output",
    "cryptography": "tokens signed with a certificate only",
}

# torch with the +cpu suffix lies on an index of its own, which need not be within reach where this program runs.
# Source: nixpkgs, pkgs/development/python-modules/torch, read 2026-11-29.
TORCH_AARCH64 = "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7"

# Wheels that exist for one architecture only, and the marker that says so.
ONE_ARCH = {"intel-openmp": "x86_64", "intel-cmplr-lib-ur": "x86_64"}

GLIBC_MINORS = range(36, 4, -1)  # Debian bookworm has glibc 2.36


def canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def report(*arguments: str) -> list[dict[str, Any]]:
    """What pip would install."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
             "--only-binary=:all:", "--report", str(file), *arguments],
            check=True,
        )  # fmt: skip
        installs: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["install"]
    return installs


def hashes(installs: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Canonical name to version and SHA-256."""
    return {
        canonical(entry["metadata"]["name"]): (
            entry["metadata"]["version"],
            entry["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for entry in installs
    }


def main() -> None:
    if tuple(sys.version_info[:2]) != (3, 11):
        sys.exit("Run this program with Python 3.11, the interpreter of the engine image.")
    wanted = hashes(report("-r", str(HERE / "requirements.in")))
    wanted = {name: found for name, found in sorted(wanted.items()) if name not in DROP}
    pins = [f"{name}=={version}" for name, (version, _) in wanted.items() if name != "torch" and name not in ONE_ARCH]
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in GLIBC_MINORS]
    abis = ["--implementation=cp", "--python-version=3.11", "--abi=cp311", "--abi=abi3", "--abi=none"]
    with tempfile.TemporaryDirectory() as folder:
        other = hashes(report("--no-deps", f"--target={folder}", *platforms, *abis, *pins))
    other["torch"] = (wanted["torch"][0], TORCH_AARCH64)
    lines = [
        "# Written by lab/engine/lock.py from requirements.in; do not edit.",
        "# The first hash is the wheel for x86_64, the second the one for aarch64 where it is another file.",
    ]
    for name, (version, digest) in wanted.items():
        marker = f' ; platform_machine == "{ONE_ARCH[name]}"' if name in ONE_ARCH else ""
        found = [digest] + [h for v, h in [other.get(name, (version, digest))] if h != digest and v == version]
        lines.append(f"{name}=={version}{marker}" + "".join(f" \\\n    --hash=sha256:{value}" for value in found))
    (HERE / "requirements.lock").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(wanted)} packages written to {HERE / 'requirements.lock'}; left out: {', '.join(sorted(DROP))}.")


if __name__ == "__main__":
    main()
