# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A box that serves: its engine is left alone while a reboot is pending, and comes back after one."""

from __future__ import annotations

from tests.lab import driver_box as box
from tests.lab import kit

NAME = "coordinator"


def engine() -> str:
    """Return what tells one run of the engine from the next."""
    return box.ask(f"docker inspect --format '{{{{.Id}}}} {{{{.State.StartedAt}}}}' vllm-{NAME}")


def test_a_box_gets_driver_runtime_and_engine_from_one_playbook() -> None:
    run = box.run("site.yml", serves=NAME)
    assert run.status == "successful", run.failures
    assert kit.answers(box.BOX, model=NAME)


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


def test_what_was_served_is_stopped_before_the_reboot_and_served_again_after_it() -> None:
    before, boot = engine(), box.boot_id()
    run = box.run(serves=NAME, nvidia_driver_allow_reboot=True)
    assert run.status == "successful", run.failures
    assert box.boot_id() != boot
    assert box.loaded() == (box.NEW_KERNEL, box.NEW_DRIVER)
    assert engine() != before
    assert kit.answers(box.BOX, model=NAME)
    # It was told to end in order, in the boot before.
    assert f"Stopped vllm-{NAME}.service" in box.ask(f"journalctl --boot=-1 --unit=vllm-{NAME} --no-pager")
    assert box.run("site.yml", serves=NAME).count("changed", box.BOX) == 0
