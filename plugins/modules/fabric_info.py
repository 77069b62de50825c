#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_info
short_description: Read the ports of the ConnectX-7, their twins, links, addresses and GID tables
version_added: 0.1.0
description:
  - A QSFP cable arrives in a DGX Spark as two network interfaces, its twins. This module pairs them by their PCI
    addresses and by what the hardware calls its port, never by their names or their order, and says what is wrong with
    them.
  - A port that has no cable is pending, and no fault. Without any cable the whole chip may be off the PCI bus.
  - Files are read below O(sysroot); the kernel is asked for addresses and for its log.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._attributes.info_module
options:
  sysroot:
    description: The folder that stands for the root of the file system.
    type: path
    default: /
  addresses:
    description: What C(ip -json address) printed. Where it is left out, the box is asked.
    type: str
  kernel_log:
    description: The kernel's log since the box was started. Where it is left out, the journal is asked.
    type: str
  own_netplan:
    description: The netplan file that the collection writes; every other one that names a twin is somebody else's.
    type: path
    default: /etc/netplan/60-gb10-fleet-fabric.yaml
  texts:
    description:
      - What tools of another box printed, in any order, in place of this box. Known are C(ibdev2netdev),
        C(ibv_devices), C(rdma link), C(show_gids), C(ip -br link), and rate and state of each device from sysfs in one
        line.
      - Twins are paired here by the place on the PCI bus that a predictable name spells out, because the tools say no
        more.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Read the fabric of the box
  gb10.fleet.fabric_info:
  register: fabric

- name: Show the RDMA devices of every port with a cable
  ansible.builtin.debug:
    msg: "{{ item.twins | map(attribute='rdma') | join(',') }}"
  loop: "{{ fabric.ports | selectattr('cabled') }}"

- name: Judge what somebody has sent
  gb10.fleet.fabric_info:
    texts:
      - "{{ lookup('ansible.builtin.file', 'ibdev2netdev.txt') }}"
      - "{{ lookup('ansible.builtin.file', 'show_gids.txt') }}"
  delegate_to: localhost
"""

RETURN = r"""
verdict:
  description:
    - V(ready) where every port with a cable is as it should be, V(degraded) with a warning, V(faulty) with an error.
    - V(pending) without a cable, V(unknown) where the box does not say.
  returned: success
  type: str
  sample: ready
ports:
  description:
    - The ports, by cage. C(state) is V(up), V(half) (one twin), V(down) or V(unknown); C(cabled) says whether a cable
      leads to something, and C(off) that both twins are switched off, so that nobody can tell.
    - Each of the two twins has C(interface), C(pci), C(phys_port), C(rdma), C(rdma_state), C(physical_state),
      C(rate_gbps), C(operstate), C(enabled) (switched on), C(carrier), C(up), C(mtu), C(mac), C(node_guid),
      C(firmware), C(board), C(pcie), C(addresses), C(gids), C(master), C(virtual) and C(netplan_files), null or empty
      where it is not known.
  returned: success
  type: list
  elements: dict
  sample:
    - name: p0
      cage: 0
      state: up
      cabled: true
      paired_by: pci
      twins:
        - {interface: enp1s0f0np0, pci: '0000:01:00.0', rdma: rocep1s0f0, rdma_state: ACTIVE, rate_gbps: 200.0}
        - {interface: enP2p1s0f0np0, pci: '0002:01:00.0', rdma: roceP2p1s0f0, rdma_state: ACTIVE, rate_gbps: 200.0}
single:
  description: Interfaces of the chip that have no twin.
  returned: success
  type: list
  elements: dict
virtual:
  description: Virtual functions of the chip. They are no twins.
  returned: success
  type: list
  elements: dict
others:
  description: The interfaces that are not the chip's, with C(addresses), C(operstate), C(mtu), C(mac), C(master),
    C(wireless) and C(default_route).
  returned: success
  type: list
  elements: dict
management:
  description:
    - How the box is reached. C(interfaces) has that of this connection and those with a default route, twins as well,
      C(session) that of this connection alone, C(client) the address of the other end of an SSH connection.
  returned: success
  type: dict
  sample: {interfaces: [enP7s7], client: 192.0.2.1, wireless: false, session: [enP7s7]}
hotplug:
  description: Whether the box takes ports without a cable off the bus; null where it does not say.
  returned: success
  type: bool
infiniband_devices:
  description: What is in C(/dev/infiniband).
  returned: success
  type: list
  elements: str
  sample: [rdma_cm, uverbs0, uverbs1]
memlock:
  description: How much memory a login may lock, as the files of pam_limits say; empty where none does.
  returned: success
  type: dict
  sample: {soft: unlimited, hard: unlimited}
findings:
  description: What is wrong or worth knowing.
  returned: success
  type: list
  elements: dict
"""

import dataclasses
import os
import pathlib

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _fabric_findings, _fabric_sysfs, _fabric_texts, _sysroot


def main() -> None:
    """Read, and return what was read."""
    module = AnsibleModule(
        argument_spec={
            "sysroot": {"type": "path", "default": "/"},
            "addresses": {"type": "str"},
            "kernel_log": {"type": "str"},
            "own_netplan": {"type": "path", "default": "/etc/netplan/60-gb10-fleet-fabric.yaml"},
            "texts": {"type": "list", "elements": "str"},
        },
        supports_check_mode=True,
    )
    given = module.params
    if given["texts"] is None and (wrong := _sysroot.refusal(given["sysroot"])):
        module.fail_json(msg=wrong)
    if given["texts"] is not None:
        fabric = _fabric_texts.fabric_of(given["texts"])
    else:
        try:
            addresses = _fabric_texts.addresses_of(_asked(module, "addresses", ["ip", "-json", "address", "show"]))
        except ValueError as error:
            module.fail_json(msg=f"The addresses of the box cannot be read: {error}.")
        kernel_log = ["journalctl", "--dmesg", "--boot", "--output=cat", "--no-pager", "--quiet"]
        fabric = _fabric_sysfs.read(
            pathlib.Path(given["sysroot"]),
            addresses,
            kernel_log=_asked(module, "kernel_log", kernel_log, needed=False),
            pid=os.getpid(),
            own_netplan=given["own_netplan"],
        )
    found = _fabric_findings.findings(fabric)
    module.exit_json(
        changed=False,
        verdict=_fabric_findings.verdict_of(fabric, found),
        ports=[port.as_dict() for port in fabric.ports],
        single=[twin.as_dict() for twin in fabric.single],
        virtual=[twin.as_dict() for twin in fabric.virtual],
        others=[other.as_dict() for other in fabric.others],
        management=dataclasses.asdict(fabric.management),
        hotplug=fabric.hotplug,
        infiniband_devices=list(fabric.infiniband_devices),
        memlock=dataclasses.asdict(fabric.memlock),
        findings=[finding.as_dict() for finding in found],
    )


def _asked(module: AnsibleModule, option: str, argv: list[str], *, needed: bool = True) -> str:
    """Return an option, or what a command prints in its place."""
    if module.params[option] is not None:
        return str(module.params[option])
    code, out, err = module.run_command(argv)
    if code != 0 and needed:
        module.fail_json(msg=f"`{' '.join(argv)}` failed: {err.strip()}. fabric_info needs iproute2 on the box.")
    return str(out) if code == 0 else ""


if __name__ == "__main__":
    main()
