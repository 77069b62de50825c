# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The box of the scenario: what its tests do to it and ask it."""

from __future__ import annotations

import collections.abc as c
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import typing as t

from tests.lab import kit

BOX = "driver-1"
OLD_KERNEL, NEW_KERNEL = "6.17.0-1026-nvidia", "6.17.0-1029-nvidia"
OLD_DRIVER, NEW_DRIVER = "580.142", "580.173.02"
TREE = "/run/gb10-lab/kernel"
REPOSITORY = "/srv/gb10-lab/apt"
PREFERENCES = "/etc/apt/preferences.d/gb10-fleet-driver.pref"
_HOST_VARS = f"""\
nvidia_driver_manage: true
nvidia_driver_sysroot: {TREE}
container_runtime_manage: true
container_runtime_sysroot: {TREE}
container_runtime_docker_packages: [docker.io, docker-cli]
"""


def run(
    playbook: str = "playbooks/driver.yml",
    *,
    serves: str = "",
    check: bool = False,
    tags: c.Sequence[str] = (),
    **extra: t.Any,
) -> kit.Run:
    """Run a playbook on the box, which serves a model role or nothing, with variables beside those of its inventory."""
    with tempfile.TemporaryDirectory(prefix="gb10-fleet-driver-") as folder:
        inventory = _inventory(pathlib.Path(folder), serves)
        return kit.play(limit=BOX, inventory=inventory, playbook=playbook, check=check, tags=tags, extra=extra)


def kill_a_run_once(ready: c.Callable[[], bool], **extra: t.Any) -> None:
    """Run the playbook as a user would, and kill it without a word when something has come to pass."""
    with tempfile.TemporaryDirectory(prefix="gb10-fleet-driver-") as folder:
        inventory = _inventory(pathlib.Path(folder))
        argv = [str(kit.SCRIPTS / "ansible-playbook"), "-i", str(inventory), str(kit.CHECKOUT / "playbooks/driver.yml")]
        argv += ["--limit", BOX, "--extra-vars", json.dumps(extra)]
        settings = {"ANSIBLE_CONFIG": str(kit.CHECKOUT / "ansible.cfg")}
        with subprocess.Popen(
            argv,
            env={**os.environ, **settings},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                kit.wait_for(ready, seconds=180, what="the moment to kill the run")
            finally:
                os.killpg(process.pid, signal.SIGKILL)


def _inventory(folder: pathlib.Path, serves: str = "") -> pathlib.Path:
    variables = f"model_roles: [{serves}]\n{_HOST_VARS}"
    files = {"hosts.yml": f"sparks:\n  hosts:\n    {BOX}:\n", f"host_vars/{BOX}.yml": variables}
    return kit.edited_inventory(folder, files)


def ask(command: str, *, check: bool = True) -> str:
    """Run a command on the box as root."""
    return kit.on_box(BOX, command, check=check).strip()


def boot_id() -> str:
    """Return what tells one boot from the next."""
    return ask("cat /proc/sys/kernel/random/boot_id")


def loaded() -> tuple[str, str]:
    """Return the kernel that runs and the driver that it has loaded."""
    version = ask(f"cat {TREE}/sys/module/nvidia/version 2>/dev/null || true")
    return ask(f"cat {TREE}/proc/sys/kernel/osrelease"), version


def packages() -> dict[str, str]:
    """Return what is installed, with versions."""
    shown = ask("dpkg-query --show --showformat '${db:Status-Abbrev} ${Package} ${Version}\\n'")
    lines = (line.split() for line in shown.splitlines())
    return {name: version for state, name, version in lines if state == "ii" or state == "hi"}


def state() -> tuple[str, ...]:
    """Return all that must not change where nothing may be changed."""
    asked = ("dpkg-query --show", "apt-mark showhold", "apt-mark showauto", "ls /etc/apt/preferences.d", "ls /boot")
    return (boot_id(), *map(ask, asked))


def offer(suite: str) -> None:
    """Let the repository offer another suite, and apt know of it."""
    line = f"deb [trusted=yes] http://127.0.0.1:8099 {suite}/"
    ask(f"echo '{line}' > /etc/apt/sources.list.d/gb10-lab.list; apt-get -qq update")


@contextlib.contextmanager
def process(unit: str, *argv: str) -> c.Iterator[None]:
    """Keep a process going on the box."""
    words = " ".join(f"'{word}'" for word in argv)
    ask(f"systemd-run --quiet --collect --unit={unit} {words}")
    try:
        yield
    finally:
        ask(f"systemctl stop {unit}", check=False)


def lock(until: str = "/never") -> t.ContextManager[None]:
    """Hold dpkg's lock, as unattended-upgrades would, until the end of the block or until a file is there."""
    code = (
        "import fcntl, pathlib, time\n"
        'lock = open("/var/lib/dpkg/lock-frontend", "w"); fcntl.lockf(lock, fcntl.LOCK_EX)\n'
        f'while not pathlib.Path("{until}").exists(): time.sleep(0.5)\n'
        "time.sleep(2)"
    )
    ask(f"rm -f {until}")
    return process("lab-lock", "/usr/bin/python3", "-c", code)


@contextlib.contextmanager
def modules(kind: str, *, kernel: str = OLD_KERNEL, driver: str = OLD_DRIVER, place: str = "") -> c.Iterator[None]:
    """Put other modules in the place of those that are installed (or elsewhere), and the right ones back."""
    folder = f"/lib/modules/{kernel}/{place or 'kernel/nvidia-580-open'}"
    others = f"{REPOSITORY}/modules/{kernel}/{driver}/{kind}"
    ask(f"mkdir -p {folder} && cp -a {folder} /root/kept && cp {others}/*.ko {folder}/ && depmod {kernel}")
    try:
        yield
    finally:
        ask(f"rm -rf {folder} && mv /root/kept {folder} && rmdir --ignore-fail-on-non-empty {folder}; depmod {kernel}")


@contextlib.contextmanager
def without(*paths: str) -> c.Iterator[None]:
    """Move files away, and back."""
    for path in paths:
        ask(f"mv {path} {path}.away; depmod {OLD_KERNEL}")
    try:
        yield
    finally:
        for path in paths:
            ask(f"mv {path}.away {path}; depmod {OLD_KERNEL}")
