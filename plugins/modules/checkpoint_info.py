#!/usr/bin/python

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Say what a model checkpoint declares and what it is."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_info
short_description: Say what a model checkpoint declares and what it is
version_added: 0.1.0
author:
  - gb10.fleet maintainers (!UNKNOWN)
description:
  - Reads the JSON files and the safetensors headers of a checkpoint directory and returns how each part of the model is
    quantised, what its layers are, and how many bytes its weights have.
  - Only headers are read, never tensor data, and no code of the checkpoint is run.
  - It works on a directory that holds only the JSON files, too, for planning before a download. Schemes are then those
    that are declared, and the bytes are not known.
  - A snapshot of the Hugging Face cache is read through its links into the blobs directory beside it. Any other link
    that leads out of the directory is refused.
  - Where files and tensors contradict each other, the tensors decide how weights are stored, the declaration decides
    whether activations are quantised, too, and a finding says so.
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._attributes.info_module
options:
  path:
    description:
      - Directory of the checkpoint.
      - A model of the Hugging Face cache (C(models--ORG--NAME)) stands for the snapshot that its C(refs/main) names, or
        for its only snapshot.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Look at a downloaded checkpoint
  gb10.fleet.checkpoint_info:
    path: /srv/models/nvidia/GLM-5.2-NVFP4
  register: checkpoint

- name: Refuse a checkpoint with errors
  ansible.builtin.assert:
    that: checkpoint.findings | selectattr('severity', 'equalto', 'error') | length == 0

- name: Look at a model of the Hugging Face cache
  gb10.fleet.checkpoint_info:
    path: /root/.cache/huggingface/hub/models--openai--gpt-oss-120b
"""

RETURN = r"""
directory:
  description: Directory that was read, with all links resolved.
  returned: success
  type: str
  sample: /srv/models/nvidia/GLM-5.2-NVFP4
name:
  description: Name of the checkpoint, taken from the cache layout or from the directory.
  returned: success
  type: str
  sample: openai/gpt-oss-120b
format:
  description:
    - Format of the weights, V(safetensors), V(mistral), V(gguf), V(pickle), or V(none) where only JSON files are there.
    - V(mistral) is safetensors with C(params.json) in place of C(config.json).
  returned: success
  type: str
  sample: safetensors
architecture:
  description: First architecture that the config names, empty where it names none.
  returned: success
  type: str
  sample: GlmMoeDsaForCausalLM
model_type:
  description: Model type that the config names, empty where it names none.
  returned: success
  type: str
  sample: glm_moe_dsa
scheme:
  description:
    - Scheme of the bulk of the weights, counted in parameters and without embeddings.
    - One of V(nvfp4_w4a4), V(nvfp4_w4a16), V(mxfp4), V(mxfp8), V(fp8), V(int4_autoround), V(int4_awq), V(int4_gptq),
      V(bf16), V(gguf) and V(unknown).
    - V(bf16) stands for everything that is not quantised. V(int4_gptq) also stands for the packed 4-bit integers of
      compressed-tensors, which are stored and multiplied in the same way; RV(declared.method) tells them apart.
  returned: success
  type: str
  sample: nvfp4_w4a4
parts:
  description:
    - Scheme of the bulk of each part, with the values of RV(scheme).
    - Shared experts and attention are dense. A part that the model does not have is null.
  returned: success
  type: dict
  contains:
    dense:
      description: Scheme of attention, dense feed-forward layers and shared experts.
      type: str
      sample: bf16
    experts:
      description: Scheme of the routed experts.
      type: str
      sample: nvfp4_w4a4
    lm_head:
      description: Scheme of the output head. A head that is tied to the embeddings is V(bf16).
      type: str
      sample: bf16
    draft:
      description: Scheme of the draft (MTP) layers that the checkpoint brings along.
      type: str
      sample: bf16
part_details:
  description: For each part that was told, its scheme in full, bits, scale granularity, and the share of every scheme.
  returned: success
  type: dict
  sample:
    experts:
      activation_bits: 4
      granularity: group 16
      modules: 225
      schemes:
        - share: 1.0
          spelling: NVFP4 W4A4, groups of 16
      spelling: NVFP4 W4A4, groups of 16
      weight_bits: 4
part_bytes:
  description:
    - Exact bytes of the weights by part, from the headers; a partition of RV(weights_bytes_total).
    - Besides the four of RV(parts) there are C(embedding), C(multimodal) (vision and audio towers) and C(other) (norms,
      routers and what has no other place).
    - Empty where no header was read.
  returned: success
  type: dict
  sample:
    dense: 21474836480
    embedding: 1903165440
    experts: 418759311360
    lm_head: 1903165440
    other: 524288
layer_bytes:
  description:
    - Exact bytes of the weights of each layer of the model, from the first on, without draft layers and towers.
    - Empty where the headers were not read, or where they do not tell.
  returned: success
  type: list
  elements: int
  sample: [5368709120, 5368709120]
declared:
  description: What the files declare.
  returned: success
  type: dict
  contains:
    method:
      description: Quantisation method as the file calls it, empty where no file declares any.
      type: str
      sample: modelopt
    where:
      description: File and key where it stands.
      type: str
      sample: "config.json: quantization_config"
    parts:
      description: Scheme of each part by declaration.
      type: dict
stored:
  description: What the tensors are.
  returned: success
  type: dict
  contains:
    parts:
      description: Scheme of each part by the headers. Empty where no header was read.
      type: dict
kv_cache:
  description: What the checkpoint says about its KV cache.
  returned: success
  type: dict
  contains:
    scheme:
      description: V(fp8), V(nvfp4), V(int8), V(none) or V(unknown).
      type: str
      sample: fp8
    calibrated:
      description: Whether the checkpoint brings calibrated scales, null where that is not known.
      type: bool
lm_head_tied:
  description: Whether the output head is the table of embeddings.
  returned: success
  type: bool
needs_fp4_kernels:
  description: Whether any part multiplies 4-bit floats (NVFP4 with 4-bit activations), null where that is not known.
  returned: success
  type: bool
geometry:
  description:
    - Layers by kind with heads, head sizes, windows, latent ranks and recurrent state; draft layers, experts, limits.
    - Empty where the architecture is not known; a finding says so.
  returned: success
  type: dict
weights_bytes:
  description:
    - Exact bytes of all tensors by their type in the safetensors headers, or of all files under C(GGUF).
    - Empty where no weight file was read.
  returned: success
  type: dict
  sample:
    BF16: 25281495040
    F8_E4M3: 46528811008
    U8: 372230488064
weights_bytes_total:
  description: Sum of RV(weights_bytes), null where no weight file was read.
  returned: success
  type: int
  sample: 444040794112
weights_bytes_declared:
  description: Total that the index of the shards states, null where it states none.
  returned: success
  type: int
weights_complete:
  description: Whether all shards are there and whole, null where none is there.
  returned: success
  type: bool
tensors:
  description: Number of tensors in the headers that were read.
  returned: success
  type: int
shards:
  description: Number of shards that are there.
  returned: success
  type: int
shards_missing:
  description: Names of the shards that are missing.
  returned: success
  type: list
  elements: str
shards_damaged:
  description: Names of the shards that are cut short, malformed, or refused.
  returned: success
  type: list
  elements: str
findings:
  description: What is wrong with the checkpoint, or worth knowing before it is served.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint import inspect_checkpoint
from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_files import CheckpointError


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True)
    try:
        report = inspect_checkpoint(module.params["path"])
    except CheckpointError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=False, **report.as_dict())


if __name__ == "__main__":
    main()
