# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build steps whose results are kept under a hash of what went in."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lab.names import LabError
from lab.state import HOME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lab.state import Lab

_started = time.monotonic()
_print_lock = threading.Lock()


def say(what: str, message: str) -> None:
    """Print one progress line with the time since the command began."""
    elapsed = int(time.monotonic() - _started)
    with _print_lock:
        print(f"lab {elapsed // 60}:{elapsed % 60:02d}  {what:<14} {message}", flush=True)


def key_of(*parts: str | bytes | Path) -> str:
    """Twelve hexadecimal digits over texts and the contents of files, in order."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.hexdigest()[:12]


@dataclasses.dataclass(frozen=True)
class Artefact:
    """A directory that a build step makes. It exists under its final name only when it is whole."""

    lab: Lab
    name: str
    key: str

    @property
    def path(self) -> Path:
        return self.lab.cache / f"{self.name}-{self.key}"

    def ensure(self, build: Callable[[Path], None]) -> Path:
        """Return the directory, building it first when it is not there.

        Args:
            build: Fills the empty directory that it is given.
        """
        if self.path.is_dir():
            return self.path
        partial = self.lab.tmp / f"{self.name}-{self.key}"
        remove_tree(partial)
        partial.mkdir(parents=True)
        with timed(self.name):
            build(partial)
        self.lab.cache.mkdir(parents=True, exist_ok=True)
        partial.rename(self.path)
        return self.path


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    """Say when a step starts and how long it took."""
    began = time.monotonic()
    say(what, "started")
    yield
    say(what, f"done in {time.monotonic() - began:.0f} s")


def prune(lab: Lab, keep: Iterable[Path]) -> None:
    """Remove artefacts of older inputs, which nothing uses any more."""
    wanted = set(keep)
    for path in sorted(lab.cache.iterdir()):
        if path not in wanted:
            say("cache", f"removing {path.name}, which is out of date")
            remove_tree(path)


def mounts_below(path: Path, mounts: str) -> list[str]:
    """Mount points at or below a path, from the text of /proc/self/mounts."""
    points = [line.split()[1].encode().decode("unicode_escape") for line in mounts.splitlines()]
    return [point for point in points if Path(point).is_relative_to(path)]


def remove_tree(path: Path) -> None:
    """Remove a directory of a lab; never one outside a lab's home, and never one with something mounted in it."""
    resolved = path.resolve()
    if HOME not in resolved.parts:
        msg = f'"{resolved}" is not below a directory called {HOME}: the lab does not remove it.'
        raise LabError(msg)
    if not resolved.exists():
        return
    busy = mounts_below(resolved, Path("/proc/self/mounts").read_text(encoding="utf-8"))
    if busy:
        msg = f'"{busy[0]}" is still mounted: unmount it ("umount {busy[0]}"), then run the command again.'
        raise LabError(msg)
    shutil.rmtree(resolved)


def copy_tree(source: Path, target: Path) -> None:
    """Copy what is in a root directory into another directory, device files as such."""
    subprocess.run(["cp", "--archive", f"{source}/.", str(target)], check=True)


_running: set[subprocess.Popen[bytes]] = set()
_stopping = threading.Event()


def call(argv: list[str], *, log: Path, what: str) -> None:
    """Run a program with its output in a log file; on failure, show the end of that file.

    It gets a process group of its own, which `stop_all` ends, and dies with this program even if that is killed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    if _stopping.is_set():
        msg = f"{what} was not started: another step failed first."
        raise LabError(msg)
    with (
        log.open("wb") as output,
        subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        _running.add(process)
        status = process.wait()
        _running.discard(process)
    if status:
        tail = "\n    ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
        msg = f"{what} failed with exit status {status}; the end of {log}:\n    {tail}"
        raise LabError(msg)


def stop_all() -> None:
    """End every program that `call` has running and let it start no more, so that the threads of all steps end."""
    _stopping.set()
    for process in tuple(_running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


ISOLATED = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
"""Mount and process namespaces of its own: when the command is interrupted, neither mounts nor processes are left."""


def chroot_argv(root: Path, argv: list[str], *, binds: dict[Path, str] | None = None) -> list[str]:
    """Command line that runs a program inside a root directory, isolated and with some directories mounted in it."""
    lines = [
        "set -e",
        "r=$1; shift",
        'mount -t proc proc "$r/proc"',
        'mount --rbind /dev "$r/dev"',
        'mount -t tmpfs tmpfs "$r/tmp"',
    ]
    arguments = []
    for source, target in (binds or {}).items():
        lines += ['mkdir -p "$r$2"', 'mount --bind "$1" "$r$2"', "shift 2"]
        arguments += [str(source), target]
    lines.append('exec chroot "$r" "$@"')
    return [*ISOLATED, "sh", "-c", "\n".join(lines), "sh", str(root), *arguments, *argv]
