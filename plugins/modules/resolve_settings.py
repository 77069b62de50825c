#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: resolve_settings
short_description: Check the variables of the collection's roles and playbooks, or say what is wrong with them
version_added: 0.1.0
description:
  - Reads the variables of boxes and refuses one that is misspelt, empty, of the wrong type or out of range, before
    anything is done with any of them. Every fault is reported at once with the file, the line, the key and the remedy.
  - M(gb10.fleet.resolve_model_roles) does the same, and more. This is for playbooks that serve nothing.
  - Runs on the controller and opens no connection.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes.controller
options:
  boxes:
    description:
      - The inventory names of the boxes to check.
      - The box that the task runs for, if left out.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Check the variables of all boxes
  gb10.fleet.resolve_settings:
    boxes: "{{ ansible_play_hosts_all }}"
  run_once: true
"""

RETURN = r"""
msg:
  description: That all is well; on failure, one sentence per fault with the file, the line, the key and the remedy.
  returned: always
  type: str
"""
