# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The scripted image: the engine image's big layer, and a few kilobytes that answer to ``vllm`` instead of vLLM.

It is made from the very server that the unit tests script, so the two cannot fail in different ways. Its storage is a
copy of the other images' storage by hard links: an edit of the server costs a second, and no build of the big layer.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import platform
import shutil
import tarfile
from pathlib import Path
from typing import Any

from lab.build import Artefact, key_of
from lab.engine.image import NAME, TAG, EngineImages
from lab.registry import Image, Storage
from lab.state import Lab, read_json, write_json

CHECKOUT = Path(__file__).resolve().parent.parent.parent
HOME = "opt/gb10-lab"
SOURCES = (
    "lab/scripted/__init__.py",
    "lab/scripted/engine.py",
    "lab/scripted/faults.py",
    "tests/unit/support/faults.py",
    "tests/unit/support/openai_server.py",
)
"""What of the checkout is in the image, under the same paths."""

CATALOGUE = "plugins/plugin_utils/data/vllm/0.32.0.json"
"""Where the flags are from that the image's vllm has."""

_VLLM = f"""#!/bin/sh
PYTHONPATH=/{HOME} exec python3 -B -u -m lab.scripted.engine "$@"
"""

_CONFIG: dict[str, Any] = {
    "Entrypoint": ["vllm", "serve"],
    "WorkingDir": "/vllm-workspace",
    "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
}


@dataclasses.dataclass(frozen=True)
class Registry:
    """The storage that the hosts serve: the engine images and the scripted one."""

    storage: Path
    scripted: Image


def contents() -> dict[str, tuple[str, int]]:
    """The files of the image's own layer: path to text and mode."""
    flags = json.loads((CHECKOUT / CATALOGUE).read_text(encoding="utf-8"))["flags"]
    files = {f"{HOME}/{source}": ((CHECKOUT / source).read_text(encoding="utf-8"), 0o644) for source in SOURCES}
    return {
        **files,
        f"{HOME}/flags.json": (json.dumps(flags, sort_keys=True), 0o644),
        "usr/local/bin/vllm": (_VLLM, 0o755),
    }


def layer_of(files: dict[str, tuple[str, int]]) -> bytes:
    """A tar of text files, the same bytes every time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for directory in sorted({parent for name in files for parent in Path(name).parents if parent != Path()}):
            entry = tarfile.TarInfo(str(directory))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name, (text, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), mode
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def build(lab: Lab, images: EngineImages) -> Registry:
    """Add the scripted image to the others."""
    layer = layer_of(contents())
    artefact = Artefact(lab, "images", key_of(images.storage.name, layer, Path(__file__)))

    def fill(target: Path) -> None:
        # Files of a storage are written once and never changed.
        shutil.copytree(images.storage, target, copy_function=os.link, dirs_exist_ok=True)
        (target / "images.json").unlink()
        storage = Storage(target)
        layers = (images.base.layers[0], storage.add_layer(iter([layer])))
        image = storage.add_image(NAME, f"{TAG}-scripted", layers, _CONFIG, platform.machine())
        write_json(target / "images.json", {"scripted": dataclasses.asdict(image)})

    path = artefact.ensure(fill)
    return Registry(path, Image.from_json(read_json(path / "images.json")["scripted"]))
