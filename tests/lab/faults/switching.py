# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults of a switch: the new engine turns out bad when the old one is gone, or somebody pulls the plug."""

from __future__ import annotations

import collections.abc as c
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from lab.names import Names, lab_id
from tests.lab import kit
from tests.lab.faults.bench import Bench, text_of, until
from tests.lab.faults.box import back_after, boot_id
from tests.lab.faults.deploying import refused
from tests.lab.faults.entry import By, Collection, End, Fault, When

SWITCHING = Collection(When.DEPLOY)
_UNIT = "gb10-fleet-switch.service"

# Name of the engine's fault, what the new engine does, and the words in which the play has to call it.
_BAD = (
    ("exit_0_at_boot", "the new engine ends with status 0 while it boots", ("The process is gone",)),
    ("no_kernel_image", "the new image has no kernels for this GPU", ("no kernel image is available",)),
    ("garbage_symbols", "the new engine answers `!!!!!!!!`", ("garbage:", "symbol run ('!'")),
    ("hang", "the new engine answers nothing, and `/health` says 200", ("hung:", "token counters stand still")),
    ("pool_is_half", "the new engine's KV cache is half of what was planned", ("The KV pool holds",)),
)


def goes_back(bench: Bench, model_role: str) -> str:
    """Deploy something bad, and return what the user is told."""
    said = refused(bench, model_role)
    assert "was restored and serves again" in said, said
    return said


def bad_engine(name: str) -> c.Callable[[Bench], str]:
    """Return how to deploy an engine with a fault in place of a good one."""
    return lambda bench: goes_back(bench, f"  - {{role: scripted, env: {{GB10_LAB_FAULT: {name}}}}}\n")


SWITCHING.faults += [
    Fault(f"new_{name}", what, When.DEPLOY, By.SWITCH, (*says, "was restored and serves again"), End.RESTORED, inject)
    for name, what, says in _BAD
    for inject in [bad_engine(name)]
]


@SWITCHING.add(
    "the new kernels are not those that the model role expects",
    by=By.SWITCH,
    says=("backend is EMULATION", "was restored and serves again"),
    end=End.RESTORED,
)
def new_emulated_kernels(bench: Bench) -> str:
    role = "  - {role: scripted, expects: {moe_backend: FLASHINFER_CUTLASS}, env: {GB10_LAB_FAULT: emulated_kernels}}\n"
    return goes_back(bench, role)


@SWITCHING.add(
    "the new model was never trained (a real vLLM)",
    by=By.SWITCH,
    says=("vllm-garbage", "was restored and serves again"),
    end=End.RESTORED,
)
def untrained_model(bench: Bench) -> str:
    # A real engine needs its time to boot, on a busy machine above all.
    settings = bench.settings.replace("boot_timeout: 40", "boot_timeout: 900")
    run = bench.deploy(f"model_roles: [garbage]\n{settings}")
    assert run.status == "failed", run.output[-3000:]
    return text_of(run)


@SWITCHING.add(
    "somebody else listens on the port of the new engine",
    by=By.SWITCH,
    says=("was restored and serves again",),
    end=End.RESTORED,
)
def new_port_taken(bench: Bench) -> str:
    bench.run("systemd-run --quiet --unit lab-squatter python3 -m http.server 8009")
    try:
        return goes_back(bench, "  - {role: scripted, port: 8009}\n")
    finally:
        bench.run("systemctl stop lab-squatter")


# Pulled plugs: the new engine is a good one, which boots for a while. Whatever happens, the box ends with one good
# engine, and the next run with the inventory's.


def interrupted(bench: Bench, when: c.Callable[[], bool], blow: c.Callable[[subprocess.Popen[str]], object]) -> None:
    """Begin a deployment, and strike when it is somewhere."""
    with tempfile.TemporaryDirectory(prefix="gb10-fleet-faults-") as folder:
        text = f"model_roles:\n  - {{role: scripted, env: {{GB10_LAB_BOOT_S: '4'}}}}\n{bench.settings}"
        inventory = kit.edited_inventory(pathlib.Path(folder), {f"host_vars/{bench.box}.yml": text})
        argv = [str(kit.SCRIPTS / "ansible-playbook"), "-i", str(inventory), "--limit", bench.box, "site.yml"]
        environment = {**os.environ, "PATH": f"{kit.SCRIPTS}:{os.environ['PATH']}"}
        playbook = subprocess.Popen(
            argv, cwd=kit.CHECKOUT, env=environment, stdout=subprocess.DEVNULL, text=True, start_new_session=True
        )
        try:
            bench.wait(when, "the moment to strike")
            blow(playbook)
        finally:
            end(playbook)


def end(playbook: subprocess.Popen[str]) -> None:
    """Kill a run of a playbook with all that it has started."""
    if playbook.poll() is None:
        os.killpg(playbook.pid, signal.SIGKILL)
        playbook.wait()


def step(bench: Bench) -> str:
    """Return how far a switch is, empty where none is under way."""
    return bench.run('sed -n \'s/.*"step": "\\(.*\\)".*/\\1/p\' /var/lib/gb10-fleet/switch.json', check=False).strip()


def settled(bench: Bench) -> str:
    """Wait until no switch is under way, see that one engine serves, and return how the last switch ended."""
    bench.wait(lambda: step(bench) == "" and bench.serves(), "the end of the switch")
    assert bench.state().containers == f"vllm-{bench.name} running"
    said = bench.run("cat /var/lib/gb10-fleet/deployment.json")
    run = bench.deploy()
    assert run.status == "successful", run.failures
    return said


@SWITCHING.add(
    "Ansible is killed before it touches anything",
    by=By.PREPARATION,
    says=("untouched",),
    end=End.UNTOUCHED,
)
def ansible_killed_at_first(bench: Bench) -> str:
    began = time.monotonic()
    interrupted(bench, lambda: time.monotonic() - began > 4, end)
    assert step(bench) == ""
    return "untouched"


@SWITCHING.add(
    "Ansible is killed while the new engine starts",
    by=By.SWITCH,
    says=('"outcome": "served"',),
    end=End.NEXT_RUN,
)
def ansible_killed_at_start(bench: Bench) -> str:
    interrupted(bench, lambda: step(bench) in {"starting", "proving"}, end)
    return settled(bench)


@SWITCHING.add(
    "the program that switches is killed",
    by=By.SYSTEMD,
    says=('"outcome": "served"',),
    end=End.NEXT_RUN,
)
def switch_killed(bench: Bench) -> str:
    def blow(_playbook: object) -> None:
        bench.run(f"systemctl kill --signal=KILL {_UNIT}")
        until(lambda: step(bench) == "", 60)

    interrupted(bench, lambda: step(bench) in {"stopping", "placing", "starting"}, blow)
    return settled(bench)


@SWITCHING.add(
    "the power fails while the new engine starts",
    by=By.SWITCH,
    says=('"outcome": "restored"', "the box restarted while it was starting"),
    end=End.RESTORED,
)
def power_loss_at_switch(bench: Bench) -> str:
    since, before = bench.now(), boot_id(bench)

    def blow(_playbook: object) -> None:
        container = Names(lab_id(kit.CHECKOUT)).container(bench.box)
        for verb in ("kill", "start"):
            subprocess.run(["docker", verb, container], check=True, capture_output=True)

    interrupted(bench, lambda: step(bench) == "starting", blow)
    back_after(bench, before, since)
    return settled(bench)
