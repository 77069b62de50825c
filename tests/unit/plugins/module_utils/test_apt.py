# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import multiprocessing
import pathlib
import subprocess
import sys

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _apt

SIMULATED = """\
NOTE: This is only a simulation!
Reading package lists...
The following packages will be REMOVED:
  nvidia-dkms-580-open
Remv nvidia-dkms-580-open [580.142-0ubuntu0.24.04.1]
Inst nvidia-kernel-common-580 [580.142-0ubuntu0.24.04.1] (580.173.02-0ubuntu0.24.04.1 Ubuntu:24.04 [arm64]) []
Inst linux-image-6.17.0-1029-nvidia (6.17.0-1029.29 Ubuntu:24.04/noble-updates [arm64])
Inst libnvidia-compute-580:arm64 (580.173.02-0ubuntu0.24.04.1 Ubuntu:24.04/noble-updates [arm64])
Conf linux-image-6.17.0-1029-nvidia (6.17.0-1029.29 Ubuntu:24.04/noble-updates [arm64])
"""

UNMET = """\
Some packages could not be installed.
The following packages have unmet dependencies:
 nvidia-driver-580-open : Depends: nvidia-dkms-580-open (<= 580.95.05-1)
 linux-modules-nvidia-580-open-nvidia-hwe-24.04   : Depends: nvidia-kernel-common-580 (>= 580.142)
"""

POLICY = """\
nvidia-driver-580-open:
  Installed: 580.142-0ubuntu0.24.04.1
  Candidate: 580.173.02-0ubuntu0.24.04.1
  Version table:
     580.173.02-0ubuntu0.24.04.1 500
        500 http://ports.ubuntu.com noble-updates/restricted arm64 Packages
 *** 580.142-0ubuntu0.24.04.1 100
        100 /var/lib/dpkg/status
nvidia-dkms-580-open:
  Installed: (none)
  Candidate: (none)
  Version table:
     580.173.02-0ubuntu0.24.04.1 -1
        500 http://ports.ubuntu.com noble-updates/restricted arm64 Packages
nvidia-dkms-kernel:
  Installed: (none)
  Candidate: (none)
  Version table:
"""


def test_a_simulated_transaction_is_read_line_by_line() -> None:
    assert [action.line() for action in _apt.parse_simulation(SIMULATED)] == [
        "remove nvidia-dkms-580-open 580.142-0ubuntu0.24.04.1",
        "upgrade nvidia-kernel-common-580 580.142-0ubuntu0.24.04.1 -> 580.173.02-0ubuntu0.24.04.1",
        "install linux-image-6.17.0-1029-nvidia 6.17.0-1029.29",
        "install libnvidia-compute-580 580.173.02-0ubuntu0.24.04.1",
    ]


@pytest.mark.parametrize("line", ["Inst", "Inst ", "Conf x (1)", "Removing nothing", ""])
def test_what_is_no_action_is_none(line: str) -> None:
    assert _apt.parse_simulation(line) == ()


def test_what_apt_could_install_is_read_with_its_versions() -> None:
    found = _apt.parse_policy(POLICY)
    assert found["nvidia-driver-580-open"] == _apt.Candidate(
        "580.173.02-0ubuntu0.24.04.1", ("580.173.02-0ubuntu0.24.04.1", "580.142-0ubuntu0.24.04.1")
    )
    # Known, but pinned away: a minus may name it. One that is only provided by others may not be named.
    assert found["nvidia-dkms-580-open"].version == ""
    assert "nvidia-dkms-kernel" not in found


