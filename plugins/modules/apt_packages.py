#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_packages
short_description: Install packages that take nothing else away
version_added: 0.1.0
description:
  - Installs packages with apt in one transaction. It is simulated first, and refused where it would remove a package,
    since on a DGX the packages of the platform hang together.
  - Needs no Python package on the box, unlike M(ansible.builtin.apt). Waits for whoever else changes packages.
  - The work is done in a transient systemd unit of the box, so that an interrupted playbook leaves no half of it.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  names:
    description: The packages.
    type: list
    elements: str
    required: true
  upgrade:
    description: Whether to bring packages that are installed to the newest version.
    type: bool
    default: false
  lock_timeout:
    description: How long to wait for another program that changes packages, in seconds.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: Install the container toolkit
  gb10.fleet.apt_packages:
    names: [nvidia-container-toolkit]
"""

RETURN = r"""
actions:
  description: What was done, or would be in check mode, one line each.
  returned: success
  type: list
  elements: str
  sample: [install nvidia-container-toolkit 1.19.0-1]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _apt, _command, _driver_transaction


def main() -> None:
    """Install what is missing."""
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "required": True},
            "upgrade": {"type": "bool", "default": False},
            "lock_timeout": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    try:
        install(module)
    except (_apt.AptError, _driver_transaction.RefusedError) as error:
        module.fail_json(msg=f"{error} Nothing was changed.")


def install(module: AnsibleModule) -> None:
    """Simulate, judge, and install."""
    names = module.params["names"]
    found = _apt.packages(_command.run)
    missing = [name for name in names if name not in found or not found[name].installed]
    wanted = names if module.params["upgrade"] else missing
    if not wanted:
        module.exit_json(changed=False, actions=[])
    if not module.check_mode:
        _driver_transaction.wait_for_lock(module.params["lock_timeout"], lambda _line: None)
        # What cannot be refreshed is found out below: an old list may do.
        _command.run([*_apt.ENVIRONMENT, "apt-get", "--quiet=2", "update"])
    code, out, err = _command.run(_apt.install_argv(wanted, "--simulate"))
    if code != 0:
        module.fail_json(
            msg=f"apt cannot install {', '.join(wanted)}: {_apt.complaint(out, err)}. Nothing was changed."
        )
    actions = _apt.parse_simulation(out)
    lost = [action.name for action in actions if action.kind == "remove"]
    if lost:
        module.fail_json(
            msg=f"To install {', '.join(wanted)}, apt would remove {', '.join(lost)}. Remove them yourself if they may "
            "go, or name other packages. Nothing was changed."
        )
    lines = [action.line() for action in actions]
    if actions and not module.check_mode:
        unit = ["systemd-run", "--wait", "--pipe", "--collect", "--quiet", "--description=Install packages"]
        argv = _apt.install_argv(wanted, lock_timeout_s=module.params["lock_timeout"])
        code, out, err = _command.run([*unit, *argv])
        if code != 0:
            said = _apt.complaint(out, err)
            module.fail_json(
                msg=f"apt did not come to an end with {', '.join(wanted)}: {said}. See `sudo dpkg --audit`."
            )
    shown = {"before": "", "after": "".join(f"{line}\n" for line in lines)}
    module.exit_json(changed=bool(actions), actions=lines, diff=shown)


if __name__ == "__main__":
    main()
