# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The filter that lints an instance's command line."""

from __future__ import annotations

import collections.abc as c
import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_lint

DOCUMENTATION = r"""
name: lint_vllm_args
short_description: Say what a vLLM release will make of an instance's flags
version_added: 0.1.0
author: gb10.fleet maintainers
description:
  - Reads the command line and the environment of an instance the way the parser of its vLLM release does, and returns
    what the parser would refuse, what would only fail later (the name of a parser, a quantization or an attention
    backend), and what a reader should know.
  - The flags of 36 releases are known, from 0.10.2 to 0.33.0. For any other version the nearest lower release stands
    in, and a finding says so.
positional: version, env
options:
  _input:
    description: An instance (a mapping), or the words of a command line (a list) together with O(version).
    type: raw
    required: true
  version:
    description: The vLLM version that reads the words. An instance says it itself.
    type: str
  env:
    description: The environment that goes with the words. An instance says it itself.
    type: dict
"""

EXAMPLES = r"""
- name: Stop where vLLM would stop
  ansible.builtin.assert:
    that: (instance | gb10.fleet.lint_vllm_args).parses

- name: Lint words
  ansible.builtin.debug:
    msg: "{{ ['--max-num-seqs', '8'] | gb10.fleet.lint_vllm_args('0.33.0') }}"
"""

RETURN = r"""
_value:
  description:
    - V(parses), whether the parser takes the command line (null where no release can answer); V(findings);
      V(release), the release whose flags were used, and V(exact), whether that is the version itself.
  type: dict
"""


def lint_vllm_args(
    value: t.Any, version: str | None = None, env: c.Mapping[str, str] | None = None
) -> dict[str, t.Any]:
    """Return what a vLLM release will make of an instance's flags, or of words."""
    if isinstance(value, c.Mapping):
        if "vllm" not in value:
            raise AnsibleFilterError("gb10.fleet.lint_vllm_args: the instance does not say which vllm: it is for.")
        return _vllm_lint.lint_instance(value).as_dict()
    if not isinstance(value, list) or version is None:
        raise AnsibleFilterError("gb10.fleet.lint_vllm_args: give it an instance, or a list of words and the version.")
    return _vllm_lint.lint_args(str(version), [str(word) for word in value], env).as_dict()


class FilterModule:
    """Filters of the linter."""

    def filters(self) -> dict[str, c.Callable[..., t.Any]]:
        """Return the filters by name."""
        return {"lint_vllm_args": lint_vllm_args}