@pytest.mark.parametrize(
    ("out", "err", "words"),
    [
        (
            UNMET,
            "E: Unable to correct problems, you have held broken packages.\n",
            (
                "nvidia-driver-580-open : Depends: nvidia-dkms-580-open (<= 580.95.05-1); "
                "linux-modules-nvidia-580-open-nvidia-hwe-24.04 : Depends: nvidia-kernel-common-580 (>= 580.142); "
                "Unable to correct problems, you have held broken packages."
            ),
        ),
        ("", "W: something\nE: Failed to fetch http://ppa/x.deb  Connection refused\n", "Failed to fetch"),
        ("", "sudo: a password is required\n", "sudo: a password is required"),
    ],
)
def test_why_apt_refuses_is_told_in_its_own_words(out: str, err: str, words: str) -> None:
    assert words in _apt.complaint(out, err)


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("580.142-0ubuntu0.24.04.1", "580.142"),
        ("580.173.02-0ubuntu0.24.04.1", "580.173.02"),
        ("6.17.0-1029.29+1000", "6.17.0"),
        ("1:580.142-1", "580.142"),
        ("580.142", "580.142"),
    ],
)
def test_the_distributions_part_of_a_version_is_left_out(version: str, upstream: str) -> None:
    assert _apt.upstream(version) == upstream


@pytest.mark.parametrize(
    ("status", "broken", "installed", "unfinished"),
    [
        ("installed", False, True, False),
        ("installed", True, False, True),
        ("config-files", False, False, False),
        ("half-configured", False, False, True),
        ("unpacked", False, False, True),
        ("half-installed", False, False, True),
        ("triggers-pending", False, False, True),
    ],
)
def test_a_package_is_there_only_as_a_whole(status: str, broken: bool, installed: bool, unfinished: bool) -> None:
    package = _apt.Package("x", "install", status, "1", broken=broken)
    assert (package.installed, package.unfinished) == (installed, unfinished)


def test_a_pin_that_is_not_written_yet_is_seen_by_apt() -> None:
    argv = _apt.install_argv(["a", "b-"], "--simulate", preferences=pathlib.Path("/pins"), lock_timeout_s=7)
    assert argv[-3:] == ["install", "a", "b-"]
    assert "Dir::Etc::PreferencesParts=/pins" in argv
    assert "DPkg::Lock::Timeout=7" in argv
    assert "--no-install-recommends" in argv


def _hold(path: str, ready: multiprocessing.synchronize.Event, done: multiprocessing.synchronize.Event) -> None:
    import fcntl

    with pathlib.Path(path).open("w", encoding="utf-8") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        ready.set()
        done.wait(60)


def test_who_holds_a_lock_is_known_by_process_and_name(tmp_path: pathlib.Path) -> None:
    lock = tmp_path / "var/lib/dpkg/lock-frontend"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert _apt.lock_holder(tmp_path) is None
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(str(lock), ready, done))
    process.start()
    try:
        assert ready.wait(60)
        folder = tmp_path / "proc" / str(process.pid)
        folder.mkdir(parents=True)
        (folder / "cmdline").write_text("/usr/bin/python3\0/usr/bin/unattended-upgrade\0")
        found = _apt.lock_holder(tmp_path)
    finally:
        done.set()
        process.join()
    assert found is not None
    assert found.words() == f"process {process.pid} (unattended-upgrade) holds /var/lib/dpkg/lock-frontend"
    assert _apt.lock_holder(tmp_path) is None


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("/bin/sh\0/usr/sbin/update-secureboot-policy\0--enroll-key\0", True),
        ("pgrep\0update-secureboot-policy\0", False),
        ("", False),
    ],
)
def test_a_prompt_for_a_password_is_found_among_the_processes(
    tmp_path: pathlib.Path, command: str, found: bool
) -> None:
    (tmp_path / "proc/4790").mkdir(parents=True)
    (tmp_path / "proc/4790/cmdline").write_text(command)
    prompt = _apt.mok_prompt(tmp_path)
    assert (prompt is not None and prompt.pid == 4790) is found


@pytest.mark.skipif(sys.platform != "linux", reason="dpkg is a program of Debian and Ubuntu")
def test_dpkg_is_asked_for_a_failure_in_its_own_words() -> None:
    def run(argv: list[str]) -> tuple[int, str, str]:
        done = subprocess.run(
            ["sh", "-c", "echo 'E: nothing works' >&2; exit 2"], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    with pytest.raises(_apt.AptError, match="nothing works"):
        _apt.packages(run)
