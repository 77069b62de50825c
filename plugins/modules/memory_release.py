#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: memory_release
short_description: Give the page cache back and wait until enough memory is available
version_added: 0.1.0
description:
  - Drops the page cache, then waits until O(floor_bytes) of memory are available and no vLLM process outside of a
    running container is left. A stopped engine's memory comes back seconds to minutes after its process is gone.
  - Fails, naming the largest processes, if that does not happen in time. Nothing is killed.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode nothing is dropped and nothing is waited for.
  diff_mode:
    support: none
  idempotent:
    support: full
    details:
      - The page cache is not a state of the box, so dropping it is not a change.
options:
  floor_bytes:
    description: How many bytes must be available.
    type: int
    required: true
  timeout:
    description: How long to wait, in seconds.
    type: int
    default: 240
"""

EXAMPLES = r"""
- name: Wait until 40 GiB are available
  gb10.fleet.memory_release:
    floor_bytes: 42949672960
"""

RETURN = r"""
waited_s:
  description: How long it took, in seconds.
  returned: always
  type: float
  sample: 4.0
available_bytes:
  description: What is available now.
  returned: always
  type: int
  sample: 117432320000
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _docker, _gate, _memory


def main() -> None:
    """Drop, wait, and say what came of it."""
    module = AnsibleModule(
        argument_spec={
            "floor_bytes": {"type": "int", "required": True},
            "timeout": {"type": "int", "default": 240},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, waited_s=0.0, available_bytes=_memory.meminfo().available_bytes)
    try:
        verdict = _gate.wait(
            lambda: _gate.Reading(_memory.meminfo(), _memory.processes(), _docker.running_ids(module.run_command)),
            floor_bytes=module.params["floor_bytes"],
            timeout_s=float(module.params["timeout"]),
            drop_page_cache=lambda: _memory.drop_page_cache(module.log),
            say=module.log,
            clock=time.monotonic,
            sleep=time.sleep,
        )
    except _docker.DockerError as error:
        module.fail_json(msg=str(error))
    waited, available = round(verdict.waited_s, 1), _memory.meminfo().available_bytes
    if not verdict.passed:
        message = f"The memory did not come back: {verdict.reason}."
        module.fail_json(msg=message, waited_s=waited, available_bytes=available)
    module.exit_json(changed=False, waited_s=waited, available_bytes=available)


if __name__ == "__main__":
    main()
