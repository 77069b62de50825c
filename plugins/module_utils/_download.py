# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Downloads a checkpoint into the Hugging Face cache of a box, with the library that will read it.

The library is in the engine's image, so nothing has to be installed on the box, and a revision that was downloaded is
found by the engine without asking anybody. What has arrived is measured on the disk.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import os
import pathlib
import subprocess
import tempfile
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint import inspect_checkpoint
from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_files import CheckpointError

_MEASURE_EVERY_S: t.Final = 2.0
_TOTAL: t.Final = "total "
_OUTPUT_LIMIT: t.Final = 65536
# Runs inside the image. The formats that are left out are those that vLLM does not load beside safetensors.
_SCRIPT: t.Final = """\
import sys
from huggingface_hub import HfApi, snapshot_download
repo, revision = sys.argv[1:]
files = HfApi().model_info(repo, revision=revision, files_metadata=True).siblings
others = ["*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.gguf", "original/*"]
skipped = others if any(file.rfilename.endswith(".safetensors") for file in files) else []
import fnmatch
wanted = [file for file in files if not any(fnmatch.fnmatch(file.rfilename, one) for one in skipped)]
print("total", sum(file.size or 0 for file in wanted), flush=True)
snapshot_download(repo, revision=revision, ignore_patterns=skipped)
"""


class DownloadError(Exception):
    """The checkpoint could not be downloaded. The text is the library's own reason, and what is damaged on the box."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """A checkpoint, the image whose library downloads it, and where it goes."""

    repo: str
    revision: str
    image: str
    folder: str
    env: tuple[str, ...] = ()
    env_file: str = ""

    @property
    def model_folder(self) -> pathlib.Path:
        """The folder of the repository in the cache."""
        return pathlib.Path(self.folder) / "hub" / f"models--{self.repo.replace('/', '--')}"

    @property
    def snapshot(self) -> pathlib.Path:
        """The folder of the revision."""
        return self.model_folder / "snapshots" / self.revision

    def is_complete(self) -> bool:
        """Return whether every shard that the checkpoint names is there and whole."""
        try:
            return inspect_checkpoint(str(self.snapshot)).weights.complete is True
        except CheckpointError:
            return False

    def damage(self) -> str:
        """Say which shards are there but not whole, and what helps; empty where none is.

        The library goes by the names of its blobs: what is there is not fetched again, whatever is in it.
        """
        try:
            weights = inspect_checkpoint(str(self.snapshot)).weights
        except CheckpointError:
            return ""
        if not weights.damaged:
            return ""
        blobs = " ".join(str((self.snapshot / name).resolve()) for name in weights.damaged)
        said = " ".join(found.message for found in weights.findings if found.severity == "error")
        return f"{said} A download leaves alone what is there; remove it and run this again: rm {blobs}"

    def bytes_on_disk(self) -> int:
        """Return how much of the repository has arrived, parts of files included."""
        blobs = self.model_folder / "blobs"
        return sum(path.stat().st_size for path in blobs.glob("*") if path.is_file())

    def argv(self) -> list[str]:
        """Return the command that downloads."""
        words = ["docker", "run", "--rm", "--pull=never", "--network=host", "--entrypoint=python3"]
        words += ["--env=HF_HUB_OFFLINE=0", "--env=HF_HUB_DISABLE_PROGRESS_BARS=1"]
        words += [f"--env={entry}" for entry in self.env]
        words += [f"--env-file={self.env_file}"] if self.env_file else []
        words += [f"--volume={self.folder}:/root/.cache/huggingface", self.image]
        return [*words, "-c", _SCRIPT, self.repo, self.revision]


def download(wanted: Wanted, on_progress: c.Callable[[str], None]) -> None:
    """Download, saying now and then how much has arrived; raise DownloadError with the reason where it fails."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            process = subprocess.Popen(wanted.argv(), stdout=out, stderr=err)  # pylint: disable=ansible-bad-function
        except OSError as error:
            raise DownloadError(f"docker: {error.strerror}") from error
        while process.poll() is None:
            on_progress(_line(wanted.bytes_on_disk(), _total(out)))
            time.sleep(_MEASURE_EVERY_S)
        err.seek(0)
        errors = [line.strip() for line in err if line.strip()]
    failed = process.returncode != 0
    if failed or not wanted.is_complete():
        said = reason(errors) or f"the download ended with status {process.returncode}"
        ended = "the download ended, but not all weights that the checkpoint names are there, and whole"
        raise DownloadError(". ".join(part for part in (said if failed else ended, wanted.damage()) if part))


def _total(out: t.IO[str]) -> int:
    # Not through the file object: the position in the file is shared with the process that writes it.
    said = os.pread(out.fileno(), _OUTPUT_LIMIT, 0).decode("utf-8", "replace")
    found = [line for line in said.splitlines(keepends=True) if line.startswith(_TOTAL) and line.endswith("\n")]
    return int(found[0].removeprefix(_TOTAL)) if found else 0


def reason(errors: c.Sequence[str]) -> str:
    """Return the line that says what went wrong: the exception, not the advice that the library adds below it."""
    for line in errors:
        name, colon, _text = line.partition(": ")
        if colon and name.rpartition(".")[2].endswith(("Error", "Exception", "NotFound")):
            return line
    return errors[-1] if errors else ""


def _line(done: int, total: int) -> str:
    if not total:
        return "asking the hub"
    return f"{done / 1e9:.2f} of {total / 1e9:.2f} GB"
