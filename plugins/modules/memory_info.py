#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: memory_info
short_description: Read how much memory a box has, how much is available, and who holds the rest
version_added: 0.1.0
description:
  - Reads C(/proc/meminfo) and the processes of the box. On a GB10 the CPU and the GPU share one pool, so this is the
    only size that counts; C(nvidia-smi) prints C([N/A]) for it.
  - All sizes are bytes.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._attributes.info_module
options:
  minimum_bytes:
    description: Leave out the processes that hold less than this.
    type: int
    default: 268435456
  sysroot:
    description: The folder that stands for the root of the file system.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Read the memory of the box
  gb10.fleet.memory_info:
  register: memory

- name: Show what is available
  ansible.builtin.debug:
    msg: "{{ memory.available_bytes }} of {{ memory.total_bytes }} bytes"
"""

RETURN = r"""
total_bytes:
  description: The size of the pool (C(MemTotal)).
  returned: success
  type: int
  sample: 130595926016
available_bytes:
  description: What a new process could have (C(MemAvailable)).
  returned: success
  type: int
  sample: 117432320000
free_bytes:
  description: What holds nothing at all (C(MemFree)).
  returned: success
  type: int
  sample: 4432320000
cma_total_bytes:
  description: The contiguous memory allocator's share (C(CmaTotal)), null where the kernel has none.
  returned: success
  type: int
  sample: 0
cma_free_bytes:
  description: What is free of it (C(CmaFree)), null where the kernel has none.
  returned: success
  type: int
  sample: 0
holders:
  description:
    - The processes that hold O(minimum_bytes) or more, the largest first.
    - C(bytes) is resident memory. It counts shared pages in every process, and not what a driver allocated.
  returned: success
  type: list
  elements: dict
  sample:
    - {pid: 4711, name: 'VLLM::EngineCore', bytes: 2147483648, container: '', vllm: true}
findings:
  description: What is worth knowing about the memory of the box.
  returned: success
  type: list
  elements: dict
"""

import dataclasses
import pathlib

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _memory, _sysroot


def main() -> None:
    """Read, and return what was read."""
    module = AnsibleModule(
        argument_spec={
            "minimum_bytes": {"type": "int", "default": 256 * 2**20},
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    if wrong := _sysroot.refusal(module.params["sysroot"]):
        module.fail_json(msg=wrong)
    sysroot = pathlib.Path(module.params["sysroot"])
    try:
        memory = _memory.meminfo(sysroot)
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"The memory of the box cannot be read below {sysroot}: {error}.")
    holders = [one for one in _memory.processes(sysroot) if one.bytes >= module.params["minimum_bytes"]]
    module.exit_json(
        changed=False,
        holders=[dataclasses.asdict(one) for one in holders],
        findings=[finding.as_dict() for finding in _memory.findings(memory)],
        **dataclasses.asdict(memory),
    )


if __name__ == "__main__":
    main()
