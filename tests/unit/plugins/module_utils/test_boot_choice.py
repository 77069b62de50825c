# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which kernel GRUB starts next."""

from __future__ import annotations

import pathlib

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _boot_choice as boot
from ansible_collections.gb10.fleet.plugins.module_utils._sysroot import Sysroot
from tests.unit.plugins.module_utils.driver_builder import ADVANCED, SIMPLE, grub_config

NEWEST, MIDDLE, OLDEST = "7.0.0-1019-nvidia", "6.17.0-1032-nvidia", "6.17.0-1029-nvidia"
KERNELS = (NEWEST, MIDDLE, OLDEST)
INNER = f"gnulinux-{MIDDLE}-advanced-1234-ABCD"


def write(root: pathlib.Path, name: str, content: str) -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def observe(root: pathlib.Path, config: str | None, environment: str | None = None) -> boot.Boot:
    if config is not None:
        write(root, boot.CONFIG, config)
    if environment is not None:
        write(root, boot.ENVIRONMENT, f"# GRUB Environment Block\n{environment}\n" + "#" * 900)
    return boot.observe(Sysroot(root), KERNELS)


@pytest.mark.parametrize(
    ("default", "environment", "kernel", "certain", "lost"),
    [
        ("0", None, NEWEST, True, ""),
        ("", None, NEWEST, True, ""),
        ("1>0", None, NEWEST, True, ""),
        ("1>2", None, OLDEST, True, ""),
        (SIMPLE, None, NEWEST, True, ""),
        (f"{ADVANCED}>{INNER}", None, MIDDLE, True, ""),
        (f"Advanced options for Ubuntu>Ubuntu, with Linux {OLDEST}", None, OLDEST, True, ""),
        (INNER, None, NEWEST, True, INNER),
        (f"{ADVANCED}>nothing", None, NEWEST, True, "nothing"),
        ("7", None, NEWEST, True, "7"),
        ("1", None, NEWEST, False, ""),
        ("${saved_entry}", f"saved_entry={ADVANCED}>{INNER}", MIDDLE, True, ""),
        ("${saved_entry}", "saved_entry=", NEWEST, True, ""),
        ("${saved_entry}", None, NEWEST, True, ""),
        ("${saved_entry}", f"saved_entry={INNER}", NEWEST, True, INNER),
        ("0", "next_entry=1>1", MIDDLE, True, ""),
        ("${saved_entry}", "next_entry=1>2\nsaved_entry=1>1", OLDEST, True, ""),
        ("0", "saved_entry=1>2\nrecordfail=1", NEWEST, True, ""),
        ("${strange}${thing}", "saved_entry=1>2", "", False, ""),
    ],
)
def test_the_default(
    tmp_path: pathlib.Path, default: str, environment: str | None, kernel: str, certain: bool, lost: str
) -> None:
    found = observe(tmp_path, grub_config(*KERNELS, default=default), environment)
    assert (found.loader, found.kernel, found.certain, found.lost_default) == ("grub", kernel, certain, lost)
    assert found.releases == KERNELS
    assert found.reason


@pytest.mark.parametrize(
    ("style", "timeout", "hidden"),
    [("hidden", 0, True), ("hidden", 5, True), ("menu", 5, False), ("menu", 0, True), ("menu", -1, False)],
)
def test_a_hidden_menu_is_read_from_what_was_generated(
    tmp_path: pathlib.Path, style: str, timeout: int, hidden: bool
) -> None:
    write(tmp_path, "/etc/default/grub", "GRUB_TIMEOUT=30\nGRUB_TIMEOUT_STYLE=menu\n")
    write(
        tmp_path,
        "/etc/default/grub.d/no-grubmenu.cfg",
        "GRUB_TIMEOUT=0\nGRUB_TIMEOUT_STYLE=hidden\nGRUB_RECORDFAIL_TIMEOUT=0\n",
    )
    found = observe(tmp_path, grub_config(*KERNELS, style=style, timeout=timeout))
    assert found.menu_hidden is hidden
    assert found.hidden_by == ("/etc/default/grub.d/no-grubmenu.cfg" if hidden else "")


def test_a_later_drop_in_shows_the_menu(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "/etc/default/grub.d/no-grubmenu.cfg", "GRUB_TIMEOUT=0\n")
    write(tmp_path, "/etc/default/grub.d/zz-menu.cfg", 'export GRUB_TIMEOUT="5"\nGRUB_TIMEOUT_STYLE=menu\n')
    found = observe(tmp_path, grub_config(*KERNELS, style="hidden", timeout=0))
    assert (found.menu_hidden, found.hidden_by) == (True, "")


