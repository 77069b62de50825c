# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults of an engine that serves: however it ends, systemd brings it back through gate and readiness."""

from __future__ import annotations

import collections.abc as c

from tests.lab.faults.bench import Bench, text_of
from tests.lab.faults.entry import By, Collection, End, When

SERVING = Collection(When.SERVING)


def ends_by(command: c.Callable[[Bench], object]) -> c.Callable[[Bench], str]:
    """Return how to end a serving engine and see another one come."""

    def inject(bench: Bench) -> str:
        since, before = bench.now(), bench.container()
        command(bench)
        bench.wait_until_it_serves(other_than=before)
        return bench.journal(since)

    return inject


@SERVING.add(
    "the engine ends with status 0, as a vLLM does whose engine core died",
    by=By.SYSTEMD,
    says=("Deactivated successfully", "Scheduled restart job", "ready: it answered"),
    end=End.HEALED,
    bench="a",
)
def exit_0(bench: Bench) -> str:
    return ends_by(lambda one: one.fault("exit_0 0"))(bench)


@SERVING.add(
    "the engine ends with status 137 and without a word",
    by=By.SYSTEMD,
    says=("status=137", "Scheduled restart job", "ready: it answered"),
    end=End.HEALED,
    bench="b",
)
def exit_137(bench: Bench) -> str:
    return ends_by(lambda one: one.fault("exit_137 0"))(bench)


@SERVING.add(
    "the kernel kills the engine for its memory",
    by=By.SYSTEMD,
    says=("status=137", "Scheduled restart job", "ready: it answered"),
    end=End.HEALED,
    bench="c",
)
def killed_for_memory(bench: Bench) -> str:
    def hog(one: Bench) -> None:
        one.run(f"docker update --memory 192m --memory-swap 192m vllm-{one.name}")
        one.fault("memory_hog_while_serving 0")

    return ends_by(hog)(bench)


@SERVING.add(
    "the engine is killed with SIGKILL",
    by=By.SYSTEMD,
    says=("status=137", "Scheduled restart job", "ready: it answered"),
    end=End.HEALED,
    bench="a",
)
def sigkill(bench: Bench) -> str:
    return ends_by(lambda one: one.run(f"docker kill --signal KILL vllm-{one.name}"))(bench)


@SERVING.add(
    "somebody stops the container by hand",
    by=By.SYSTEMD,
    says=("Deactivated successfully", "Scheduled restart job", "ready: it answered"),
    end=End.HEALED,
    bench="b",
)
def stopped_by_hand(bench: Bench) -> str:
    return ends_by(lambda one: one.run(f"docker stop vllm-{one.name}"))(bench)


@SERVING.add(
    "somebody removes the container by hand",
    by=By.SYSTEMD,
    says=("Scheduled restart job", "ready: it answered"),
    end=End.HEALED,
    bench="c",
)
def removed_by_hand(bench: Bench) -> str:
    return ends_by(lambda one: one.run(f"docker rm --force vllm-{one.name}"))(bench)


@SERVING.add(
    "everything in the unit is killed, and the container is left without its unit",
    by=By.SYSTEMD,
    says=("status=9/KILL", "Scheduled restart job", "ready: it answered"),
    end=End.HEALED,
    bench="a",
)
def client_killed(bench: Bench) -> str:
    return ends_by(lambda one: one.run(f"systemctl kill --signal=KILL {one.unit}"))(bench)


@SERVING.add(
    "the unit is edited by hand, and the engine restarted from it",
    by=By.SWITCH,
    says=("restart vllm-", "it serves something else", "serves and has answered"),
    end=End.NEXT_RUN,
)
def unit_edited_by_hand(bench: Bench) -> str:
    path = f"/etc/systemd/system/{bench.unit}"
    # The line of the flag, and the line of its value.
    bench.run(f"sed -i '/--max-num-seqs/,/ [0-9]/s/ 4/ 2/' {path} && systemctl daemon-reload")
    bench.restart()
    assert '"--max-num-seqs","2"' in bench.run("docker inspect --format '{{json .Config.Cmd}}' vllm-$NAME")
    run = bench.deploy()
    assert run.status == "successful", run.failures
    assert '"--max-num-seqs","4"' in bench.run("docker inspect --format '{{json .Config.Cmd}}' vllm-$NAME")
    return text_of(run)


@SERVING.add(
    "what the gate knows of the instance is edited by hand",
    by=By.SWITCH,
    says=("serves and has answered",),
    end=End.NEXT_RUN,
)
def settings_edited_by_hand(bench: Bench) -> str:
    path = f"/etc/gb10-fleet/instances/{bench.name}.json"
    bench.run(f'sed -i \'s/"memory_floor_bytes": [0-9]*/"memory_floor_bytes": 1/\' {path}')
    run = bench.deploy()
    assert run.status == "successful", run.failures
    assert run.count("changed", bench.box) == 1, run.stats
    return text_of(run)


@SERVING.add(
    "the record of what was deployed is garbage",
    by=By.SWITCH,
    says=("serves",),
    end=End.NEXT_RUN,
)
def record_garbled(bench: Bench) -> str:
    bench.run(f"echo '{{\"spec\": ' > /var/lib/gb10-fleet/records/{bench.name}.json")
    run = bench.deploy()
    assert run.status == "successful", run.failures
    assert run.count("changed", bench.box) == 1, run.stats
    return text_of(run)
