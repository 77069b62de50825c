# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults of a real vLLM: what the scripted engine only plays."""

from __future__ import annotations

import concurrent.futures

from tests.lab.faults.bench import HUB, Bench
from tests.lab.faults.entry import By, Collection, End, When
from tests.lab.faults.serving import ends_by
from tests.lab.faults.watching import look

REAL = Collection(When.SERVING)


def kill(bench: Bench, title: str, signal: str = "KILL") -> None:
    """Send a signal to a process of the instance's engine, by its title."""
    # The lab's boxes share one machine, but each sees its own processes only.
    inside = f"docker top vllm-{bench.name} -eo pid,args | awk '/{title}/ {{ print $1; exit }}'"
    bench.run(f"kill -{signal} $({inside})")


@REAL.add(
    "the engine core of a real vLLM is killed; its API server ends with status 0",
    by=By.SYSTEMD,
    says=("Scheduled restart job", "ready: it answered"),
    end=End.HEALED,
    bench="vllm",
)
def engine_core_killed(bench: Bench) -> str:
    return ends_by(lambda one: kill(one, "VLLM::EngineCore"))(bench)


@REAL.add(
    "the worker of a real vLLM is killed in the middle of an answer",
    by=By.SYSTEMD,
    says=("died unexpectedly", "Scheduled restart job", "ready: it answered"),
    end=End.HEALED,
    bench="vllm",
)
def worker_killed(bench: Bench) -> str:
    def kill_under_load(one: Bench) -> None:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = [pool.submit(one.answer) for _ in range(8)]
            kill(one, "VLLM::Worker")
            for each in asked:
                each.result()

    return ends_by(kill_under_load)(bench)


@REAL.add(
    "the engine core of a real vLLM is stopped (SIGSTOP); its API server lives",
    by=By.WATCH,
    says=("restarting it", "hung:", "ready: it answered"),
    end=End.HEALED,
    bench="vllm",
)
def engine_core_frozen(bench: Bench) -> str:
    since, before = bench.now(), bench.container()
    kill(bench, "VLLM::EngineCore", "STOP")
    look(bench)
    bench.wait_until_it_serves(other_than=before)
    return bench.journal(since)


@REAL.add(
    "a shard of the weights has its size and its header, and nothing but zeros after it",
    by=By.READY,
    says=("failure 3 of 3", "ready: it answered"),
    end=End.HEALED,
    bench="vllm",
    when=When.START,
)
def weights_are_zeros(bench: Bench) -> str:
    since = bench.now()
    blob = bench.run(f"readlink -f {HUB}/models--gb10-lab--extractor/snapshots/*/model.safetensors").strip()
    keep = f"cp --preserve=all {blob} /var/tmp/kept-shard"
    half = f"size=$(stat -c %s {blob}); truncate -s $((size / 4)) {blob}; truncate -s $size {blob}"
    bench.run(f"{keep} && {half}")
    try:
        bench.run(f"systemctl restart --no-block {bench.unit}")
        bench.wait(lambda: "failure 3 of 3" in bench.journal(since), "three strikes")
    finally:
        bench.run(f"cp --preserve=all /var/tmp/kept-shard {blob} && rm /var/tmp/kept-shard")
    bench.wait_until_it_serves()
    return bench.journal(since)


@REAL.add(
    "a real vLLM gets less memory than it needs to boot",
    by=By.READY,
    says=("ready: it answered",),
    end=End.HEALED,
    bench="vllm",
    when=When.START,
)
def vllm_killed_for_memory_at_boot(bench: Bench) -> str:
    since, before = bench.now(), bench.container()
    bench.run(f"systemctl restart --no-block {bench.unit}")
    bench.wait(lambda: bench.container() not in {"", before}, "a container to limit")
    limited = bench.container()
    bench.run(f"docker update --memory 400m --memory-swap 400m {limited}")
    bench.wait_until_it_serves(other_than=limited)
    return bench.journal(since)
