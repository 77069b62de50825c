# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which of several files modprobe loads, as depmod decides it."""

from __future__ import annotations

import pathlib

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _kernel_modules as modules
from ansible_collections.gb10.fleet.plugins.module_utils._sysroot import Sysroot
from tests.unit.plugins.module_utils.driver_builder import modules_index

RELEASE = "6.17.0-1029-nvidia"
BASE = f"/lib/modules/{RELEASE}"
CANONICAL = "kernel/nvidia-580-open/nvidia.ko"
DKMS = "updates/dkms/nvidia.ko.zst"
UBUNTU = "search updates ubuntu built-in\n"


def write(root: pathlib.Path, name: str, content: str = "") -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    if path.name == "modules.dep":
        path.with_name("modules.dep.bin").write_bytes(modules_index(content))


def choose(root: pathlib.Path, *paths: str, index: str | None = None, **config: str) -> dict[str, modules.Choice]:
    for path in paths:
        write(root, f"{BASE}/{path}")
    if index is not None:
        write(root, f"{BASE}/modules.dep", index)
    for name, text in config.items():
        write(root, f"/etc/depmod.d/{name}.conf", text)
    return modules.choices(Sysroot(root), RELEASE)


@pytest.mark.parametrize(
    ("config", "chosen", "by"),
    [
        ({}, DKMS, "search"),
        ({"ubuntu": UBUNTU}, DKMS, "search"),
        ({"ubuntu": "search built-in updates\n"}, CANONICAL, "search"),
        ({"a": "search built-in\n", "ubuntu": UBUNTU}, CANONICAL, "search"),
        ({"a": "# search built-in\n\n", "ubuntu": UBUNTU}, DKMS, "search"),
        ({"a": "search \\\n  built-in updates\n"}, CANONICAL, "search"),
        ({"a": "override nvidia * kernel/nvidia-580-open\n", "ubuntu": UBUNTU}, CANONICAL, "search"),
        ({"a": "override nvidia 6\\.17.* kernel/nvidia-580-open\n"}, CANONICAL, "search"),
        ({"a": "override nvidia 6\\.14.* kernel/nvidia-580-open\n"}, DKMS, "search"),
        ({"a": "override nvidia [ kernel/nvidia-580-open\n"}, DKMS, "search"),
        ({"a": "override nvidia-uvm * kernel/nvidia-580-open\n"}, DKMS, "search"),
        ({"a": "search kernel/nvidia-580-open updates\n"}, CANONICAL, "search"),
    ],
)
def test_the_order_of_depmod(tmp_path: pathlib.Path, config: dict[str, str], chosen: str, by: str) -> None:
    choice = choose(tmp_path, CANONICAL, DKMS, **config)["nvidia"]
    other = DKMS if chosen == CANONICAL else CANONICAL
    assert (choice.path, choice.others, choice.chosen_by) == (f"{BASE}/{chosen}", (f"{BASE}/{other}",), by)


def test_a_file_of_configuration_hides_the_one_of_the_same_name(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "/usr/lib/depmod.d/ubuntu.conf", "search built-in updates\n")
    assert choose(tmp_path, CANONICAL, DKMS, ubuntu=UBUNTU)["nvidia"].path.endswith(DKMS)
    (tmp_path / "etc/depmod.d/ubuntu.conf").unlink()
    assert choose(tmp_path)["nvidia"].path.endswith(CANONICAL)


@pytest.mark.parametrize(
    ("index", "path", "stale", "preferred"),
    [
        (f"{DKMS}: kernel/drivers/a.ko\n", DKMS, False, ""),
        (f"kernel/a.ko: x\n{BASE}/{DKMS}:\n", DKMS, False, ""),
        (f"{CANONICAL}:\n", CANONICAL, True, DKMS),
        ("kernel/drivers/a.ko:\n", "", True, DKMS),
        ("kernel/nvidia-570-open/nvidia.ko:\n", "", True, DKMS),
        ("kernel/x.ko: kernel/nvidia-580-open/nvidia.ko\n", "", True, DKMS),
    ],
)
def test_modules_dep_is_what_modprobe_reads(
    tmp_path: pathlib.Path, index: str, path: str, stale: bool, preferred: str
) -> None:
    choice = choose(tmp_path, CANONICAL, DKMS, index=index)["nvidia"]
    assert choice.path == (f"{BASE}/{path}" if path else "")
    assert (choice.stale, choice.preferred) == (stale, f"{BASE}/{preferred}" if preferred else "")
    assert choice.chosen_by == ("modules.dep" if path else "")


