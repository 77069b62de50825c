#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: box_program
short_description: Put the collection's program on the box
version_added: 0.1.0
description:
  - Packs the start gate, the readiness probe and what they need into one file of Python's standard library and copies
    it to the box. systemd runs it there without Ansible, and it is the very code that the modules run.
author:
  - gb10.fleet maintainers (!UNKNOWN)
attributes:
  action:
    description: Packs on the controller and copies from there.
    support: full
  check_mode:
    description: Can run in check mode without changing the box.
    support: full
  diff_mode:
    description: Returns what changed in diff mode.
    support: full
options:
  dest:
    description: Where the program goes. Its folder has to exist.
    type: path
    required: true
  sha256:
    description: The fingerprint of the program. The action plugin sets it; leave it out.
    type: str
"""

EXAMPLES = r"""
- name: Put the program on the box
  gb10.fleet.box_program:
    dest: /usr/local/lib/gb10-fleet/fleet.pyz
"""

RETURN = r"""
present:
  description: Whether the program was there already.
  returned: when nothing was changed
  type: bool
"""

import hashlib
import pathlib

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Say whether the program is there; the action plugin copies it where it is not."""
    module = AnsibleModule(
        argument_spec={"dest": {"type": "path", "required": True}, "sha256": {"type": "str"}}, supports_check_mode=True
    )
    path = pathlib.Path(module.params["dest"])
    found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    module.exit_json(changed=False, present=found == module.params["sha256"])


if __name__ == "__main__":
    main()
