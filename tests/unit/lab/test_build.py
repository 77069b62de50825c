# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest

from lab.build import Artefact, call, key_of, mounts_below, prune, remove_tree
from lab.names import LabError
from lab.state import Lab


def test_key_depends_on_every_part(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_text("one")
    keys = {key_of("a", "b"), key_of("ab"), key_of("a", "b", file), key_of("b", "a")}
    before = key_of(file)
    file.write_text("two")
    assert len(keys) == 4
    assert key_of(file) != before
    assert key_of(b"two") == key_of(file)


def test_artefact_is_built_once(tmp_path: Path) -> None:
    builds = []

    def build(target: Path) -> None:
        builds.append(target)
        (target / "file").write_text("whole")

    artefact = Artefact(Lab(tmp_path), "thing", "0123")
    assert artefact.ensure(build) == artefact.ensure(build)
    assert len(builds) == 1
    assert (artefact.path / "file").read_text() == "whole"
    assert not builds[0].exists()


def test_half_built_is_never_taken_for_whole(tmp_path: Path) -> None:
    artefact = Artefact(Lab(tmp_path), "thing", "0123")

    def fail(target: Path) -> None:
        (target / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        artefact.ensure(fail)
    assert not artefact.path.exists()
    artefact.ensure(lambda target: (target / "whole").touch())
    assert [entry.name for entry in artefact.path.iterdir()] == ["whole"]


def test_prune_keeps_what_is_used(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    new, old = Artefact(lab, "thing", "new"), Artefact(lab, "thing", "old")
    for artefact in (new, old):
        artefact.ensure(lambda target: None)
    prune(lab, [new.path])
    assert sorted(lab.cache.iterdir()) == [new.path]


def test_remove_tree(tmp_path: Path) -> None:
    home = Lab(tmp_path).home
    (home / "cache" / "thing").mkdir(parents=True)
    remove_tree(home / "absent")
    remove_tree(home / "cache")
    assert home.is_dir()
    assert not (home / "cache").exists()


def test_remove_tree_stays_in_a_lab(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    for path in (tmp_path / "precious", tmp_path / ".lab" / ".." / "precious"):
        with pytest.raises(LabError, match="the lab does not remove it"):
            remove_tree(path)
    assert (tmp_path / "precious").is_dir()


def test_remove_tree_does_not_follow_a_link_out_of_the_lab(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / ".lab").mkdir()
    (tmp_path / ".lab" / "tmp").symlink_to(tmp_path / "precious")
    with pytest.raises(LabError, match="the lab does not remove it"):
        remove_tree(tmp_path / ".lab" / "tmp")
    assert (tmp_path / "precious").is_dir()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/x/.lab/tmp/root", ["/x/.lab/tmp/root/proc"]),
        ("/x/.lab/tmp/root/proc", ["/x/.lab/tmp/root/proc"]),
        ("/x/.lab/tmp/ro", []),
        ("/x/.lab", ["/x/.lab/tmp/root/proc", "/x/.lab/with space"]),
        ("/", ["/", "/x/.lab/tmp/root/proc", "/x/.lab/with space"]),
    ],
)
def test_mounts_below(path: str, expected: list[str]) -> None:
    mounts = (
        "/dev/vda / ext4 rw 0 0\nproc /x/.lab/tmp/root/proc proc rw 0 0\ntmpfs /x/.lab/with\\040space tmpfs rw 0 0\n"
    )
    assert mounts_below(Path(path), mounts) == expected


def test_remove_tree_refuses_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Lab(tmp_path).home
    (home / "tmp").mkdir(parents=True)
    monkeypatch.setattr("lab.build.mounts_below", lambda path, mounts: [f"{path}/proc"])
    with pytest.raises(LabError, match="is still mounted"):
        remove_tree(home / "tmp")
    assert (home / "tmp").is_dir()


def test_call_shows_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log" / "x.log"
    call(["sh", "-c", "echo fine"], log=log, what="Trying")
    assert log.read_text() == "fine\n"
    with pytest.raises(LabError, match=r"(?s)Trying failed with exit status 3; the end of .*x\.log:\n +too bad"):
        call(["sh", "-c", "echo too bad; exit 3"], log=log, what="Trying")
