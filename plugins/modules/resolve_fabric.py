#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: resolve_fabric
short_description: Check the fabrics of an inventory on the controller
version_added: 0.1.0
description:
  - Reads C(fabric) of every box and says everything that is wrong with it, each fault in one sentence with the file,
    the line, the key and the remedy. A box without C(fabric) has none, which is no fault.
  - No connection is opened. What only a look at the boxes can tell is left to P(gb10.fleet.fabric_plan#filter).
author:
  - gb10.fleet maintainers (!UNKNOWN)
attributes:
  action:
    description: All of it happens on the controller.
    support: full
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: N/A
options:
  boxes:
    description: The boxes whose fabrics are checked. The box of the task where it is left out.
    type: list
    elements: str
  show:
    description: Print which boxes belong together, and the addresses of their twins.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Check the fabrics of all boxes
  gb10.fleet.resolve_fabric:
    boxes: "{{ ansible_play_hosts_all }}"
  run_once: true
"""

RETURN = r"""
members:
  description: By box, the members of its fabric in the order of their ranks.
  returned: success
  type: dict
  sample: {spark-1: [spark-1, spark-2], spark-2: [spark-1, spark-2]}
addresses:
  description:
    - By box, the addresses of its twins, in the order of the cables.
    - Of one cable where the inventory does not say how many there are. A second one takes the next two subnets.
  returned: success
  type: dict
  sample: {spark-1: [192.168.100.11, 192.168.101.11], spark-2: [192.168.100.12, 192.168.101.12]}
"""
