# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults of an engine that starts: one bad start, which readiness has to see through, and a good one after it."""

from __future__ import annotations

import collections.abc as c

from tests.lab.faults.bench import CACHE, Bench
from tests.lab.faults.entry import SHARED, By, Collection, End, Fault, When

STARTING = Collection(When.START)

# Name of the engine's fault, what it does, and the words in which readiness has to call it.
_SEEN_THROUGH = (
    (
        "health_lies_500",
        "`/health` says 200, completions 500",
        ("engine_dead:", "HTTP 500", "/health then: 200"),
    ),
    (
        "dies_at_first_message",
        "it dies of the first message",
        ("engine_dead:", "HTTP 500", "/health then: 503"),
    ),
    ("error_inside_stream", "the engine dies inside of a stream that began with 200", ("engine_dead:", "HTTP 500")),
    ("reset_at_completion", "connections are cut at a completion", ("engine_dead:", "was cut off")),
    ("wrong_model", "another model is served than was asked for", ("wrong_model:", "is not served here")),
    ("no_model", "no model is served", ("wrong_model:", "lists no model")),
    ("auth_required", "the engine wants a key that nobody has", ("auth_required:", "HTTP 401")),
    ("garbage_nul", "answers are NUL bytes", ("garbage:", "nul bytes")),
    ("garbage_symbols", "answers are `!!!!!!!!`", ("garbage:", "symbol run ('!'")),
    ("garbage_words", "answers repeat a word", ("garbage:", "repetition ('a'")),
    ("garbage_scripts", "answers mix in Hebrew and Chinese", ("garbage:", "unexpected script")),
    ("garbage_broken_characters", "answers are broken characters", ("garbage:", "replacement characters")),
    ("garbage_when_streamed", "answers are garbage only when they are streamed", ("garbage:", "symbol run ('$'")),
    ("garbage_raw_only", "answers are garbage only without the chat template", ("garbage:", "nul bytes")),
    ("garbage_salad", "answers are words, and wrong", ("wrong_answer:", "purple if the velvet")),
    ("empty", "answers are empty", ("no_answer:", "The answer is empty")),
    ("answer_in_reasoning", "the answer is taken for a thought", ("no_answer:", "came in reasoning")),
    ("empty_budget", "the engine never ends thinking", ("budget:", "inside its thinking")),
    ("not_json", "replies are no JSON", ("bad_reply:", "no JSON with a choice")),
    ("stream_without_done", "streams have no end", ("bad_reply:", "ended without [DONE]")),
    ("body_endless", "replies never end", ("bad_reply:", "larger than any honest one")),
    ("refuses", "every request is refused", ("request_refused:", "HTTP 400")),
    ("squatter_html", "a web server answers in the place of the engine", ("port_squatter:", "no list of models")),
    ("exit_0_at_boot", "the engine ends with status 0 while it boots", ("dead: The process is gone",)),
    ("exit_137_at_boot", "the engine ends with status 137 while it boots", ("dead: The process is gone", "137")),
    ("no_room_for_weights", "vLLM finds too little memory", ("The engine said:", "less than desired GPU memory")),
    ("kv_too_small", "the KV cache holds not even one request", ("The engine said:", "maximum model length is 169104")),
    ("no_kernel_image", "the image has no kernels for this GPU", ("The engine said:", "no kernel image is available")),
)


def one_bad_start(name: str) -> c.Callable[[Bench], str]:
    """Return how to give an engine one bad start."""

    def inject(bench: Bench) -> str:
        since = bench.now()
        bench.fault(f"{name} 1")
        bench.restart()
        bench.wait_until_it_serves()
        return bench.journal(since)

    return inject


STARTING.faults += [
    Fault(name, what, When.START, By.READY, says, End.HEALED, one_bad_start(name), SHARED[number % len(SHARED)])
    for number, (name, what, says) in enumerate(_SEEN_THROUGH)
]


@STARTING.add(
    "the engine takes more memory than its container may, and the kernel ends it",
    by=By.READY,
    says=("dead: The process is gone", "137"),
    end=End.HEALED,
    bench="b",
)
def killed_for_memory_at_boot(bench: Bench) -> str:
    since = bench.now()
    bench.fault("memory_hog 1")
    bench.run(f"systemctl restart --no-block {bench.unit}")
    limit = f"docker update --memory 192m --memory-swap 192m vllm-{bench.name}"
    bench.wait(lambda: "vllm-" in bench.run(f"{limit} 2>/dev/null || true"), "a container to limit")
    bench.wait_until_it_serves()
    return bench.journal(since)


@STARTING.add(
    "completions never come, and `/health` says 200",
    by=By.READY,
    says=("hung:", "token counters stand still", "/health said 200", "It was still hung after"),
    end=End.HEALED,
)
def hang(bench: Bench) -> str:
    return one_bad_start("hang")(bench)


@STARTING.add(
    "answers begin to stream and never end, and `/health` says 200",
    by=By.READY,
    says=("hung:", "/health said 200", "It was still hung after"),
    end=End.HEALED,
)
def hang_mid_stream(bench: Bench) -> str:
    return one_bad_start("hang_mid_stream")(bench)


@STARTING.add(
    "the engine never comes to the end of its boot",
    by=By.READY,
    says=("starting:", "It was still starting after"),
    end=End.HEALED,
)
def never_ready(bench: Bench) -> str:
    return one_bad_start("never_ready")(bench)