def test_modules_dep_names_a_module_of_which_there_is_no_file(tmp_path: pathlib.Path) -> None:
    choice = choose(tmp_path, index=f"{CANONICAL}:\n")["nvidia"]
    assert (choice.path, choice.others, choice.stale) == ("", (), True)


def test_files_of_one_rank_are_a_tie_until_modules_dep_decides(tmp_path: pathlib.Path) -> None:
    other = "kernel/nvidia-595-open/nvidia.ko"
    assert choose(tmp_path, CANONICAL, other)["nvidia"].chosen_by == "tie"
    decided = choose(tmp_path, index=f"{other}:\n")["nvidia"]
    assert (decided.path, decided.chosen_by, decided.stale) == (f"{BASE}/{other}", "modules.dep", False)


@pytest.mark.parametrize(
    ("line", "is_barred"),
    [
        ("install nvidia /bin/false", True),
        ("install nvidia /usr/bin/true # off", True),
        ("alias nvidia off", True),
        ("install nvidia_uvm /bin/false", True),
        ("# install nvidia /bin/false", False),
        ("install nvidia /sbin/modprobe --ignore-install nvidia $CMDLINE_OPTS", False),
        ("install nouveau /bin/false", False),
        # A box without a display may do without it.
        ("install nvidia-drm /bin/false", False),
        ("options nvidia NVreg_RestrictProfilingToAdminUsers=0", False),
        ("alias nvidia nvidia_580", False),
        ("blacklist nvidia", False),
        ("install nvidia", False),
    ],
)
def test_modprobe_may_be_told_not_to_load_a_module(tmp_path: pathlib.Path, line: str, is_barred: bool) -> None:
    write(tmp_path, "/usr/lib/modprobe.d/local.conf", f"{line}\n")
    assert list(modules.barred(Sysroot(tmp_path)).values()) == (
        [f"/usr/lib/modprobe.d/local.conf: {line.partition(' #')[0]}"] if is_barred else []
    )
    # A file of the same name in /etc hides it.
    write(tmp_path, "/etc/modprobe.d/local.conf")
    assert modules.barred(Sysroot(tmp_path)) == {}


def test_what_is_no_module_file(tmp_path: pathlib.Path) -> None:
    folder = "kernel/nvidia-390"
    names = ("nvidia.ko.sig", "nvidia.o", "nvidia.ko.bak", "xnvidia.ko", "nvidia-peermem.ko", "nvidia_fs.ko")
    assert choose(tmp_path, *(f"{folder}/{name}" for name in names), "build/nvidia.ko", "source/nvidia.ko") == {}


@pytest.mark.parametrize("name", ["nvidia-uvm.ko", "nvidia_uvm.ko", "nvidia-uvm.ko.xz", "nvidia-uvm.ko.zst"])
def test_spellings(tmp_path: pathlib.Path, name: str) -> None:
    assert list(choose(tmp_path, f"kernel/nvidia-580-open/{name}")) == ["nvidia-uvm"]


def test_linked_folders_are_followed_once(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "/srv/nvidia/nvidia.ko")
    (tmp_path / BASE[1:] / "updates").mkdir(parents=True)
    (tmp_path / BASE[1:] / "updates" / "dkms").symlink_to(tmp_path / "srv/nvidia")
    (tmp_path / BASE[1:] / "updates" / "loop").symlink_to(tmp_path / BASE[1:])
    choice = choose(tmp_path)["nvidia"]
    assert (choice.path, choice.others) == (f"{BASE}/updates/dkms/nvidia.ko", ())


def test_a_kernel_without_a_folder(tmp_path: pathlib.Path) -> None:
    assert choose(tmp_path) == {}
    assert modules.has_index(Sysroot(tmp_path), RELEASE) is False


@pytest.mark.parametrize(("signatures", "lacking"), [((), 1), (("nvidia.ko.sig",), 0)])
def test_a_split_package_without_its_signatures(
    tmp_path: pathlib.Path, signatures: tuple[str, ...], lacking: int
) -> None:
    folder = f"{BASE}/kernel/nvidia-390/bits"
    for name in ("nvidia.o", "nvidia.mod.o", *signatures):
        write(tmp_path, f"{folder}/{name}")
    found = modules.unsigned_objects(Sysroot(tmp_path), RELEASE)
    assert found == ((folder,) if lacking else ())
