#!/usr/bin/python

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Say what a vLLM server said while it booted."""

from __future__ import annotations

DOCUMENTATION = r"""
module: boot_log_info
short_description: Say what a vLLM server said while it booted
version_added: 0.1.0
author:
  - gb10.fleet maintainers (!UNKNOWN)
description:
  - Reads the boot log of a vLLM server and returns the backends that it chose, its KV pool, its weights, its CUDA
    graphs, the warnings that matter and, where it failed, the first error.
  - The log forms of vLLM 0.10.2 to 0.33.0 are read, on GPU and CPU.
  - Several logs of one boot are read together. The pool is then the smallest that a rank has, and the error the
    earliest of all, for the loudest one is often on the wrong rank.
  - With O(expects) or O(plan), differences become findings. Another backend than expected, or a pool that is more than
    2 % off, is an error.
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._attributes.info_module
options:
  unit:
    description:
      - Systemd unit whose journal is read, from its last start on. The suffix C(.service) may be left out.
      - Exactly one of O(unit), O(container), O(text) and O(logs) has to be given.
    type: str
  container:
    description: Docker container whose log is read, from its last start on.
    type: str
  text:
    description: The log itself.
    type: str
  logs:
    description: Several logs of one boot, one for each rank or box.
    type: list
    elements: dict
    suboptions:
      name:
        description: Name of the log in findings, such as that of the box.
        type: str
        required: true
      text:
        description: The log itself.
        type: str
        required: true
  expects:
    description:
      - What the model role expects to see. The names are V(moe_backend), V(linear_backend), V(attention_backend),
        V(gdn_backend) and V(mla_prefill_backend); a list of names accepts any of them.
      - V(FLASHINFER_CUTLASS) and V(FlashInferCutlassNvFp4LinearKernel) are two spellings of one backend.
    type: dict
  plan:
    description:
      - What was planned for the instance, as the filter P(gb10.fleet.memory_plan#filter) gives it for an instance, or
        any dictionary with C(kv_tokens), C(kv_cache_memory_bytes), C(kv_block_size), C(weights) in bytes,
        C(max_model_len) and C(vllm). What it lacks is not compared.
    type: dict
"""

EXAMPLES = r"""
- name: Read what the coordinator said while it booted
  gb10.fleet.boot_log_info:
    unit: vllm-coordinator
    expects:
      moe_backend: FLASHINFER_CUTLASS
    plan:
      kv_tokens: 1210288
      kv_cache_memory_bytes: 17179869184
  register: boot

- name: Find out which of two boxes failed first
  gb10.fleet.boot_log_info:
    logs:
      - name: spark-1
        text: "{{ hostvars['spark-1'].journal.stdout }}"
      - name: spark-2
        text: "{{ hostvars['spark-2'].journal.stdout }}"
  delegate_to: localhost
"""

RETURN = r"""
state:
  description:
    - V(ready) where the server said so or has served, V(failed) where an error ended the boot or the engine after it,
      V(loading) otherwise, and V(unknown) for an empty log.
    - The error of a single request after the boot is no failure of the engine.
    - The ranks of a serving group other than the first never say that they are ready.
  returned: success
  type: str
  sample: ready
version:
  description: Version of vLLM, empty where the log does not say.
  returned: success
  type: str
  sample: 0.28.0
device:
  description: V(cuda) or V(cpu), empty where the log does not say.
  returned: success
  type: str
  sample: cuda
backends:
  description:
    - The backend of each kind (C(moe), C(linear), C(attention), C(mla_prefill), C(gdn), C(kda), C(sampler)), as vLLM
      spells it. Where there are several of a kind, it is the first for FP4, else the first, which is that of the model
      itself.
  returned: success
  type: dict
  sample:
    attention: FLASHINFER
    gdn: FlashInfer
    linear: FlashInferCutlassNvFp4LinearKernel
    moe: FLASHINFER_CUTLASS
backends_all:
  description: Every backend in the order of the log, with its kind and what it serves, once for all ranks.
  returned: success
  type: list
  elements: dict
  sample:
    - kind: moe
      name: FLASHINFER_CUTLASS
      scheme: NvFp4
kv_cache:
  description: The pool of the KV cache. A value that the log does not give is null.
  returned: success
  type: dict
  contains:
    tokens:
      description: Tokens that the pool holds.
      type: int
      sample: 1210288
    max_concurrency:
      description: Requests of full length that the pool holds at a time.
      type: float
      sample: 9.23
    max_model_len:
      description: Length of such a request in tokens, which is the context that is served.
      type: int
      sample: 131072
    available_gib:
      description: GiB that profiling left for the pool, the smallest over all ranks. Null where the pool is pinned.
      type: float
    pinned_gib:
      description: GiB to which the pool is pinned, as vLLM rounds them.
      type: float
      sample: 16.0
    bytes:
      description: Bytes to which the pool is pinned, where the log has the command line.
      type: int
      sample: 17179869184
    in_use_gib:
      description: GiB of the pool by vLLM's summary of memory.
      type: float
    block_size:
      description: Tokens in a block of attention, logged for hybrid models.
      type: int
      sample: 2144
    padding_percent:
      description: Share by which the state of recurrent layers is padded.
      type: float
    layer_padding_percent:
      description: Share of the pool that is lost to groups of layers of unequal size, at most.
      type: float
weights_gib:
  description: GiB of weights in memory, the largest over all ranks.
  returned: success
  type: float
  sample: 21.86
weights_seconds:
  description: Seconds that loading took, the longest over all ranks.
  returned: success
  type: float
  sample: 46.4
graphs:
  description:
    - CUDA graphs, with their mode, whether they were captured, and their size in GiB as estimated and as it is.
  returned: success
  type: dict
  sample:
    captured: true
    estimated_gib: 0.39
    full: 1
    gib: 0.36
    mode: FULL_AND_PIECEWISE
    piecewise: 3
    seconds: 12
memory:
  description: vLLM's own account of memory in GiB, and the fraction that was asked for.
  returned: success
  type: dict
  sample:
    activation_gib: 1.2
    consumed_gib: 23.1
    effective_utilization: 0.8048
    free_gib: 113.35
    non_torch_gib: null
    requested_gib: 79.1
    total_gib: 121.69
    utilization: 0.65
engine_seconds:
  description: Seconds that the engine took to profile, to make its cache and to warm up.
  returned: success
  type: float
world_size:
  description: Number of ranks.
  returned: success
  type: int
async_scheduling:
  description: Whether async scheduling is on, null where the log does not say.
  returned: success
  type: bool
first_error:
  description: The error that all others follow from, null where the boot did not fail.
  returned: success
  type: dict
  contains:
    id:
      description: Id of the finding, V(BOOT_FAILED) where the message is not known.
      type: str
      sample: BOOT_FREE_MEMORY_TOO_SMALL
    message:
      description: The message, with secrets blotted out.
      type: str
    log:
      description: Name of the log.
      type: str
    process:
      description: Process of vLLM that wrote it.
      type: str
    rank:
      description: Rank that wrote it, null where the log does not say.
      type: int
    time:
      description: When, as the log has it.
      type: str
    source:
      description: File and line in vLLM.
      type: str
    echo:
      description: Whether it only repeats another rank's error, whose log was not given.
      type: bool
    numbers:
      description: Numbers in the message by name, and what follows from them.
      type: dict
errors:
  description: The first 20 errors that the boot did not survive, in the order of the logs.
  returned: success
  type: list
  elements: dict
findings:
  description: The first error, warnings that matter, and differences from O(expects) and O(plan).
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils._boot_expectations import compare_with_plan
from ansible_collections.gb10.fleet.plugins.module_utils._boot_log import Log, parse_boot_logs
from ansible_collections.gb10.fleet.plugins.module_utils._boot_sources import (
    BootSourceError,
    read_container,
    read_unit,
)

SOURCES = ("unit", "container", "text", "logs")
LOG = {"name": {"type": "str", "required": True}, "text": {"type": "str", "required": True}}
ARGUMENTS = {
    "unit": {"type": "str"},
    "container": {"type": "str"},
    "text": {"type": "str"},
    "logs": {"type": "list", "elements": "dict", "options": LOG},
    "expects": {"type": "dict"},
    "plan": {"type": "dict"},
}


def read_logs(params: dict) -> list[Log]:
    """Return the logs that the task asks for."""
    if params["unit"] is not None:
        return [Log(params["unit"], read_unit(params["unit"]))]
    if params["container"] is not None:
        return [Log(params["container"], read_container(params["container"]))]
    if params["text"] is not None:
        return [Log("", params["text"])]
    return [Log(entry["name"], entry["text"]) for entry in params["logs"]]


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        mutually_exclusive=[SOURCES],
        required_one_of=[SOURCES],
        supports_check_mode=True,
    )
    try:
        parsed = parse_boot_logs(read_logs(module.params))
    except BootSourceError as exc:
        module.fail_json(msg=str(exc))
    result = parsed.as_dict()
    compared = compare_with_plan(parsed, module.params["expects"], module.params["plan"])
    result["findings"] += [finding.as_dict() for finding in compared]
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
