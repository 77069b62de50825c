# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All faults, the benches that they are tried on, and a selection of them."""

from __future__ import annotations

import os

from tests.lab.faults.bench import Bench
from tests.lab.faults.box import BOX
from tests.lab.faults.clock import CLOCK
from tests.lab.faults.deploying import DEPLOYING
from tests.lab.faults.entry import Fault
from tests.lab.faults.real import REAL
from tests.lab.faults.serving import SERVING
from tests.lab.faults.starting import STARTING
from tests.lab.faults.switching import SWITCHING
from tests.lab.faults.watching import WATCHING

# Nothing is waited for longer than it has to be. The watch may restart as often as there are faults for it, within two
# days, which so many slow boots could take; with this period it waits 10 s for an answer, and the faults have it look
# at once rather than wait for its timer.
_QUICK = """\
vllm_server_restart_delay: 1
vllm_server_liveness_period: 50
vllm_server_liveness_restarts: 100
vllm_server_liveness_window: 172800
"""
# The engine of this box starts in half a second.
_QUICKER = f"""\
{_QUICK}vllm_server_boot_timeout: 40
vllm_server_gate_timeout: 20
vllm_server_stop_timeout: 5
"""
# Where a real vLLM boots among others it takes minutes on a busy machine, and no fault of these waits for the limit.
_PATIENT = f"{_QUICK}vllm_server_boot_timeout: 900\n"
# The second box has several engines, because most faults are waited for rather than computed.
_SEVERAL = """\
model_roles:
  - {role: extractor, port: 8000}
  - {role: scripted, name: scripted-a, port: 8001}
  - {role: scripted, name: scripted-b, port: 8002}
  - {role: scripted, name: scripted-c, port: 8003}
"""

BENCHES = {
    "one": Bench("spark-1", "scripted", "model_roles: [scripted]\n", _QUICKER, alone=True),
    "a": Bench("spark-2", "scripted-a", _SEVERAL, _PATIENT, 8001),
    "b": Bench("spark-2", "scripted-b", _SEVERAL, _PATIENT, 8002),
    "c": Bench("spark-2", "scripted-c", _SEVERAL, _PATIENT, 8003),
    "vllm": Bench("spark-2", "extractor", _SEVERAL, _PATIENT, 8000, "extractor", patience_s=1800),
}

SUITE = (
    *DEPLOYING.faults,
    *SWITCHING.faults,
    *STARTING.faults,
    *SERVING.faults,
    *WATCHING.faults,
    *REAL.faults,
    *BOX.faults,
    *CLOCK.faults,
)

# A selection: every kind of fault that the suite was made for, in one or more of its forms.
CORE_KINDS: dict[str, tuple[str, ...]] = {
    "/health lies": ("health_lies_500", "watch_health_lies_500"),
    "it dies of the first message": ("dies_at_first_message",),
    "it hangs in the middle of an answer": ("hang_mid_stream", "watch_hang_mid_body"),
    "it wants a key": ("auth_required",),
    "it serves another model": ("wrong_model",),
    "garbage": (
        "garbage_nul",
        "garbage_symbols",
        "garbage_words",
        "garbage_scripts",
        "garbage_broken_characters",
        "garbage_when_streamed",
        "garbage_raw_only",
        "garbage_salad",
    ),
    "no content": ("empty", "answer_in_reasoning", "empty_budget"),
    "the first token is slow": ("first_token_takes_3_s",),
    "a long prompt is computed": ("watch_long_prompt",),
    "it ends with status 0": ("exit_0", "exit_0_at_boot", "engine_core_killed"),
    "it ends with status 137": ("exit_137", "exit_137_at_boot"),
    "no memory at boot": ("killed_for_memory_at_boot", "no_room_for_weights"),
    "the port is taken": ("port_squatter",),
    "the KV cache is too small": ("kv_too_small", "kv_cache_too_small"),
    "the parser is missing": ("parser_missing",),
    "the image is missing": ("image_missing",),
    "the registry is down": ("registry_down",),
    "the disk is full": ("disk_full_for_image",),
    "weights of the right size, and hollow": ("weights_hollow",),
    "the unit was edited by hand": ("unit_edited_by_hand",),
    "the clock jumps": ("clock_jumps_back", "clock_jumps_while_going_back"),
    "SIGSTOP": ("watch_frozen",),
    "Ansible or its program is killed": ("ansible_killed_at_first", "ansible_killed_at_start", "switch_killed"),
    "Docker Engine goes down": ("docker_restarted", "docker_killed"),
    "the box goes down": ("reboot", "power_loss"),
    "the new engine is bad": ("new_no_kernel_image",),
    "no start is good": ("no_start_is_good", "stopped_while_it_starts"),
}
CORE = frozenset(name for names in CORE_KINDS.values() for name in names)


def chosen() -> tuple[Fault, ...]:
    """Return what GB10_LAB_FAULTS asks for: "core", or "all", which is what is tried where it is not set."""
    wanted = os.environ.get("GB10_LAB_FAULTS", "all")
    if wanted not in {"all", "core"}:
        raise ValueError(f"GB10_LAB_FAULTS is {wanted!r}; it may be 'all' or 'core'")
    return tuple(fault for fault in SUITE if wanted == "all" or fault.id in CORE)
