# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a box has to run containers with, and whether a container gets the GPU and keeps it.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _docker
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding

_DRIVER_OPTION: t.Final = "native.cgroupdriver="


@dataclasses.dataclass(frozen=True, slots=True)
class Runtime:
    """What is there. A version is empty where the program is missing; ``engine`` is None where it does not answer."""

    docker_version: str
    toolkit_version: str
    engine: _docker.Engine | None
    running: int
    live_restore: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Minimum:
    """The oldest version of a program that will do, why, and who says so since when."""

    program: str
    version: str
    why: str
    source: str
    date: str

    def missing(self, found: str) -> bool:
        """Return whether a version is older."""
        return numbers(found) < numbers(self.version)


def observe(run: _docker.Run) -> Runtime:
    """Ask the programs of the box."""
    client, out, _err = run(["docker", "--version"])
    toolkit, text, _err = run(["nvidia-ctk", "--version"])
    engine, running = None, 0
    if client == 0:
        try:
            engine = _docker.engine(run)
            running = len(_docker.running_ids(run))
        except _docker.DockerError:
            engine = None
    asked, live, _err = run(["docker", "info", "--format", "{{.LiveRestoreEnabled}}"]) if engine else (1, "", "")
    return Runtime(
        docker_version=engine.version if engine else version_in(out) if client == 0 else "",
        toolkit_version=version_in(text) if toolkit == 0 else "",
        engine=engine,
        running=running,
        live_restore=asked == 0 and live.strip() == "true",
    )


def version_in(text: str) -> str:
    """Return the version in what a program says of itself; empty where it says none."""
    found = re.search(r"version v?(\d[\w.+~-]*)", text)
    return found[1].rstrip(",.") if found else ""


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version, to compare."""
    return tuple(int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part)  # type: ignore[index]


def findings(runtime: Runtime, minimums: c.Iterable[Minimum]) -> tuple[Finding, ...]:
    """Return what is missing or too old."""
    found: list[Finding] = []
    versions = {"docker": runtime.docker_version, "nvidia_container_toolkit": runtime.toolkit_version}
    names = {"docker": "Docker Engine", "nvidia_container_toolkit": "nvidia-container-toolkit"}
    ids = {"docker": "DOCKER", "nvidia_container_toolkit": "CONTAINER_TOOLKIT"}
    for minimum in minimums:
        version, name, prefix = versions[minimum.program], names[minimum.program], ids[minimum.program]
        if not version:
            found.append(
                Finding(
                    f"{prefix}_MISSING",
                    "error",
                    f"{name} is not installed.",
                    remedy=f"Install {minimum.version} or newer.",
                )
            )
        elif minimum.missing(version):
            found.append(
                Finding(
                    f"{prefix}_TOO_OLD",
                    "error",
                    f"{name} is {version}, and {minimum.version} or newer is needed: {minimum.why}.",
                    evidence=f"{minimum.source}, {minimum.date}",
                    remedy="Install a newer one, or let the role do it (container_runtime_allow_restart: true).",
                )
            )
    if runtime.docker_version and runtime.engine is None:
        found.append(
            Finding(
                "DOCKER_DOES_NOT_ANSWER",
                "error",
                "Docker Engine is installed and does not answer.",
                remedy="See `systemctl status docker` and `journalctl -u docker -n 50`.",
            )
        )
    return tuple(found)


def restart_reasons(runtime: Runtime, config: c.Mapping[str, t.Any]) -> tuple[str, ...]:
    """Return what the running engine does otherwise than its configuration wants, one sentence each.

    What runs is compared, not what was written: a restart that nobody allowed is still due the next time.
    """
    if runtime.engine is None:
        return ()
    reasons = []
    options = [str(word) for word in config.get("exec-opts") or () if str(word).startswith(_DRIVER_OPTION)]
    wanted = options[-1].removeprefix(_DRIVER_OPTION) if options else ""
    if wanted and runtime.engine.cgroup_driver != wanted:
        reasons.append(f"it places containers with {runtime.engine.cgroup_driver}, and {wanted} is configured")
    if (config.get("features") or {}).get("cdi") and not runtime.engine.cdi_spec_dirs:
        reasons.append("it has CDI switched off, and it is configured")
    return tuple(reasons)
