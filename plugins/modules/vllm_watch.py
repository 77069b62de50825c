#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_watch
short_description: Have a box watch its vLLM instances without Ansible, or not
version_added: 0.1.0
description:
  - Starts or stops the timers C(gb10-fleet-watch@<name>.timer) of instances, which have the box look every few minutes
    whether an engine lives, and restart it where it does not.
  - An engine's start brings its timer along, and its end takes it away, and a switch (M(gb10.fleet.vllm_deployment))
    does as much for an engine that runs on. So this changes something only where files or timers were changed by hand
    while the engines run; systemd reads the files again then.
  - A timer that somebody has masked is left alone, with a warning.
  - Engines are not touched.
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
  instances:
    description: The names of the instances.
    type: list
    elements: str
    required: true
  state:
    description:
      - V(started) has the timers of the instances run, with the period that their file says.
      - V(stopped) has none of them run.
    type: str
    choices: [started, stopped]
    default: started
"""

EXAMPLES = r"""
- name: Watch two instances
  gb10.fleet.vllm_watch:
    instances: [coordinator, extractor]

- name: Leave an instance alone for the time being
  gb10.fleet.vllm_watch:
    instances: [coordinator]
    state: stopped
"""

RETURN = r"""
timers:
  description: Whether the timer of each instance runs, by the name of the instance.
  returned: success
  type: dict
  sample: {coordinator: true}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _instance, _watch_timers


def main() -> None:
    """Bring the timers into their state."""
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "str", "required": True},
            "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
        },
        supports_check_mode=True,
    )
    wanted = module.params["state"] == "started"
    try:
        outcome = _watch_timers.converge(
            module.run_command, module.params["instances"], wanted=wanted, check_mode=module.check_mode
        )
    except _instance.UnitError as error:
        module.fail_json(msg=str(error))
    for note in outcome.notes:
        module.warn(note)
    module.exit_json(
        changed=outcome.changed,
        timers=dict(outcome.after),
        diff={"before": _watch_timers.lines(outcome.before), "after": _watch_timers.lines(outcome.after)},
    )


if __name__ == "__main__":
    main()
