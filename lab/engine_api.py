# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The machine's own Docker Engine: what the lab asks of it."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import tarfile
from typing import TYPE_CHECKING

import docker
from docker.errors import DockerException, ImageNotFound

from lab import roots
from lab.build import remove_tree, say, timed
from lab.names import LABEL, LabError

if TYPE_CHECKING:
    from pathlib import Path

    from docker.models.containers import Container

    from lab.state import Lab


def connect() -> docker.DockerClient:
    """A client for the machine's engine."""
    try:
        client = docker.from_env(timeout=600)
        client.ping()
    except DockerException as exc:
        msg = f"No Docker Engine answers ({exc}): install docker.io and start dockerd, or set DOCKER_HOST."
        raise LabError(msg) from None
    return client


def build_host_image(lab: Lab, client: docker.DockerClient, suite: str) -> str:
    """Make the image of a host from its Debian root, unless the engine has it already."""
    name = lab.names.image(suite, roots.host_image_key(lab, suite))
    try:
        client.images.get(name)
    except ImageNotFound:
        pass
    else:
        return name
    roots.build_host_base(lab, suite)
    what = f"image {suite}"
    with timed(what):
        root = lab.tmp / f"host-image-{suite}"
        remove_tree(root)
        root.mkdir(parents=True)
        roots.fill_host_root(lab, suite, root)
        repository, _, tag = name.rpartition(":")
        argv = ["tar", "--numeric-owner", "-C", str(root), "-c", "."]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as packed:
            # The engine names the image only once it has the whole stream.
            client.api.import_image_from_stream(
                packed.stdout, repository=repository, tag=tag, changes=[f"LABEL {LABEL}={lab.names.lab}"]
            )
        remove_tree(root)
        if packed.returncode:
            client.images.remove(name)
            msg = f"Packing the host image failed: tar ended with exit status {packed.returncode}."
            raise LabError(msg)
    for image in client.images.list(name=repository, filters={"label": f"{LABEL}={lab.names.lab}"}):
        for old in image.tags:
            if old.startswith(f"{repository}:{suite}-") and old != name:
                say(what, f"removing {old}, which is out of date")
                client.images.remove(old, force=True)
    return name


@dataclasses.dataclass(frozen=True)
class File:
    """A file to write into a container."""

    path: str
    content: bytes
    mode: int
    owner: int = 0
    """User and group."""


def put_files(container: Container, files: list[File]) -> None:
    """Write files into a container, started or not."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for file in files:
            entry = tarfile.TarInfo(file.path.lstrip("/"))
            entry.size, entry.mode, entry.uid, entry.gid = len(file.content), file.mode, file.owner, file.owner
            archive.addfile(entry, io.BytesIO(file.content))
    container.put_archive("/", buffer.getvalue())


def put_tree(container: Container, source: Path, target: str, exclude: str = "") -> None:
    """Copy a directory into a container's directory, keeping owners, modes and links."""
    argv = ["tar", "--numeric-owner", *([f"--exclude={exclude}"] if exclude else []), "-C", str(source), "-c", "."]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as packed:
        container.put_archive(target, packed.stdout)
    if packed.returncode:
        msg = f'Packing "{source}" failed: tar ended with exit status {packed.returncode}.'
        raise LabError(msg)


def ask(container: Container, argv: list[str]) -> tuple[int, str]:
    """Run a program in a started container; its exit status and what it prints."""
    done = container.exec_run(argv)
    output = done.output if isinstance(done.output, bytes) else b"".join(done.output)
    return done.exit_code or 0, output.decode(errors="replace").strip()


def run_in(container: Container, argv: list[str], what: str) -> str:
    """As `ask`, for a program that has to succeed."""
    status, text = ask(container, argv)
    if status:
        msg = f'{what} failed in "{container.name}" with exit status {status}: {text}'
        raise LabError(msg)
    return text
