# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Turns a lab host into a box as it leaves the factory: a repository to install from, a kernel, and no driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lab.build import say
from lab.driver import packages
from lab.engine_api import File, put_files, put_tree, run_in

if TYPE_CHECKING:
    import docker

    from lab.state import Lab

_REPOSITORY = "/srv/gb10-lab/apt"
_PROGRAMS = "/usr/local/lib/gb10-lab"
# Debian's own archive is not asked any more: a test of apt has to know what apt can find.
_FACTORY = f"""
set -e
mkdir -p /etc/apt/disabled
find /etc/apt/sources.list /etc/apt/sources.list.d -type f ! -name gb10-lab.list -exec mv -t /etc/apt/disabled {{}} +
systemctl daemon-reload
systemctl enable --quiet --now gb10-lab-apt.service
curl --silent --output /dev/null --retry 20 --retry-connrefused --retry-delay 1 http://127.0.0.1:8099/factory/Packages
apt-get update --quiet=2
DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes linux-{packages.FLAVOUR} dgx-spark-factory >/dev/null
systemctl enable --quiet --now gb10-lab-kernel.service
"""


def prepare(lab: Lab, client: docker.DockerClient, hosts: list[str]) -> None:
    """Give each fresh host the repository and the factory's kernel."""
    built = packages.build(lab)
    for host in hosts:
        container = client.containers.get(lab.names.container(host))
        run_in(container, ["mkdir", "-p", _REPOSITORY, _PROGRAMS], "Making folders")
        put_tree(container, built, _REPOSITORY)
        units = [
            File(f"/etc/systemd/system/{name}", (packages.FILES / name).read_bytes(), 0o644)
            for name in ("gb10-lab-apt.service", "gb10-lab-kernel.service")
        ]
        kernel = Path(packages.FILES / "gb10-lab-kernel").read_bytes()
        source = b"deb [trusted=yes] http://127.0.0.1:8099 factory/\n"
        put_files(
            container,
            [
                *units,
                File(f"{_PROGRAMS}/gb10-lab-kernel", kernel, 0o755),
                File("/etc/apt/sources.list.d/gb10-lab.list", source, 0o644),
            ],
        )
        run_in(container, ["sh", "-c", _FACTORY], "Installing the factory's kernel")
        say(host, "has the factory's kernel, and no driver")