@STARTING.add(
    "thinking leaks into the answers",
    by=By.READY,
    says=("degraded: it answered", "REASONING_IN_CONTENT", "<think>"),
    end=End.WARNED,
    bench="c",
)
def reasoning_leaks(bench: Bench) -> str:
    since = bench.now()
    bench.fault("reasoning_leaks")
    bench.restart()
    assert bench.systemd()["ActiveState"] == "active"
    bench.fault("")
    return bench.journal(since)


@STARTING.add(
    "an engine that never starts rightly, whatever is tried",
    by=By.SYSTEMD,
    says=("stays down after 3 starts", "no kernel image is available", "systemctl reset-failed"),
    end=End.DOWN,
    bench="b",
)
def no_start_is_good(bench: Bench) -> str:
    since = bench.now()
    bench.fault("no_kernel_image")
    bench.restart()
    # Not only "stays down": that is in the name of the unit that says it, too.
    bench.wait(lambda: "stays down after" in bench.journal(since), "the line that says why")
    said = bench.journal(since)
    assert said.count("stays down after") == 1, said
    # What the line says.
    bench.fault("")
    bench.run(f"systemctl reset-failed {bench.unit} && systemctl start {bench.unit}")
    return said


@STARTING.add(
    "somebody stops the unit while its engine boots",
    by=By.SYSTEMD,
    says=("Stopped vllm-",),
    end=End.STOPPED,
    bench="c",
)
def stopped_while_it_starts(bench: Bench) -> str:
    since = bench.now()
    bench.fault("never_ready")
    bench.run(f"systemctl restart --no-block {bench.unit}")
    bench.wait(lambda: "starting:" in bench.journal(since), "an engine that boots")
    bench.run(f"systemctl stop {bench.unit}")
    # Who says why a unit stays down has been called now, because systemd calls such a unit failed.
    asked = f"systemctl show --property=ActiveState --value gb10-fleet-explain@{bench.name}"
    bench.wait(lambda: bench.run(asked).strip() == "inactive", "the end of last words")
    bench.fault("")
    bench.run(f"systemctl start {bench.unit}")
    said = bench.journal(since)
    assert "stays down after" not in said, said
    return said


@STARTING.add(
    "a container of that name is there from an earlier run",
    by=By.GATE,
    says=("removing the container", "left from an earlier run"),
    end=End.HEALED,
)
def leftover_container(bench: Bench) -> str:
    since = bench.now()
    bench.run(f"systemctl stop {bench.unit}")
    image = "$(docker images --quiet | head -n 1)"
    bench.run(f"docker run --detach --name vllm-{bench.name} --entrypoint sleep {image} 600")
    bench.run(f"systemctl start {bench.unit}")
    bench.wait_until_it_serves()
    return bench.journal(since)


@STARTING.add(
    "an engine core outside of any container still holds memory",
    by=By.GATE,
    says=("a vLLM process outside of any running container still holds memory", "VLLM::EngineCore"),
    end=End.HEALED,
)
def orphaned_engine_core(bench: Bench) -> str:
    since = bench.now()
    orphan = "python3 -c 'import time; time.sleep(600)'"
    bench.run(f'systemd-run --quiet --unit lab-orphan bash -c "exec -a VLLM::EngineCore {orphan}"')
    try:
        bench.run(f"systemctl restart --no-block {bench.unit}")
        bench.wait(lambda: "still holds memory" in bench.journal(since), "a closed gate")
    finally:
        bench.run("systemctl stop lab-orphan")
    bench.wait_until_it_serves()
    return bench.journal(since)


@STARTING.add(
    "somebody else listens on the port of the instance",
    by=By.READY,
    says=("port_squatter:",),
    end=End.HEALED,
    bench="b",
)
def port_squatter(bench: Bench) -> str:
    since = bench.now()
    bench.run(f"systemctl stop {bench.unit}")
    bench.run(f"systemd-run --quiet --unit lab-squatter python3 -m http.server {bench.port}")
    try:
        bench.run(f"systemctl start --no-block {bench.unit}")
        bench.wait(lambda: "port_squatter:" in bench.journal(since), "a word about the port")
    finally:
        bench.run("systemctl stop lab-squatter")
    bench.wait_until_it_serves()
    return bench.journal(since)


@STARTING.add(
    "the file with what the gate has to know is garbage",
    by=By.GATE,
    says=("is missing or not readable; deploy the box again",),
    end=End.NEXT_RUN,
)
def settings_garbled(bench: Bench) -> str:
    since = bench.now()
    bench.run(f"printf '{{\"name\": ' > /etc/gb10-fleet/instances/{bench.name}.json")
    bench.restart()
    bench.wait(lambda: bench.systemd()["ActiveState"] == "failed", "a unit that gave up")
    said = bench.journal(since)
    run = bench.deploy()
    assert run.status == "successful", run.failures
    return said


@STARTING.add(
    "the folder of the compile caches is on a disk that is full",
    by=By.READY,
    says=("No space left on device",),
    end=End.HEALED,
    bench="a",
)
def cache_disk_full(bench: Bench) -> str:
    since = bench.now()
    folder = f"{CACHE}/{bench.name}"
    bench.run(f"mount -t tmpfs -o size=4k tmpfs {folder}")
    try:
        bench.restart()
        bench.wait(lambda: "No space left" in bench.journal(since), "a word about the disk")
    finally:
        bench.run(f"systemctl stop {bench.unit}; umount {folder}; systemctl start {bench.unit}")
    bench.wait_until_it_serves()
    return bench.journal(since)
