# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What was found in an image is found there once."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _cubin_image
from ansible_collections.gb10.fleet.plugins.module_utils._cubin_cache import Cache
from tests.unit.plugins.module_utils.test_cubin_image import REQUEST, FakeEngine, answer_of

IMAGE = "sha256:" + "d" * 64
FOUND = {
    "complete": True,
    "families": {"demo": "native"},
    "kernels": {},
    "files": [],
    "packages": {},
    "findings": [],
}


HOLLOW = json.dumps({"image_id": IMAGE, "found": {}})
DEEP = "[" * 100_000


def scan(engine: FakeEngine, cache: Cache, *, keep: bool = True) -> dict[str, t.Any]:
    return _cubin_image.scan_image(
        engine, "vllm:v0.33.0", REQUEST, script=b"print()", machine="x86_64", cache=cache, keep=keep
    )


def started(engine: FakeEngine) -> int:
    return sum(words[1] == "run" for words in engine.asked)


def test_an_image_is_read_once(tmp_path: Path) -> None:
    engine = FakeEngine({}, answer_of(verdict="ptx"))
    cache = Cache(str(tmp_path / "kernels"), REQUEST, b"print()")
    first, second = scan(engine, cache), scan(engine, cache)
    assert (first["cached"], second["cached"], started(engine)) == (False, True, 1)
    assert {**second, "cached": False} == first
    assert second["image"]["id"] == IMAGE


def test_nothing_is_written_where_nothing_may_be(tmp_path: Path) -> None:
    engine = FakeEngine({}, answer_of())
    cache = Cache(str(tmp_path / "kernels"), REQUEST, b"print()")
    assert scan(engine, cache, keep=False)["cached"] is False
    assert not (tmp_path / "kernels").exists()


@pytest.mark.parametrize(
    ("request_", "script"), [({**REQUEST, "capability": "9.0"}, b"print()"), (REQUEST, b"print(1)")]
)
def test_another_question_is_asked_anew(tmp_path: Path, request_: dict[str, t.Any], script: bytes) -> None:
    Cache(str(tmp_path), REQUEST, b"print()").write(IMAGE, FOUND)
    assert Cache(str(tmp_path), REQUEST, b"print()").read(IMAGE) == FOUND
    assert Cache(str(tmp_path), request_, script).read(IMAGE) is None
    assert Cache(str(tmp_path), REQUEST, b"print()").read("sha256:" + "e" * 64) is None


def test_what_could_not_be_read_to_the_end_is_not_kept(tmp_path: Path) -> None:
    Cache(str(tmp_path), REQUEST, b"").write(IMAGE, {**FOUND, "complete": False})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"image_id": "sha256:other", "found": {}}', '{"found": 1}', HOLLOW, DEEP]
)
def test_a_damaged_file_is_no_answer(tmp_path: Path, damage: str) -> None:
    cache = Cache(str(tmp_path), REQUEST, b"")
    cache.write(IMAGE, FOUND)
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text(encoding="utf-8"))["found"] == FOUND
    path.write_text(damage, encoding="utf-8")
    assert cache.read(IMAGE) is None
    cache.write(IMAGE, FOUND)
    assert cache.read(IMAGE) == FOUND


def test_old_images_are_forgotten(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), REQUEST, b"")
    for number in range(20):
        cache.write(f"sha256:{number:064x}", FOUND)
        for path in tmp_path.glob(f"sha256-{number:064x}*"):
            os.utime(path, (number, number))
    assert len(list(tmp_path.iterdir())) == 16
    assert cache.read(f"sha256:{0:064x}") is None
    assert cache.read(f"sha256:{19:064x}") == FOUND


def test_what_others_keep_in_the_folder_stays_there(tmp_path: Path) -> None:
    foreign = [tmp_path / "daemon.json", tmp_path / "a.b.json", tmp_path / f"sha256-1.{'a' * 16}.json"]
    (tmp_path / f"sha256-2.{'b' * 16}.json").mkdir()
    for path in foreign[:2]:
        path.write_text("{}", encoding="utf-8")
        os.utime(path, (0, 0))
    foreign[2].symlink_to(foreign[0])
    cache = Cache(str(tmp_path), REQUEST, b"")
    for number in range(100, 120):
        cache.write(f"sha256:{number:064x}", FOUND)
    assert all(path.exists() for path in foreign)
    assert (tmp_path / f"sha256-2.{'b' * 16}.json").is_dir()
    assert len(list(tmp_path.iterdir())) == 16 + len(foreign) + 1
