# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make hosts start with the engine image's big layer already in their container engine.

Unpacking 1.1 GB takes half a minute for each host. So one throw-away host pulls an image from the registry, as any box
would, and its engine's data directory becomes the seed of all hosts: each gets a copy of the few megabytes of metadata
and a read-only mount of the one big directory. The image itself is taken out of the seed, so a fresh host has no image
at all: a pull by digest asks the registry for the manifest, fetches configuration and small layer, and finds the big
layer already there.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lab import hosts, roots
from lab.build import Artefact, key_of, say
from lab.engine import image as engine_image
from lab.engine_api import run_in
from lab.names import LabError
from lab.state import Lab, read_json, write_json

if TYPE_CHECKING:
    import docker

_SUITE = "trixie"

_FORGOTTEN = (
    "image/overlay2/imagedb",
    "image/overlay2/repositories.json",
    "engine-id",
    "containers",
    "network",
    "tmp",
    "volumes",
)
"""What a fresh host has to make itself: images, the engine's identity, networks and the like."""


@dataclasses.dataclass(frozen=True)
class Seed:
    """What hosts start their container engine with."""

    metadata: Path
    layer: Path
    """The unpacked big layer."""
    mount: str
    """Where the layer belongs, below the engine's data directory."""


def artefact(lab: Lab, images: engine_image.EngineImages) -> Artefact:
    packages = ",".join(roots.host_packages(_SUITE))
    return Artefact(lab, "seed", key_of(images.storage.name, packages, Path(__file__)))


def build(lab: Lab, client: docker.DockerClient, images: engine_image.EngineImages, host_image: str) -> Seed:
    """Pull once in a throw-away host and keep its engine's data directory."""

    def fill(target: Path) -> None:
        data = target / "docker"
        data.mkdir()
        say("seed", "starting a throw-away host")
        builder = hosts.create_builder(lab, client, host_image, data=data, registry=images.storage)
        try:
            builder.start()
            hosts.wait_for_systemd(builder, seconds=120)
            reference = f"{engine_image.REGISTRY}/{images.seed.name}@{images.seed.digest}"
            say("seed", "a throw-away host pulls the engine's big layer from the registry")
            began = time.monotonic()
            run_in(builder, ["docker", "pull", "--quiet", reference], "Pulling the engine image")
            say("seed", f"pulled in {time.monotonic() - began:.0f} s")
            run_in(builder, ["systemctl", "stop", "docker.socket", "docker.service"], "Stopping the container engine")
        finally:
            builder.remove(force=True, v=True)
        _shape(target, data, images)

    path = artefact(lab, images).ensure(fill)
    facts = read_json(path / "seed.json")
    return Seed(path / "docker", path / "layer", facts["mount"])


def _shape(target: Path, data: Path, images: engine_image.EngineImages) -> None:
    big = images.seed.layers[0].diff_id.removeprefix("sha256:")
    cache_id = data / "image/overlay2/layerdb/sha256" / big / "cache-id"
    if not cache_id.exists():
        msg = f'The throw-away host\'s engine keeps no layer "{big}": the lab knows the overlay2 storage driver only.'
        raise LabError(msg)
    mount = f"overlay2/{cache_id.read_text(encoding='ascii')}/diff"
    # The seed image's own small layer stays without an image: its parent, the big layer, is then in use for ever, and
    # removing every image of a host never tries to delete what is mounted read-only.
    (data / mount).rename(target / "layer")
    (data / mount).mkdir(mode=0o755)
    for name in _FORGOTTEN:
        path = data / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    write_json(target / "seed.json", {"mount": mount})
