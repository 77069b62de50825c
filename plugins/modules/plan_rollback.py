#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: plan_rollback
short_description: Decide where boxes go back to, and in which batches, or say why they may not
version_added: 0.1.0
description:
  - Takes what boxes say of their own generations. The inventory does not count, as it may name something else by now.
  - A box goes back to the good generation before the one that serves, or to the one of O(generations) that it has.
  - The ranks of a serving group go back together. A box that has none of O(generations) follows the ranks of its group
    that have, to its newest generation with the same deployment of the group.
  - Refuses where a box has nowhere to go back to, where what it would go back to is damaged, where a soak of it has
    failed and O(generations) does not name it, where a rank of a group that serves, or that would serve, is not
    among the boxes, and where the ranks of a group would not go back to the same deployment of it. All of that is said
    at once.
  - Runs on the controller and opens no connection.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes.controller
options:
  observed:
    description: By box, what M(gb10.fleet.vllm_instance_info) returned.
    type: dict
    required: true
  generations:
    description: The good generations to go back to, each of which may be of another box.
    type: list
    elements: str
    default: []
  batches:
    description: How many boxes are switched at a time, as the variable C(fleet_batches) says it.
    type: raw
    default: [1, 100%]
"""

EXAMPLES = r"""
- name: Plan the way back
  gb10.fleet.plan_rollback:
    observed: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'observed'))) }}"
  run_once: true
  register: way_back
"""

RETURN = r"""
boxes:
  description:
    - By box, C(generation) that it goes back to, when it was last switched to and has answered (C(answered_at)), its
      C(instances), its C(engines) in words, those that are C(unproven), what is C(serving) now and its
      C(serving_engines), and C(ranks), the other boxes that go at the same time.
  returned: success
  type: dict
  sample:
    spark-1:
      serving: 3f9c2d71a08b
      serving_engines: ['vllm-writer (model role gpt-oss-120b, image sha256:77ac01d2be90)']
      generation: 9b1d04c7e552
      answered_at: '2026-11-29T20:14:09Z'
      instances: [writer]
      engines: ['vllm-writer (model role qwen3-32b, image sha256:77ac01d2be90)']
      unproven: []
      ranks: [spark-2]
order:
  description: The boxes in the order in which they are switched, those of a serving group next to each other.
  returned: success
  type: list
  elements: str
  sample: [spark-1, spark-2, spark-3]
batches:
  description: How many of RV(order) are switched at a time. No serving group is split.
  returned: success
  type: list
  elements: int
  sample: [2, 1]
msg:
  description: On failure, one sentence per fault, each with the boxes and what to type.
  returned: failure
  type: str
"""
