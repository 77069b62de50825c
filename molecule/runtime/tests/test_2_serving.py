# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A box that serves: its engine is left alone while a reboot is pending, and comes back after one."""

from __future__ import annotations

import json

from tests.lab import driver_box as box
from tests.lab import kit

NAME = "coordinator"
UNIT = f"vllm-{NAME}.service"
CONFIG = "/etc/docker/daemon.json"


def engine() -> str:
    """Return what tells one run of the engine from the next."""
    return box.ask(f"docker inspect --format '{{{{.Id}}}} {{{{.State.StartedAt}}}}' vllm-{NAME}")


def test_a_box_gets_driver_runtime_and_engine_from_one_playbook() -> None:
    run = box.run("site.yml", serves=NAME)
    assert run.status == "successful", run.failures
    assert kit.answers(box.BOX, model=NAME)


def since_boot(unit: str, event: str) -> int:
    """Return when something last happened to a unit, in microseconds since the box booted."""
    return int(box.ask(f"systemctl show --property={event}TimestampMonotonic --value {unit}"))


def test_docker_engine_is_restarted_when_the_engine_was_stopped_and_serves_again_afterwards() -> None:
    config = json.loads(box.ask(f"cat {CONFIG}"))
    off = {**config, "features": {**config["features"], "cdi": False}}
    box.ask(f"cat > {CONFIG} <<'END'\n{json.dumps(off)}\nEND\nsystemctl restart docker")
    kit.wait_for(lambda: bool(box.ask("docker ps --quiet")), seconds=120, what="the engine's container")
    box.ask(f"cat > {CONFIG} <<'END'\n{json.dumps(config, indent=4)}\nEND")
    run = box.run("site.yml", serves=NAME, container_runtime_allow_restart=True)
    assert run.status == "successful", run.failures
    assert since_boot(UNIT, "InactiveEnter") < since_boot("docker.service", "ActiveExit")
    assert kit.answers(box.BOX, model=NAME)
    again = box.run("site.yml", serves=NAME, container_runtime_allow_restart=True)
    assert again.count("changed", box.BOX) == 0


def test_a_stale_module_is_pending_while_the_engine_goes_on() -> None:
    box.ask(
        f"cd {box.TREE} && sed -i s/{box.NEW_DRIVER}/{box.OLD_DRIVER}/ sys/module/*/version proc/driver/nvidia/version"
    )
    before, boot = engine(), box.boot_id()
    run = box.run(serves=NAME)
    assert run.status == "successful", run.failures
    said = "\n".join(run.messages)
    assert f"a reboot into {box.NEW_KERNEL} is pending" in said
    assert box.OLD_DRIVER in said
    assert (engine(), box.boot_id()) == (before, boot)


def is_drained() -> bool:
    """Return whether the engine was stopped."""
    return box.ask(f"systemctl is-active {UNIT}", check=False) == "inactive"


def test_a_box_that_was_drained_by_a_run_that_was_killed_serves_again_by_itself() -> None:
    boot = box.boot_id()
    box.ask("mv /usr/sbin/shutdown /usr/sbin/shutdown.away && ln -s /bin/true /usr/sbin/shutdown")
    try:
        box.kill_a_run_once(is_drained, nvidia_driver_allow_reboot=True)
    finally:
        box.ask("mv /usr/sbin/shutdown.away /usr/sbin/shutdown")
    assert box.boot_id() == boot
    assert box.ask("systemctl is-active gb10-fleet-resume.timer") == "active"
    # What the timer does after ten minutes.
    box.ask("systemctl start gb10-fleet-resume.service")
    kit.wait_for(lambda: kit.answers(box.BOX, model=NAME), seconds=600, what="an answer")


def test_what_was_served_is_stopped_before_the_reboot_and_served_again_after_it() -> None:
    before, boot = engine(), box.boot_id()
    run = box.run(serves=NAME, nvidia_driver_allow_reboot=True)
    assert run.status == "successful", run.failures
    assert box.boot_id() != boot
    assert box.loaded() == (box.NEW_KERNEL, box.NEW_DRIVER)
    assert engine() != before
    assert kit.answers(box.BOX, model=NAME)
    # It was told to end in order, in the boot before.
    assert f"Stopped {UNIT}" in box.ask(f"journalctl --boot=-1 --unit={UNIT} --no-pager")
    assert box.run("site.yml", serves=NAME).count("changed", box.BOX) == 0


def test_a_run_that_was_killed_after_it_had_drained_the_box_is_made_good_by_the_next_one() -> None:
    """The next run finds nothing that it could stop, and waits for what the boot starts all the same."""
    box.ask(
        f"cd {box.TREE} && sed -i s/{box.NEW_DRIVER}/{box.OLD_DRIVER}/ sys/module/*/version proc/driver/nvidia/version"
    )
    boot = box.boot_id()
    box.ask(f"systemctl stop {UNIT}")
    run = box.run(serves=NAME, nvidia_driver_allow_reboot=True)
    assert run.status == "successful", run.failures
    assert box.boot_id() != boot
    assert kit.answers(box.BOX, model=NAME)
