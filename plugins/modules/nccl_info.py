#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_info
short_description: Read what NCCL used and how fast it was, and judge both
version_added: 0.1.0
description:
  - Reads the output of nccl-tests, of C(NCCL_DEBUG=INFO) and of C(ib_write_bw), alone or together.
  - The transport is judged before the bandwidth. NCCL falls back to TCP without an error, and a fast TCP is still
    wrong.
  - The bandwidth is that of the largest message. The average that nccl-tests print means nothing where small messages
    are in it, so it counts only where the output has no row.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._attributes.info_module
attributes:
  action:
    description: The action plugin of the same name brings the ladder of figures along.
    support: full
options:
  text:
    description: The output. Give this or O(path).
    type: str
  path:
    description: A file on the box that has the output.
    type: path
  topology:
    description: How the boxes are cabled; a ring is slower.
    type: str
    choices: [pair, switch, ring]
    default: pair
  ladder:
    description:
      - The figures to judge by. The shipped ones, each with its source and its date, where it is left out.
    type: dict
"""

EXAMPLES = r"""
- name: Judge a run of nccl-tests
  gb10.fleet.nccl_info:
    text: "{{ all_reduce.stdout }}"
  register: nccl

- name: Refuse a slow fabric
  ansible.builtin.assert:
    that: nccl.verdict == 'good'
    fail_msg: "{{ nccl.findings | map(attribute='message') | join('; ') }}"
"""

RETURN = r"""
verdict:
  description:
    - V(good), V(slow) (a warning), V(bad) (an error), or V(unknown) where nothing was measured and nothing is wrong.
  returned: success
  type: str
  sample: good
busbw_gbs:
  description: Bus bandwidth of the largest message in GB/s, null where none was measured.
  returned: success
  type: float
  sample: 23.9
transport:
  description: V(IB) is RDMA, V(Socket) is TCP, V(mixed) is both, V(unknown) where the output does not say.
  returned: success
  type: str
  sample: IB
hcas:
  description: The RDMA devices that are used, on any host.
  returned: success
  type: list
  elements: str
  sample: [rocep1s0f1, roceP2p1s0f1]
hosts:
  description: By host, its C(hcas), and C(oob_interface) and C(oob_address) over which the ranks find each other.
  returned: success
  type: list
  elements: dict
  sample:
    - {host: spark-1, hcas: [rocep1s0f1, roceP2p1s0f1], oob_interface: enp1s0f1np1, oob_address: 192.168.100.11}
collective:
  description: What was tested, empty where the output does not say.
  returned: success
  type: str
  sample: all_gather
nccl_version:
  description: The NCCL that was tested, empty where the output does not say.
  returned: success
  type: str
  sample: 2.28.9
rows:
  description: The lines of the test, with C(size) in bytes, C(out_gbs), C(in_gbs) and C(wrong).
  returned: success
  type: list
  elements: dict
write_tests:
  description: The runs of ib_write_bw, with C(device), C(mtu), C(gid_index) and C(average_gbps).
  returned: success
  type: list
  elements: dict
settings:
  description: The NCCL variables that the output names, as they were given.
  returned: success
  type: dict
  sample: {NCCL_IB_HCA: 'rocep1s0f1,roceP2p1s0f1'}
findings:
  description: What is wrong or worth knowing.
  returned: success
  type: list
  elements: dict
"""

import dataclasses
import pathlib

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _nccl, _nccl_verdict


def main() -> None:
    """Read, judge, and return both."""
    module = AnsibleModule(
        argument_spec={
            "text": {"type": "str"},
            "path": {"type": "path"},
            "topology": {"type": "str", "choices": ["pair", "switch", "ring"], "default": "pair"},
            "ladder": {"type": "dict"},
        },
        mutually_exclusive=[("text", "path")],
        required_one_of=[("text", "path")],
        supports_check_mode=True,
    )
    text = module.params["text"]
    if text is None:
        try:
            text = pathlib.Path(module.params["path"]).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            module.fail_json(msg=f"The output in {module.params['path']} cannot be read: {error.strerror}.")
    output = _nccl.parse(text)
    found = _nccl_verdict.findings(output, module.params["ladder"], topology=module.params["topology"])
    module.exit_json(
        changed=False,
        verdict=_nccl_verdict.verdict_of(output, found),
        busbw_gbs=output.busbw_gbs,
        transport=output.transport,
        hcas=list(output.hcas),
        hosts=[dataclasses.asdict(host) for host in output.hosts],
        collective=output.collective,
        nccl_version=output.version,
        rows=[dataclasses.asdict(row) for row in output.rows],
        write_tests=[dataclasses.asdict(test) for test in output.write_tests],
        settings=dict(output.settings),
        findings=[finding.as_dict() for finding in found],
    )


if __name__ == "__main__":
    main()
