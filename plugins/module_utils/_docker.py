# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads what Docker Engine says of itself, its images and its containers, through its command line.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import json
import pathlib
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _command

# The shape of AnsibleModule.run_command, so that a module passes its own method: argv in; code, stdout, stderr out.
Run = c.Callable[[list[str]], tuple[int, str, str]]


class DockerError(Exception):
    """Docker Engine did not answer, or answered with an error. The text says which command, and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """A container of an instance, as Docker Engine knows it."""

    id: str
    name: str
    running: bool
    pid: int
    exit_code: int
    image: str
    labels: c.Mapping[str, str]

    @classmethod
    def from_inspect(cls, data: c.Mapping[str, t.Any]) -> Container:
        """Take what matters from one element of "docker inspect"."""
        state = data["State"]
        return cls(
            id=str(data["Id"]),
            name=str(data["Name"]).lstrip("/"),
            running=bool(state["Running"]),
            pid=int(state["Pid"]),
            exit_code=int(state["ExitCode"]),
            image=str(data["Config"]["Image"]),
            labels=dict(data["Config"].get("Labels") or {}),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """Docker Engine: its version, how it places containers into cgroups, and the CDI devices that it knows."""

    version: str
    cgroup_driver: str
    cgroup_version: str
    storage_driver: str
    cdi_spec_dirs: tuple[str, ...]
    cdi_devices: tuple[str, ...]

    @classmethod
    def from_info(cls, data: c.Mapping[str, t.Any]) -> Engine:
        """Take what matters from "docker info --format '{{json .}}'"."""
        return cls(
            version=str(data.get("ServerVersion") or ""),
            cgroup_driver=str(data.get("CgroupDriver") or ""),
            cgroup_version=str(data.get("CgroupVersion") or ""),
            storage_driver=str(data.get("Driver") or ""),
            cdi_spec_dirs=tuple(data.get("CDISpecDirs") or ()),
            # Listed since Docker Engine 28.3.
            cdi_devices=tuple(
                str(device.get("ID")) for device in data.get("DiscoveredDevices") or () if device.get("Source") == "cdi"
            ),
        )


def engine(run: Run) -> Engine:
    """Return what Docker Engine says of itself; raise DockerError where there is none that answers."""
    data = json.loads(_docker(run, "info", "--format", "{{json .}}"))
    errors = data.get("ServerErrors")
    if errors:
        raise DockerError(f"Docker Engine does not answer ({'; '.join(errors)}); see `systemctl status docker`")
    return Engine.from_info(data)


def container(run: Run, name: str) -> Container | None:
    """Return the container of that name, or None where there is none."""
    code, out, err = run(["docker", "container", "inspect", name])
    if code != 0:
        if "no such container" in err.lower():
            return None
        raise _error(f"docker container inspect {name}", code, err)
    return Container.from_inspect(json.loads(out)[0])


def running_ids(run: Run) -> frozenset[str]:
    """Return the ids of all running containers."""
    return frozenset(_docker(run, "ps", "--no-trunc", "--quiet").split())


def image_id(run: Run, reference: str) -> str | None:
    """Return the id of an image on the box, or None where it is not there."""
    code, out, err = run(["docker", "image", "inspect", "--format", "{{.Id}}", reference])
    if code == 0:
        return out.strip()
    if "no such image" in err.lower():
        return None
    raise _error(f"docker image inspect {reference}", code, err)


def gpu_access(found: Engine, sysroot: pathlib.Path = pathlib.Path("/")) -> t.Literal["cdi", "none", "unusable"]:
    """Return how a container reaches the GPU of the box.

    An engine that does not name the folders of CDI specifications has CDI switched off. One that names them may be too
    old to list the devices, so the specifications are then looked for in these folders.
    """
    if not (sysroot / "dev/nvidiactl").exists():
        return "none"
    files = [path for folder in found.cdi_spec_dirs for path in (sysroot / folder.lstrip("/")).glob("*.[jy][sa][om]*")]
    return "cdi" if found.cdi_devices or any(_declares_gpu(path) for path in files) else "unusable"


def _declares_gpu(path: pathlib.Path) -> bool:
    return "nvidia.com/gpu" in path.read_text(encoding="utf-8", errors="replace")


def _docker(run: Run, *arguments: str) -> str:
    code, out, err = run(["docker", *arguments])
    if code != 0:
        raise _error(f"docker {' '.join(arguments)}", code, err.strip() or out)
    return out


def _error(command: str, code: int, said: str) -> DockerError:
    if code == _command.TIMED_OUT:
        return DockerError(
            f"Docker Engine does not answer (`{command}`: {said.strip()}); see `systemctl status docker`"
        )
    return DockerError(f"`{command}` failed: {said.strip()}")
