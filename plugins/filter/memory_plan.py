# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: memory_plan
version_added: 0.1.0
short_description: Plan the memory of a box and of the vLLM instances on it
author:
  - gb10.fleet maintainers (!UNKNOWN)
description:
  - Computes what a box will hold before anything on it is touched, with vLLM's own arithmetic of the KV cache.
  - Returns for every instance the cache in bytes (C(--kv-cache-memory-bytes), which binds and reproduces) and the
    fraction that vLLM's start check reads (C(--gpu-memory-utilization)), and for the box the sums.
  - Every number comes with its unit, its reason and its uncertainty.
  - An instance that does not fit is refused, with the largest context and the most sequences that would.
  - The same input always gives the same plan. No host is contacted.
positional: _input, instances
options:
  _input:
    description:
      - The memory of the box as M(gb10.fleet.memory_info) returns it.
      - C(total_bytes) and C(available_bytes) are required. C(holders) is a list of mappings with C(name), C(bytes) and,
        where they are known, C(unit) and C(pid); what the units of the planned instances hold counts as free.
        C(leaving) is a list of further units that are stopped before, and whose memory counts as free, too.
      - C(platform) is V(gb10), the default, or V(cpu) for a host on which vLLM runs without a GPU.
    type: dict
    required: true
  instances:
    description:
      - The instances of the box, in the order in which they start.
      - Each needs C(name), C(vllm), C(max_model_len), C(max_num_seqs), and C(config) (a parsed C(config.json)) or
        C(geometry) (of M(gb10.fleet.checkpoint_info)); and C(measured.weights_gib) or C(weights_bytes).
      - C(kv_cache_memory_bytes) and C(gpu_memory_utilization) state a wish; without them the cache holds
        C(max_num_seqs) requests of full length, or C(kv_sequences) where that is given.
      - Further keys are C(kv_cache_dtype), C(tensor_parallel_size), C(max_num_batched_tokens), C(prefix_caching),
        C(mamba_cache_dtype), C(mamba_ssm_cache_dtype), C(load_format), C(kv_offload_bytes) (of all ranks),
        C(extra_bytes) (a mapping of what asks for it), C(context_may_exceed), C(scheme),
        C(expert_bytes), C(hf_quant_config), C(measured.overhead_gib), C(measured.boot_peak_gib), C(speculative) and
        C(peers), a list of the memories of the other boxes of a serving group.
      - With C(pipeline_parallel_size), C(node_rank) says whose rank it is; C(layer_bytes), C(part_bytes) and
        C(lm_head_tied) (of M(gb10.fleet.checkpoint_info)) say its weights, C(layer_partition) which layers
        each stage has where vLLM is told so (C(VLLM_PP_LAYER_PARTITION)).
    type: list
    elements: dict
    required: true
  host_reserve_bytes:
    description:
      - Bytes left available for the host after everything runs.
      - The default is 8 GiB, or one eighth of the memory of a smaller box.
    type: int
  cap:
    description:
      - Share of the memory of the box that all engines may take together. At most V(0.80), the default.
    type: float
  cap_override:
    description:
      - Goes above the cap, and says so in a finding. Needs C(fraction) and C(reason).
    type: dict
seealso:
  - plugin: gb10.fleet.memory_plan_text
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Plan a box whose memory was observed
  ansible.builtin.set_fact:
    plan: "{{ box_memory | gb10.fleet.memory_plan(instances) }}"
  vars:
    box_memory:
      total_bytes: 130595926016
      available_bytes: 121708635750
    instances:
      - name: coordinator
        vllm: "0.28.0"
        config: "{{ lookup('ansible.builtin.file', 'config.json') | from_json }}"
        measured:
          weights_gib: 21.9
          overhead_gib: 5.8
        max_model_len: 131072
        max_num_seqs: 8
        kv_cache_dtype: fp8
        speculative:
          method: mtp
          num_speculative_tokens: 3
# plan.instances[0].flags == ["--kv-cache-memory-bytes", "14900559872", "--gpu-memory-utilization", "0.34"]
"""

RETURN = r"""
_value:
  description:
    - C(verdict) is V(fits) or V(refused).
    - C(box.numbers) holds C(total), C(available), C(held_by_others), C(host_reserve), C(cap), C(engines), C(boot_peak)
      and C(free_after).
    - C(instances) holds for each instance C(fits), C(kv_cache_memory_bytes), C(gpu_memory_utilization), C(flags),
      C(largest) (what would fit where it does not) and C(numbers).
    - C(findings) lists what was found; one of severity V(error) refuses the plan.
  type: dict
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gb10.fleet.plugins.plugin_utils._memory_plan import PlanInputError, plan_memory


def memory_plan(
    box_memory: t.Any,
    instances: t.Any,
    host_reserve_bytes: int | None = None,
    cap: float | None = None,
    cap_override: t.Any = None,
) -> dict[str, t.Any]:
    """Return the plan of a box; see DOCUMENTATION."""
    if not isinstance(instances, list):
        raise AnsibleFilterError("gb10.fleet.memory_plan: instances is not a list.")
    try:
        return plan_memory(
            box_memory, instances, host_reserve_bytes=host_reserve_bytes, cap=cap, cap_override=cap_override
        )
    except PlanInputError as exc:
        raise AnsibleFilterError(f"gb10.fleet.memory_plan: {exc}") from None


class FilterModule:
    """The filter gb10.fleet.memory_plan."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Return the filter under its name."""
        return {"memory_plan": memory_plan}
