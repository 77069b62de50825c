# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where a lab keeps its files, and the two JSON files that tell others about it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.names import LabError, Names, lab_id

if TYPE_CHECKING:
    from collections.abc import Iterator


HOME = ".lab"
"""The one directory of a checkout that the lab writes to."""


@dataclasses.dataclass(frozen=True)
class Lab:
    """One checkout's lab. Everything that it keeps on disk is below `home`."""

    checkout: Path

    @property
    def names(self) -> Names:
        return Names(lab_id(self.checkout))

    @property
    def home(self) -> Path:
        return self.checkout / HOME

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    @property
    def tmp(self) -> Path:
        return self.home / "tmp"

    @property
    def ssh_config(self) -> Path:
        return self.home / "ssh_config"

    @property
    def facts_file(self) -> Path:
        return self.home / "facts.json"

    @property
    def vars_file(self) -> Path:
        return self.home / "vars.json"


def find_lab() -> Lab:
    """The lab of the checkout that this package lies in, wherever the command is run from."""
    return Lab(Path(__file__).resolve().parent.parent)


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file so that a reader sees the old text or the new one, never half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.chmod(mode)
    partial.replace(path)


def write_json(path: Path, data: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(data, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read one of the lab's JSON files; an absent file is an empty state."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as exc:
        msg = f'"{path}" is not JSON any more ({exc}): delete it and run "python -m lab up" again.'
        raise LabError(msg) from None
    if not isinstance(data, dict):
        msg = f'"{path}" does not hold a JSON object: delete it and run "python -m lab up" again.'
        raise LabError(msg)
    return data


@contextlib.contextmanager
def locked(lab: Lab) -> Iterator[None]:
    """Hold the lab for one command that changes it. The kernel drops the lock whenever and however the process ends."""
    lab.home.mkdir(exist_ok=True)
    with (lab.home / "lock").open("a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            holder = handle.read().strip() or "unknown"
            msg = f"Another lab command (process {holder}) is at work in this checkout: wait for it to end."
            raise LabError(msg) from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield
