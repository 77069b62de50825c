#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: plan_boxes
short_description: Plan the memory of boxes with what is known of them, without a connection
version_added: 0.1.0
description:
  - Plans each box with P(gb10.fleet.box_plan#filter), the same plan that C(site.yml) uses, and shows it as a bar, a
    table, the command lines and the findings.
  - The memory of a box is the variable C(box_memory) (what M(gb10.fleet.memory_info) returns), or what the file
    C(NAME.json) in O(facts) says under C(memory). What that file says under C(instances) (what
    M(gb10.fleet.vllm_instance_info) returned of them when the memory was read) gives its memory back.
  - What the checkpoints are is the variable C(box_checkpoints) (what M(gb10.fleet.checkpoint_info) returns, by the name
    of the instance), what the same file says under C(checkpoints), or what lies in O(checkpoints).
  - Fails where a plan is refused or an inventory is wrong, with one sentence for each box.
  - Runs on the controller and opens no connection.
author:
  - gb10.fleet maintainers (!UNKNOWN)
attributes:
  action:
    description: Runs on the controller.
    support: full
  check_mode:
    description: Can run in check mode and return the same; the file is not written.
    support: full
  diff_mode:
    description: Returns what changed in diff mode.
    support: none
options:
  boxes:
    description: The inventory names of the boxes to plan.
    type: list
    elements: str
    required: true
  facts:
    description: A folder on the controller with a JSON file for each box that was observed.
    type: path
  checkpoints:
    description:
      - A folder on the controller with checkpoints, as C(OWNER/NAME) or in the layout of Hugging Face's cache.
      - Their JSON files are enough.
    type: path
  dest:
    description: Where to write the plans as JSON on the controller.
    type: path
  show:
    description: Whether to show the plans.
    type: bool
    default: true
  only_missing:
    description: Whether to plan nothing and only return the boxes whose memory is not known.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Plan the fleet with what is known of it
  gb10.fleet.plan_boxes:
    boxes: "{{ ansible_play_hosts_all }}"
    facts: facts
    dest: facts/plan.json
  run_once: true
"""

RETURN = r"""
plans:
  description:
    - The plan of each box, as P(gb10.fleet.box_plan#filter) returns it, with C(command) for each instance.
    - Where one is refused, they stand on the screen only, for Ansible would print them a second time.
  returned: when all plans fit
  type: dict
refused:
  description: The boxes whose plan has an error.
  returned: when plans were made
  type: list
  elements: str
missing:
  description: The boxes whose memory is not known.
  returned: always
  type: list
  elements: str
"""
