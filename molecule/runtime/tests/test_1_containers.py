# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Docker Engine and NVIDIA's toolkit on the box that has its driver: what is added, what belongs to somebody else."""

from __future__ import annotations

import json

from tests.lab import driver_box as box
from tests.lab import kit

CONFIG = "/etc/docker/daemon.json"
SPEC = "/var/run/cdi/nvidia.yaml"
MINE = {"log-opts": {"max-size": "10m"}, "exec-opts": ["native.umask=normal"]}


def run(*, check: bool = False, **extra: object) -> kit.Run:
    """Run of site.yml what is of the container runtime; the box serves nothing."""
    return box.run("playbooks/site.yml", check=check, tags=["container_runtime"], **extra)


def write(text: str) -> None:
    """Write Docker Engine's configuration as a person would."""
    box.ask(f"mkdir -p /etc/docker && cat > {CONFIG} <<'END'\n{text}\nEND")


def test_the_newest_driver_is_installed_and_booted_with_in_one_run() -> None:
    """The box that all tests below have: from none to a driver that brings a newer kernel with it."""
    box.offer("current")
    result = box.run(nvidia_driver_allow_reboot=True)
    assert result.status == "successful", result.failures
    assert box.loaded() == (box.NEW_KERNEL, box.NEW_DRIVER)


def test_a_configuration_that_is_no_json_is_refused_by_its_line() -> None:
    write('{\n  "log-opts": {"max-size": "10m"},\n  "debug" true\n}')
    before = box.ask(f"cat {CONFIG}")
    result = run()
    assert result.status == "failed"
    assert f"{CONFIG}:3: it is not valid JSON" in result.failures[0]
    assert box.ask(f"cat {CONFIG}") == before


def test_a_setting_of_somebody_else_is_not_replaced() -> None:
    write(json.dumps({"exec-opts": ["native.cgroupdriver=systemd"]}))
    before = box.ask(f"cat {CONFIG}")
    result = run()
    assert result.status == "failed"
    assert "'native.cgroupdriver=systemd', and 'native.cgroupdriver=cgroupfs' is wanted" in result.failures[0]
    assert box.ask(f"cat {CONFIG}") == before


def test_a_check_shows_what_would_be_added() -> None:
    write(json.dumps(MINE))
    result = run(check=True)
    assert result.status == "successful", result.failures
    assert '"native.cgroupdriver=cgroupfs"' in result.output
    assert json.loads(box.ask(f"cat {CONFIG}")) == MINE
    assert box.ask("systemctl is-active docker") == "active"


def test_what_somebody_has_set_stays_and_containers_are_not_stopped_for_it() -> None:
    write(json.dumps(MINE))
    box.ask(
        "tar -C / -c bin/sh usr/bin/sleep lib lib64 --dereference 2>/dev/null | docker import - idle >/dev/null",
        check=False,
    )
    box.ask(
        "docker run --detach --name idle --network none --volume /:/host:ro idle /host/usr/bin/sleep infinity",
        check=False,
    )
    idle = box.ask("docker inspect --format '{{.State.Running}} {{.State.StartedAt}}' idle")
    assert idle.startswith("true")
    try:
        result = run()
        assert result.status == "successful", result.failures
        said = "\n".join(result.messages)
        assert "Docker Engine has to be restarted" in said
        assert "it has CDI switched off, and it is configured" in said
        assert box.ask("docker inspect --format '{{.State.Running}} {{.State.StartedAt}}' idle") == idle
        found = json.loads(box.ask(f"cat {CONFIG}"))
        assert found["log-opts"] == MINE["log-opts"]
        assert found["exec-opts"] == ["native.umask=normal", "native.cgroupdriver=cgroupfs"]
        # Still due the next time, since what runs is compared and not what was written.
        assert "has to be restarted" in "\n".join(run().messages)
        allowed = run(container_runtime_allow_restart=True)
        assert allowed.status == "successful", allowed.failures
        assert "has to be restarted" not in "\n".join(allowed.messages)
        assert box.ask("docker info --format '{{.CgroupDriver}} {{.CDISpecDirs}}'").startswith("cgroupfs [/etc/cdi")
    finally:
        box.ask("docker rm --force idle; docker rmi idle", check=False)


def test_the_gpu_is_described_as_of_the_driver_that_runs() -> None:
    box.ask(f"sed -i s/{box.NEW_DRIVER}/{box.OLD_DRIVER}/ {SPEC}")
    result = run()
    assert result.status == "successful", result.failures
    assert f"libcuda.so.{box.NEW_DRIVER}" in box.ask(f"cat {SPEC}")


def test_nothing_is_left_for_a_second_run() -> None:
    assert run().status == "successful"
    result = run()
    assert result.status == "successful", result.failures
    assert result.count("changed", box.BOX) == 0
