#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_netplan
short_description: Put a netplan file for the fabric in place, with a way back
version_added: 0.1.0
description:
  - Tries the file in a copy of the box's netplan first, and refuses one that would change anything but the twins.
  - Then applies it in a transient unit of the box, which puts back what there was unless O(state=confirmed) reaches the
    box in time. A playbook that is killed, or cut off by the change itself, leaves the box as it was, and so does a
    reboot in between.
  - What runs is compared, not only what was written. Twins that lost an address or their MTU are set up again.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
attributes:
  action:
    description: The action plugin of the same name opens the connections that a confirmation needs.
    support: full
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) begins to apply and returns at once; RV(applying) says whether a confirmation is waited for.
      - V(applied) looks once, without changing anything. RV(applying) says that netplan is still at it.
      - V(confirmed) gives the confirmation. It has to begin after netplan was applied, or it would prove nothing, and
        fails where it does not. It fails as well where the box has gone back meanwhile, and says why.
    type: str
    choices: [present, applied, confirmed]
    default: present
  content:
    description: The text of the netplan file. Needed with O(state=present).
    type: str
  twins:
    description: The interfaces that the file is about, with what they have to have afterwards.
    type: list
    elements: dict
    default: []
    suboptions:
      interface:
        description: The name of the interface.
        type: str
        required: true
      address:
        description: Its address, with the prefix.
        type: str
        required: true
      mtu:
        description: Its MTU.
        type: int
        required: true
  program:
    description: The program that M(gb10.fleet.box_program) has put on the box.
    type: path
    default: /usr/local/lib/gb10-fleet/fleet.pyz
  window:
    description: How long the box waits for the confirmation before it goes back, in seconds.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Begin to apply
  gb10.fleet.fabric_netplan:
    content: "{{ plan.boxes[inventory_hostname].netplan | to_nice_yaml }}"
    twins: [{interface: enp1s0f0np0, address: 192.168.100.11/24, mtu: 9000}]
  register: netplan

- name: Confirm that the box is still reached
  gb10.fleet.fabric_netplan:
    state: confirmed
  when: netplan.applying
"""

RETURN = r"""
applying:
  description:
    - Whether the box is at it. With O(state=present) it has to be confirmed, with O(state=applied) netplan is not done
      yet.
  returned: success
  type: bool
faults:
  description: What was not as it should be before this module ran.
  returned: with O(state=present)
  type: list
  elements: str
  sample: [enp1s0f0np0 does not have the address 192.168.100.11/24]
"""

import pathlib
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _command,
    _fabric_apply,
    _fabric_state,
    _files,
    _netplan,
    _status,
)

_CONFIRM_S: t.Final = 90.0
_POLL_S: t.Final = 0.25


def main() -> None:
    """Apply or confirm."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "applied", "confirmed"], "default": "present"},
            "content": {"type": "str"},
            "twins": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "interface": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                    "mtu": {"type": "int", "required": True},
                },
            },
            "program": {"type": "path", "default": "/usr/local/lib/gb10-fleet/fleet.pyz"},
            "window": {"type": "int", "default": 60},
        },
        required_if=[("state", "present", ("content",))],
        supports_check_mode=True,
    )
    {"present": _present, "applied": _applied, "confirmed": _confirm}[module.params["state"]](module)


def _present(module: AnsibleModule) -> None:
    places = _fabric_apply.Places()
    text, window = module.params["content"], module.params["window"]
    wanted = _files.Wanted(places.netplan, text, 0o600)
    wishes = _fabric_state.wishes(module.params["twins"])
    faults = _fabric_state.faults(wishes, module.run_command)
    result: dict[str, t.Any] = {"faults": [str(fault) for fault in faults], "applying": False}
    differs = _files.differs(wanted)
    # What waits for a cable is not cured by applying the same again.
    if not differs and all(fault.waits for fault in faults) and not places.before.exists():
        module.exit_json(changed=False, **result)
    try:
        names = [wish.interface for wish in wishes]
        _netplan.trial(module.run_command, places.netplan, text, names, pathlib.Path("/"))
    except _netplan.NetplanError as error:
        module.fail_json(msg=f"{error}.")
    if differs:
        result["diff"] = [_files.difference(wanted)]
    if not module.check_mode:
        _begin(module, places, text, window)
        result["applying"] = True
    module.exit_json(changed=True, **result)


def _begin(module: AnsibleModule, places: _fabric_apply.Places, text: str, window: int) -> None:
    """Start the unit that applies, after an attempt that is still waiting has gone back."""
    module.run_command(["systemctl", "stop", _fabric_apply.UNIT])
    module.run_command(["systemctl", "reset-failed", _fabric_apply.UNIT])
    _status.StatusFile(_fabric_apply.JOB).forget()
    places.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _files.write(_files.Wanted(places.wanted, text, 0o600))
    program = ["/usr/bin/python3", module.params["program"], "fabric"]
    argv = [
        "systemd-run",
        f"--unit={_fabric_apply.UNIT}",
        "--collect",
        "--quiet",
        "--description=Apply the netplan file of the fabric, with a way back",
        # However the program ends: what nobody has confirmed is taken back.
        f"--property=ExecStopPost={' '.join([*program, 'return'])}",
        *program,
        "apply",
        str(window),
    ]
    code, _out, err = module.run_command(argv)
    if code != 0:
        module.fail_json(msg=f"The change of the fabric could not be started, and nothing was changed: {err.strip()}.")


def _applied(module: AnsibleModule) -> None:
    """Say whether the program is still at it."""
    said = _status.StatusFile(_fabric_apply.JOB).read()
    done = said is not None and (said.failed or said.stage in {_fabric_apply.APPLIED, _status.DONE})
    code, _out, _err = module.run_command(["systemctl", "is-active", _fabric_apply.UNIT])
    module.exit_json(changed=False, applying=not done and code == 0)


def _confirm(module: AnsibleModule) -> None:
    """Give the word, and wait until the program has heard it."""
    places = _fabric_apply.Places()
    status = _status.StatusFile(_fabric_apply.JOB)
    if module.check_mode:
        module.exit_json(changed=False, applying=places.before.exists())
    # This very process may have been started over a connection that netplan is about to cut. Only one that comes after
    # it proves anything.
    began = status.read()
    if began is None or (not began.failed and began.stage != _fabric_apply.APPLIED):
        module.fail_json(
            msg="There is nothing to confirm: netplan was not applied yet; wait for it with state: applied."
        )
    deadline = time.monotonic() + _CONFIRM_S
    while time.monotonic() < deadline:
        said = status.read()
        if said and said.failed:
            module.fail_json(
                msg=f"The fabric was not set up: {said.message}. See `journalctl -u {_fabric_apply.UNIT}`."
            )
        if said and said.stage == _status.DONE:
            module.exit_json(changed=True, applying=False)
        if said and said.stage == _fabric_apply.APPLIED and not places.confirmed.exists():
            places.confirmed.touch(mode=0o600)
        time.sleep(_POLL_S)
    _code, state, _err = _command.run(["systemctl", "is-active", _fabric_apply.UNIT])
    module.fail_json(msg=f"{_fabric_apply.UNIT} ({state.strip()}) did not come to an end within {_CONFIRM_S:g} s.")


if __name__ == "__main__":
    main()
