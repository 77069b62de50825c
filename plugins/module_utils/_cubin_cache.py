# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keeps what was found in an image on the box, so that the second look takes no time.

An image's id is the hash of its content, so what was found in it stays true. What was asked for (capability, table of
kernel families) and the script that read it are part of the key: an update of the collection looks again.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import tempfile
import typing as t

_KEPT: t.Final = 16  # files; a box sees a new image some times a month
_LIMIT: t.Final = 64 << 20  # bytes; what an image may answer with
_OWN_NAME: t.Final = re.compile(r"[0-9a-zA-Z-]{1,80}\.[0-9a-f]{16}\.json")
_SHAPE: t.Final = {
    "families": dict,
    "kernels": dict,
    "files": list,
    "packages": dict,
    "findings": list,
    "complete": bool,
}


def is_answer(data: object) -> bool:
    """Return whether this has the shape of what the script answers; an image or a file may say anything."""
    return isinstance(data, dict) and all(isinstance(data.get(key), kind) for key, kind in _SHAPE.items())


class Cache:
    """A folder with one file for an image and a question."""

    def __init__(self, folder: str, request: t.Mapping[str, t.Any], script: bytes) -> None:
        """Remember the folder and the question; nothing is read yet."""
        self._folder = pathlib.Path(folder)
        question = json.dumps(request, sort_keys=True).encode()
        self._question = hashlib.sha256(question + script).hexdigest()[:16]

    def read(self, image_id: str) -> dict[str, t.Any] | None:
        """Return what was found in the image, or None where it has not been looked at (or the file is damaged)."""
        path = self._path(image_id)
        try:
            if path.stat().st_size > _LIMIT:
                return None
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, RecursionError, ValueError):
            return None
        whole = isinstance(data, dict) and data.get("image_id") == image_id and is_answer(data.get("found"))
        return t.cast("dict[str, t.Any]", data["found"]) if whole else None

    def write(self, image_id: str, found: t.Mapping[str, t.Any]) -> None:
        """Keep what was found, if it is complete; raise OSError where that cannot be written."""
        if not found.get("complete"):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"image_id": image_id, "found": found}, file)
            pathlib.Path(name).replace(self._path(image_id))
        except BaseException:
            pathlib.Path(name).unlink(missing_ok=True)
            raise
        self._forget_the_oldest()

    def _path(self, image_id: str) -> pathlib.Path:
        plain = re.sub(r"[^0-9a-zA-Z]", "-", image_id)[:80]
        return self._folder / f"{plain}.{self._question}.json"

    def _forget_the_oldest(self) -> None:
        # The folder may be anybody's: only what has the name and the kind of a file of ours is one.
        with os.scandir(self._folder) as entries:
            own = [one for one in entries if _OWN_NAME.fullmatch(one.name) and one.is_file(follow_symlinks=False)]
        for entry in sorted(own, key=lambda one: one.stat(follow_symlinks=False).st_mtime, reverse=True)[_KEPT:]:
            pathlib.Path(entry.path).unlink(missing_ok=True)
