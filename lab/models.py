# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The models of the lab as a Hugging Face cache: found by repository and revision, without a network."""

from __future__ import annotations

import concurrent.futures
import hashlib
import platform
from pathlib import Path
from typing import Any

from lab.build import Artefact, call, chroot_argv, key_of, say
from lab.engine import wheels
from lab.state import Lab, read_json, write_json

NAMES = ("garbage", "coordinator", "extractor")
OWNER = "gb10-lab"

_HERE = Path(__file__).resolve().parent / "engine"


def revision_of(files: dict[str, str]) -> str:
    """A commit-like name for a set of files: SHA-1 over their names and SHA-256 hashes."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha1(lines.encode(), usedforsecurity=False).hexdigest()


def add_to_cache(hub: Path, name: str, source: Path) -> str:
    """Lay a model's files out as the Hugging Face client would after a download; returns the revision."""
    repository = hub / f"models--{OWNER}--{name}"
    blobs = repository / "blobs"
    blobs.mkdir(parents=True)
    digests = {}
    for file in sorted(source.iterdir()):
        digests[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
        file.rename(blobs / digests[file.name])
    revision = revision_of(digests)
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    for file_name, digest in digests.items():
        (snapshot / file_name).symlink_to(f"../../blobs/{digest}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision, encoding="ascii")
    return revision


def build_models(lab: Lab, engine_root: Path) -> Path:
    """Train the models inside the engine's root directory, one to a core."""
    own = [Path(__file__), _HERE / "train.py", _HERE / "lessons.py", wheels.LOCK]
    artefact = Artefact(lab, "models", key_of(platform.machine(), *own))

    def train(name: str, out: Path) -> None:
        out.mkdir()
        argv = chroot_argv(
            engine_root,
            ["env", "HOME=/tmp", "OMP_NUM_THREADS=1", "python3", "-B", "/mnt/train.py", name, "/media"],
            binds={_HERE: "/mnt", out: "/media"},
        )
        log = lab.home / "log" / f"model-{name}.log"
        call(argv, log=log, what=f"Training the model {name}")
        say("models", log.read_text(encoding="utf-8").splitlines()[-1])

    def build(target: Path) -> None:
        raw = target / "raw"
        raw.mkdir()
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            for job in [pool.submit(train, name, raw / name) for name in NAMES]:
                job.result()
        facts = {}
        for name in NAMES:
            revision = add_to_cache(target / "hub", name, raw / name)
            (raw / name).rmdir()
            facts[name] = {"repo": f"{OWNER}/{name}", "revision": revision}
        raw.rmdir()
        write_json(target / "models.json", facts)

    return artefact.ensure(build)


def facts(path: Path) -> dict[str, Any]:
    """Name to repository and revision."""
    return read_json(path / "models.json")
