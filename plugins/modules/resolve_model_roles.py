#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: resolve_model_roles
short_description: Turn the model roles of a box into complete instances, or say what is wrong with them
version_added: 0.1.0
description:
  - Reads the variables C(model_roles) and C(model_catalogue) of the box, lays the user's catalogue over the shipped one
    and the box's own keys over both, and returns one complete instance per entry.
  - Refuses an inventory that cannot be right (an unknown model role, a port taken twice, an image without a digest, a
    value of the wrong type, an unknown key), and reports every fault at once with the file, the line, the key and the
    remedy.
  - A box in a serving group (an inventory group with C(serving_group) in its group_vars) also gets the instance of its
    rank. A group that is not in the run as a whole is refused.
  - Where a rank is reached and what it talks over comes from the C(fabric) of its box, as far as that is known (see
    P(gb10.fleet.fabric_plan#filter)). C(serving_address), C(serving_env) and C(serving_devices) override it.
  - Runs on the controller and opens no connection.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes.controller
options:
  boxes:
    description:
      - The inventory names of the boxes to resolve.
      - The box that the task runs for, if left out.
    type: list
    elements: str
  show:
    description: Whether to show in one line per box what it is to serve.
    type: bool
    default: false
  fabrics:
    description:
      - By box, what M(gb10.fleet.fabric_info) returned.
      - With it, a rank whose interfaces are not known is refused, except in check mode where a box could not be read.
      - Without it, a rank has what follows from the inventory alone, which is its address except in a ring.
    type: dict
"""

EXAMPLES = r"""
- name: Resolve the model roles of this box
  gb10.fleet.resolve_model_roles:
  register: resolved

- name: Show what this box will serve
  ansible.builtin.debug:
    msg: "{{ resolved.instances | map(attribute='name') }}"
"""

RETURN = r"""
instances:
  description:
    - One mapping per entry of C(model_roles) of the box that the task runs for.
    - Every key of the model role is in it; C(name), C(model_role), C(port) and C(served_model_name) are filled in.
  returned: success
  type: list
  elements: dict
  sample: [{name: coordinator, model_role: coordinator, port: 8000, vllm: 0.32.0}]
boxes:
  description: The same for every box of O(boxes), by its inventory name.
  returned: success
  type: dict
order:
  description: O(boxes) in the order in which they are switched, the boxes of a serving group next to each other.
  returned: success
  type: list
  elements: str
  sample: [spark-1, spark-2, spark-3]
batches:
  description:
    - How many of RV(order) are switched at a time.
    - The sizes of the variable C(fleet_batches) count, V([1, '100%']) where it is not set, except that no serving group
      is split.
  returned: success
  type: list
  elements: int
  sample: [2, 1]
msg:
  description: What each box serves; on failure, one sentence per fault with the file, the line, the key and the remedy.
  returned: always
  type: raw
"""
