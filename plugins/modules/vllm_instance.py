#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_instance
short_description: Start, restart, stop or remove the systemd unit of one vLLM instance
version_added: 0.1.0
description:
  - Brings the unit C(vllm-<name>.service) into the wanted state. A unit is only active after its engine has answered a
    real completion on the box, so this takes as long as the engine takes to boot; from a playbook, what the engine
    is doing is shown meanwhile.
  - Compares O(spec) with the label of the running container rather than with the files, so a run that was interrupted
    after it wrote the files finishes the job the next time.
  - An engine whose first start fails is stopped, and the task fails with the reason.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._progress
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  name:
    description: The name of the instance.
    type: str
    required: true
  state:
    description:
      - V(started) serves exactly O(spec), restarting an engine that serves another. Without O(spec) it serves whatever
        the unit starts, be it edited by hand.
      - V(stopped) ends the engine and keeps its files.
      - V(absent) ends the engine and removes its unit and settings. Weights and caches stay.
    type: str
    choices: [started, stopped, absent]
    default: started
  spec:
    description: The fingerprint of what has to be running.
    type: str
  keep_trying:
    description:
      - For V(started) and what has served before. All tries of systemd are waited for, in place of the first one, and
        the engine is not stopped when they have failed.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Serve the coordinator
  gb10.fleet.vllm_instance:
    name: coordinator
    state: started
    spec: "{{ fingerprint }}"

- name: Serve again what was stopped for a while
  gb10.fleet.vllm_instance:
    name: coordinator
    state: started
    keep_trying: true

- name: Remove the extractor
  gb10.fleet.vllm_instance:
    name: extractor
    state: absent
"""

RETURN = r"""
finished:
  description: Whether the instance has reached O(state).
  returned: success
  type: bool
progress:
  description: What the instance is doing, in one line.
  returned: always
  type: str
  sample: 'waiting for the engine: 62 s, not listening yet'
instance:
  description: The state of the instance, as M(gb10.fleet.vllm_instance_info) returns it.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _converge, _docker, _instance, _resume


def main() -> None:
    """Bring the instance into its state, one step at a time."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["started", "stopped", "absent"], "default": "started"},
            "spec": {"type": "str"},
            "keep_trying": {"type": "bool", "default": False},
            "begin": {"type": "bool", "default": True},
            "step": {"type": "int", "default": 8},
        },
        supports_check_mode=True,
    )
    given = module.params
    box = _converge.Box(run=module.run_command, check_mode=module.check_mode)
    try:
        if given["state"] == "started":
            pace = {"begin": given["begin"], "step_s": given["step"], "keep_trying": given["keep_trying"]}
            if given["spec"]:
                outcome = _converge.started(box, given["name"], given["spec"], **pace)
            else:
                outcome = _resume.resumed(box, given["name"], **pace)
        else:
            outcome = _converge.stopped(box, given["name"], remove=given["state"] == "absent")
    except (_docker.DockerError, _instance.UnitError) as error:
        module.fail_json(msg=str(error))
    if outcome.failed:
        module.fail_json(msg=outcome.message, changed=outcome.changed, **outcome.as_dict())
    module.exit_json(
        changed=outcome.changed,
        msg=outcome.message,
        diff={"before": f"{outcome.before}\n", "after": f"{outcome.after}\n"},
        **outcome.as_dict(),
    )


if __name__ == "__main__":
    main()
