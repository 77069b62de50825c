# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The filter that writes an instance's command line."""

from __future__ import annotations

import collections.abc as c
import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_cli

DOCUMENTATION = r"""
name: vllm_args
short_description: Write the command line of an instance for its vLLM version
version_added: 0.1.0
author: gb10.fleet maintainers
description:
  - Returns the words that follow C(vllm serve) for one instance, in the spelling of the vLLM release that the
    instance names.
  - Every flag comes once, in the same order every time, with a mapping as compact JSON in one word.
  - A flag that the release does not have is an error that names the nearest flag and, where it is known, the releases
    that have it.
positional: _input
options:
  _input:
    description: An instance, which is a model role with what its box overrides and what its plan computed.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the command line
  ansible.builtin.debug:
    msg: "{{ instance | gb10.fleet.vllm_args | join(' ') }}"
  vars:
    instance:
      vllm: "0.33.0"
      checkpoint:
        repo: unsloth/Qwen3.6-35B-A3B-NVFP4
      max_model_len: 262144
      speculative:
        method: mtp
        num_speculative_tokens: 3
      args:
        enable_prefix_caching: false
"""

RETURN = r"""
_value:
  description: The words, the model first.
  type: list
  elements: str
"""


def vllm_args(instance: c.Mapping[str, t.Any]) -> list[str]:
    """Return the words that follow ``vllm serve``."""
    if not isinstance(instance, c.Mapping) or "vllm" not in instance:
        raise AnsibleFilterError("gb10.fleet.vllm_args: an instance is a mapping that says which vllm: it is for.")
    try:
        return _vllm_cli.render_args(instance)
    except _vllm_cli.FlagError as error:
        raise AnsibleFilterError(f"gb10.fleet.vllm_args: {error}") from error


class FilterModule:
    """Filters of the command line."""

    def filters(self) -> dict[str, c.Callable[..., t.Any]]:
        """Return the filters by name."""
        return {"vllm_args": vllm_args}
