# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric_plan
version_added: 0.1.0
short_description: Plan the fabric between boxes and the environment of every rank
author:
  - gb10.fleet maintainers (!UNKNOWN)
description:
  - Gives every twin of every cable an address in a subnet of its own, renders netplan for every box, and says which
    environment each rank of an engine over several boxes needs there.
  - Names of interfaces and RDMA devices are those of each box. Cages may differ from box to box.
  - The same input always gives the same plan. No host is contacted.
  - What is wrong with the inventory alone is an error that names the file, the line and the remedy. What speaks against
    the plan once the boxes were looked at is a finding, and the verdict is V(refused).
positional: _input, observed, ansible_hosts, layout
options:
  _input:
    description:
      - The fabric, as C(fabric) in an inventory has it.
      - C(members) is required, the boxes in the order of their ranks. Each is a name, or a mapping with C(box) and any
        of C(cages), C(interfaces), C(addresses), C(gid_index) and C(environment).
      - C(topology) is V(pair), V(switch) or V(ring). V(pair) is the default.
      - C(subnets) has one IPv4 network for each twin of each cable, from V(192.168.100.0/24) on by default.
      - C(mtu), V(9000) by default, is that of both twins of every box.
      - C(shared_subnet) puts both twins of a cable into one subnet, which is refused without it.
      - C(first_host), V(11) by default, is the host number of the first member.
      - C(environment) has further variables for every rank.
    type: dict
    required: true
  observed:
    description: >-
      By box, what M(gb10.fleet.fabric_info) returned. Boxes that are missing are planned as far as that goes.
    type: dict
  ansible_hosts:
    description: By box, the address that Ansible connects to. One in the fabric is refused.
    type: dict
  layout:
    description:
      - How a model is to be split, with C(tensor_parallel_size), C(pipeline_parallel_size) and C(geometry), which is
        what M(gb10.fleet.checkpoint_info) returns under that name.
      - The product of both sizes has to be the number of members. Heads and layers are checked where they are known.
    type: dict
  today:
    description: The date, as V(2026-11-29), by which dated facts are called stale. None is where it is left out.
    type: str
seealso:
  - module: gb10.fleet.fabric_info
  - module: gb10.fleet.nccl_info
"""

EXAMPLES = r"""
- name: Read the fabric of every member
  gb10.fleet.fabric_info:
  register: seen

- name: Plan the fabric
  ansible.builtin.set_fact:
    plan: "{{ fabric | gb10.fleet.fabric_plan(observed, addresses, layout) }}"
  vars:
    boxes: [spark-1, spark-2]
    observed: "{{ dict(boxes | zip(boxes | map('extract', hostvars, 'seen'))) }}"
    addresses: "{{ dict(boxes | zip(boxes | map('extract', hostvars, 'ansible_host'))) }}"
    layout: {tensor_parallel_size: 2}
# plan.ranks[1].environment.NCCL_IB_HCA == "rocep1s0f1,roceP2p1s0f1"
"""

RETURN = r"""
_value:
  description:
    - C(verdict) is V(planned), V(pending) (no cable yet), V(unobserved) (interfaces are not known) or V(refused).
    - C(topology), C(mtu) and C(subnets) as they count.
    - C(head) has C(box), C(address) and C(interface) of rank 0, which every rank connects to.
    - C(ranks) has for each rank C(rank), C(box), C(address), C(interface), C(environment) (strings, none of them
      empty), C(container) with C(devices), C(ulimits) and C(capabilities), and both as C(docker_arguments) of C(docker
      run).
    - C(boxes) has for each box C(state), C(twins) (C(interface), C(rdma), C(cage), C(link), C(address)), C(netplan)
      (the whole document) and C(pings) (C(interface), C(source), C(target), C(peer), C(peer_interface), C(mac)).
    - C(findings) lists what was found; one of severity V(error) refuses the plan.
  type: dict
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gb10.fleet.plugins.plugin_utils import _fabric_sentence, _schema
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_input import FabricInputError
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_plan import plan_fabric


def fabric_plan(
    fabric: t.Any,
    observed: t.Any = None,
    ansible_hosts: t.Any = None,
    layout: t.Any = None,
    today: str = "",
) -> dict[str, t.Any]:
    """Return the plan of a fabric; see DOCUMENTATION."""
    for name, value in (("observed", observed), ("ansible_hosts", ansible_hosts), ("layout", layout)):
        if value is not None and not isinstance(value, dict):
            raise AnsibleFilterError(f"gb10.fleet.fabric_plan: {name} is {_schema.kind_of(value)}, not a mapping.")
    try:
        return plan_fabric(fabric, observed, ansible_hosts, layout, today)
    except FabricInputError as error:
        sentences = [_fabric_sentence.sentence(problem, fabric) for problem in error.problems]
        raise AnsibleFilterError("\n".join(sentences)) from None


class FilterModule:
    """The filter gb10.fleet.fabric_plan."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Return the filter under its name."""
        return {"fabric_plan": fabric_plan}
