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
"""

EXAMPLES = r"""
- name: Put the program on the box
  gb10.fleet.box_program:
    dest: /usr/local/lib/gb10-fleet/fleet.pyz
"""

RETURN = r"""
dest:
  description: Where the program lies.
  returned: success
  type: str
  sample: /usr/local/lib/gb10-fleet/fleet.pyz
checksum:
  description: The SHA-1 of the program.
  returned: success
  type: str
  sample: 6e642bb8dd5c2e027bf21dd923337cbb4214f827
"""
