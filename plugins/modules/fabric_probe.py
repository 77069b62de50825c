#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_probe
short_description: Prove that every twin carries full frames, and that all of them do so at once
version_added: 0.1.0
description:
  - Sends frames of the full MTU over every twin, bound to its interface and not to be split, and says what is wrong
    where they do not come back. Cables that are crossed are told from ends that are down.
  - With O(load_seconds), TCP streams go over all twins at once, to a sink that O(state=sink) has started on the other
    box. What Python's TCP reaches is no measure of the hardware, so the figures are returned and only a twin that
    carries nothing, or much less than its twin, is a finding. M(gb10.fleet.nccl_info) judges RDMA.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
attributes:
  check_mode:
    support: full
    details: Nothing is sent in check mode.
  diff_mode:
    support: N/A
    details: Nothing on the box is changed.
  idempotent:
    support: N/A
    details: Nothing on the box is changed.
options:
  state:
    description:
      - V(probed) sends.
      - V(sink) has the box take what others send, V(no_sink) ends that. A sink ends by itself after ten minutes.
    type: str
    choices: [probed, sink, no_sink]
    default: probed
  ways:
    description: What has to answer, as C(pings) of a box in a plan of P(gb10.fleet.fabric_plan#filter).
    type: list
    elements: dict
    required: true
  mtu:
    description: The MTU of all twins.
    type: int
    default: 9000
  load_seconds:
    description:
      - For how long all twins are loaded at once. Without it there is no load, nor where a twin does not carry full
        frames.
    type: int
    default: 0
  program:
    description: The program that M(gb10.fleet.box_program) has put on the box.
    type: path
    default: /usr/local/lib/gb10-fleet/fleet.pyz
"""

EXAMPLES = r"""
- name: Prove the twins of the box
  gb10.fleet.fabric_probe:
    ways: "{{ plan.boxes[inventory_hostname].pings }}"
    mtu: "{{ plan.mtu }}"
  register: proof
"""

RETURN = r"""
verdict:
  description: V(proven), V(degraded) with a warning, V(failed) with an error, V(unknown) where nothing was sent.
  returned: success
  type: str
  sample: proven
answers:
  description:
    - For each way C(interface), C(target), C(peer), C(sent), C(received), C(rtt_ms), C(small_received) (where full
      frames did not come back) and C(answered_by), the hardware address at the other end.
  returned: success
  type: list
  elements: dict
carried:
  description: For each way C(interface), C(target), C(peer), C(gbps) and C(error), while all were loaded.
  returned: success
  type: list
  elements: dict
  sample:
    - {interface: enp1s0f0np0, target: 192.168.100.12, peer: spark-2, gbps: 41.2, error: ''}
findings:
  description: What is wrong or worth knowing.
  returned: success
  type: list
  elements: dict
"""

import dataclasses
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _fabric_load, _fabric_ping, _finding

_SINK_UNIT: t.Final = "gb10-fleet-fabric-sink.service"
# The sink outlives a slow run between the tasks that start and stop it, and not a run that was killed.
_SINK_MARGIN_S: t.Final = 600


def main() -> None:
    """Probe, or take what others send."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["probed", "sink", "no_sink"], "default": "probed"},
            "ways": {"type": "list", "elements": "dict", "required": True},
            "mtu": {"type": "int", "default": 9000},
            "load_seconds": {"type": "int", "default": 0},
            "program": {"type": "path", "default": "/usr/local/lib/gb10-fleet/fleet.pyz"},
        },
        supports_check_mode=True,
    )
    ways = [_way(module, given) for given in module.params["ways"]]
    if module.check_mode or not ways:
        module.exit_json(changed=False, verdict="unknown", answers=[], carried=[], findings=[])
    if module.params["state"] != "probed":
        _sink(module, ways)
    mtu, seconds = module.params["mtu"], module.params["load_seconds"]
    answers = [_fabric_ping.ping(way, mtu, module.run_command, _fabric_ping.who_has) for way in ways]
    found = [*_fabric_ping.findings(answers, mtu)]
    carried: tuple[_fabric_load.Carried, ...] = ()
    # A warning is no reason to prove less; over a twin that is dead, there is nothing to load.
    if seconds and _finding.worst(found) != "error":
        paths = [_fabric_load.Path(way.interface, way.source, way.target, way.peer) for way in ways]
        carried = _fabric_load.load(paths, seconds)
        found += _fabric_load.findings(carried)
    module.exit_json(
        changed=False,
        verdict=_verdict(ways, found),
        answers=[_plain(answer.way) | _of(answer) for answer in answers],
        carried=[_plain(one.path) | {"gbps": one.gbps, "error": one.error} for one in carried],
        findings=[finding.as_dict() for finding in found],
    )


def _way(module: AnsibleModule, given: dict[str, t.Any]) -> _fabric_ping.Way:
    known = {field.name for field in dataclasses.fields(_fabric_ping.Way)}
    try:
        return _fabric_ping.Way(**{key: str(value) for key, value in given.items() if key in known})
    except TypeError:
        module.fail_json(msg=f"fabric_probe: {given} is no way: it needs interface, source, target and peer.")
        raise


def _sink(module: AnsibleModule, ways: list[_fabric_ping.Way]) -> None:
    """Take what comes to the addresses of this box, in a transient unit that ends by itself."""
    seconds = module.params["load_seconds"] + _SINK_MARGIN_S
    module.run_command(["systemctl", "stop", _SINK_UNIT])
    if module.params["state"] == "no_sink":
        module.exit_json(changed=False, verdict="unknown", answers=[], carried=[], findings=[])
    addresses = sorted({way.source for way in ways})
    program = ["/usr/bin/python3", module.params["program"], "fabric", "sink", str(seconds), *addresses]
    unit = [f"--unit={_SINK_UNIT}", "--collect", "--quiet", f"--property=RuntimeMaxSec={seconds + 10}"]
    code, _out, err = module.run_command(["systemd-run", *unit, *program])
    if code != 0:
        module.fail_json(msg=f"The sink for the load could not be started: {err.strip()}.")
    module.exit_json(changed=False, verdict="unknown", answers=[], carried=[], findings=[])


def _verdict(ways: list[_fabric_ping.Way], found: list[_finding.Finding]) -> str:
    if not ways:
        return "unknown"
    return {"error": "failed", "warning": "degraded"}.get(_finding.worst(found) or "", "proven")


def _plain(way: _fabric_ping.Way | _fabric_load.Path) -> dict[str, t.Any]:
    return {"interface": way.interface, "target": way.target, "peer": way.peer}


def _of(answer: _fabric_ping.Answer) -> dict[str, t.Any]:
    names = ("sent", "received", "rtt_ms", "small_received", "answered_by")
    return {name: getattr(answer, name) for name in names}


if __name__ == "__main__":
    main()