def test_without_a_configuration_it_is_a_guess(tmp_path: pathlib.Path) -> None:
    found = observe(tmp_path, None)
    assert (found.loader, found.kernel, found.certain, found.releases) == ("unknown", NEWEST, False, None)
    assert boot.observe(Sysroot(tmp_path), ()).kernel == ""


@pytest.mark.parametrize(
    ("wishes", "environment", "kernel"),
    [
        ("", "", NEWEST),
        ("GRUB_DEFAULT=0\n", "", NEWEST),
        ("GRUB_DEFAULT=saved\n", f"saved_entry={ADVANCED}>{INNER}", MIDDLE),
        ("GRUB_DEFAULT=saved\n", "saved_entry=1>2", ""),
        (f'GRUB_DEFAULT="{ADVANCED}>gnulinux-{OLDEST}-advanced-1234-ABCD"\n', "", OLDEST),
        (f'GRUB_DEFAULT="Advanced options for Ubuntu>Ubuntu, with Linux {OLDEST}"\n', "", OLDEST),
        ("GRUB_DEFAULT=2\n", "", ""),
        ("GRUB_DEFAULT='gnulinux-6.1.0-1-nvidia-advanced-1'\n", "", ""),
    ],
)
def test_a_configuration_that_may_not_be_read_leaves_a_guess(
    tmp_path: pathlib.Path, wishes: str, environment: str, kernel: str
) -> None:
    (tmp_path / boot.CONFIG[1:]).mkdir(parents=True)  # a folder cannot be read as a file, whoever asks
    write(tmp_path, "/etc/default/grub", "GRUB_DEFAULT=0\n")
    write(tmp_path, "/etc/default/grub.d/zz.cfg", wishes)
    found = observe(tmp_path, None, environment)
    assert (found.loader, found.kernel, found.certain) == ("grub", kernel, False)
    assert "may not be read" in found.reason


@pytest.mark.parametrize(("default", "kernel"), [("${saved_entry}", ""), ("0", "")])
def test_variables_that_may_not_be_read(tmp_path: pathlib.Path, default: str, kernel: str) -> None:
    (tmp_path / boot.ENVIRONMENT[1:]).mkdir(parents=True)
    found = observe(tmp_path, grub_config(*KERNELS, default=default))
    assert (found.kernel, found.certain) == (kernel, False)
    assert boot.ENVIRONMENT in found.reason


def test_an_entry_without_a_kernel(tmp_path: pathlib.Path) -> None:
    config = 'set default="0"\nmenuentry "UEFI Firmware Settings" --id uefi {\n\tfwsetup\n}\n' + grub_config(NEWEST)
    found = observe(tmp_path, config.replace('   set default="0"\n', ""))
    assert (found.kernel, found.certain) == ("", False)
    assert "'UEFI Firmware Settings', which names no kernel" in found.reason


def test_a_menu_by_hand() -> None:
    text = "\n".join(
        [
            "menuentry 'One' --id one {",
            "  if [ $x = y ]; then",
            "    linuxefi (hd0,1)/vmlinuz-1.0.0-1-a quiet",
            "  fi",
            "  initrd /initrd.img-1.0.0-1-a",
            "}",
            "function f {",
            "  menu",
            "}",
            "menuentry 'It'\\''s two' {",
            "  linux /boot/Image-2.0.0-1-b",
            "}",
            "submenu More {",
            "  submenu 'Even more' {",
            "    menuentry Three { ",
            "      linux /boot/vmlinux-3.0.0-1-c",
            "    }",
            "  }",
            "}",
            "}",
            "menuentry 'broken {",
        ]
    )
    one, two, more, broken = boot.menu(text)
    assert (one.title, one.id, one.release, one.initrd) == ("One", "one", "1.0.0-1-a", True)
    assert (two.title, two.release, two.initrd) == ("It's two", "2.0.0-1-b", False)
    assert more.children is not None
    assert more.children[0].children is not None
    assert more.children[0].children[0].release == "3.0.0-1-c"
    assert broken.title == "'broken"
    assert boot.resolve("More>Even more>Three", [one, two, more])[0] is more.children[0].children[0]


def test_versions_are_sorted_as_people_count() -> None:
    releases = [
        "6.17.0-999-nvidia",
        "6.17.0-1029-nvidia-64k",
        "7.0.0-1-nvidia",
        "6.17.0-1029-nvidia",
        "6.9.0-1-generic",
    ]
    assert sorted(releases, key=boot.version_key) == [
        "6.9.0-1-generic",
        "6.17.0-999-nvidia",
        "6.17.0-1029-nvidia",
        "6.17.0-1029-nvidia-64k",
        "7.0.0-1-nvidia",
    ]
