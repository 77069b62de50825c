# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults of the box below an engine: container engine, systemd, journal, disk, power."""

from __future__ import annotations

import collections.abc as c
import subprocess

from lab.names import Names, lab_id
from tests.lab import kit
from tests.lab.faults.bench import Bench, until
from tests.lab.faults.entry import By, Collection, End, When

BOX = Collection(When.BOX)


def shaken_by(command: str) -> c.Callable[[Bench], str]:
    """Return how to do something to a box that ends its engine, and see another one come."""

    def inject(bench: Bench) -> str:
        since, before = bench.now(), bench.container()
        bench.run(command, check=False)
        bench.wait_until_it_serves(other_than=before)
        return bench.journal(since)

    return inject


def passed_over(command: str) -> c.Callable[[Bench], str]:
    """Return how to do something to a box that its engine must not notice."""

    def inject(bench: Bench) -> str:
        bench.run(command)
        until(lambda: not bench.serves(), 3)
        bench.wait_until_it_serves()
        return bench.run(f"systemctl show --property=ActiveState,NRestarts {bench.unit}")

    return inject


def boot_id(bench: Bench) -> str:
    """Return what tells one boot of the box from the next, empty while it cannot be asked."""
    return bench.run("cat /proc/sys/kernel/random/boot_id", check=False).strip()


def back_after(bench: Bench, before: str, since: str) -> str:
    """Wait for a box that boots, and for its engine."""
    bench.wait(lambda: boot_id(bench) not in {"", before}, f"{bench.box}: another boot")
    bench.wait_until_it_serves()
    return bench.journal(since)


@BOX.add(
    "Docker Engine is restarted, and takes its containers along",
    by=By.SYSTEMD,
    says=("Scheduled restart job", "ready: it answered"),
    end=End.HEALED,
)
def docker_restarted(bench: Bench) -> str:
    return shaken_by("systemctl restart docker")(bench)


@BOX.add(
    "Docker Engine is killed",
    by=By.SYSTEMD,
    says=("Scheduled restart job", "ready: it answered"),
    end=End.HEALED,
)
def docker_killed(bench: Bench) -> str:
    return shaken_by("systemctl kill --signal=KILL docker")(bench)


@BOX.add(
    "Docker Engine is down for a while",
    by=By.GATE,
    says=("docker", "the gate is open", "ready: it answered"),
    end=End.HEALED,
)
def docker_down(bench: Bench) -> str:
    since, before = bench.now(), bench.container()
    bench.run("systemctl stop docker.socket docker.service")
    bench.wait(lambda: "waiting (" in bench.journal(since), "a gate that waits")
    bench.run("systemctl start docker.socket docker.service")
    bench.wait_until_it_serves(other_than=before)
    return bench.journal(since)


@BOX.add(
    "containerd is killed",
    by=By.SYSTEMD,
    says=("ActiveState=active",),
    end=End.HEALED,
)
def containerd_killed(bench: Bench) -> str:
    return passed_over("systemctl kill --signal=KILL containerd; pkill -KILL -x containerd || true")(bench)


@BOX.add(
    "systemd reads its units again",
    by=By.SYSTEMD,
    says=("ActiveState=active", "NRestarts=0"),
    end=End.UNTOUCHED,
)
def daemon_reloaded(bench: Bench) -> str:
    return passed_over("systemctl daemon-reload && systemctl daemon-reexec")(bench)


@BOX.add(
    "the journal is killed",
    by=By.SYSTEMD,
    says=("ActiveState=active", "NRestarts=0"),
    end=End.UNTOUCHED,
)
def journal_killed(bench: Bench) -> str:
    return passed_over("systemctl kill --signal=KILL systemd-journald")(bench)


@BOX.add(
    "the journal is down while the engine is restarted",
    by=By.SYSTEMD,
    says=("ActiveState=active",),
    end=End.HEALED,
)
def journal_down(bench: Bench) -> str:
    before = bench.container()
    sockets = "systemd-journald.socket systemd-journald-dev-log.socket systemd-journald-audit.socket"
    bench.run(f"systemctl stop {sockets} systemd-journald.service", check=False)
    try:
        bench.run(f"timeout 60 systemctl restart {bench.unit}", check=False)
    finally:
        bench.run("systemctl start systemd-journald.socket systemd-journald-dev-log.socket systemd-journald.service")
    bench.wait_until_it_serves(other_than=before)
    return bench.run(f"systemctl show --property=ActiveState {bench.unit}")


@BOX.add(
    "/run is full while the engine is restarted",
    by=By.GATE,
    says=("the gate is open", "ready: it answered"),
    end=End.HEALED,
)
def run_is_full(bench: Bench) -> str:
    since, before = bench.now(), bench.container()
    bench.run("mount -o remount,size=64M /run && dd if=/dev/zero of=/run/lab-ballast bs=64k 2>/dev/null || true")
    try:
        bench.run(f"systemctl restart --no-block {bench.unit}", check=False)
        until(lambda: bench.serves() and bench.container() != before, 25)
    finally:
        bench.run("rm -f /run/lab-ballast && mount -o remount,size=50% /run")
    bench.wait_until_it_serves(other_than=before)
    return bench.journal(since)


@BOX.add("the box is rebooted", by=By.SYSTEMD, says=("the gate is open", "ready: it answered"), end=End.HEALED)
def reboot(bench: Bench) -> str:
    since, before = bench.now(), boot_id(bench)
    bench.run("systemctl reboot", check=False)
    return back_after(bench, before, since)


@BOX.add(
    "the power fails",
    by=By.GATE,
    says=("removing the container", "left from an earlier run", "ready: it answered"),
    end=End.HEALED,
)
def power_loss(bench: Bench) -> str:
    since, before = bench.now(), boot_id(bench)
    container = Names(lab_id(kit.CHECKOUT)).container(bench.box)
    for verb in ("kill", "start"):
        subprocess.run(["docker", verb, container], check=True, capture_output=True)
    return back_after(bench, before, since)


@BOX.add(
    "the power fails while the engine starts",
    by=By.GATE,
    says=("removing the container", "left from an earlier run", "ready: it answered"),
    end=End.HEALED,
)
def power_loss_at_start(bench: Bench) -> str:
    since, before = bench.now(), boot_id(bench)
    bench.fault("never_ready 1")
    old = bench.container()
    bench.run(f"systemctl restart --no-block {bench.unit}")
    bench.wait(lambda: bench.container() not in {"", old}, "a container that boots")
    container = Names(lab_id(kit.CHECKOUT)).container(bench.box)
    for verb in ("kill", "start"):
        subprocess.run(["docker", verb, container], check=True, capture_output=True)
    return back_after(bench, before, since)
