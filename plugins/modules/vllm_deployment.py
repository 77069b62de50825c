#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_deployment
short_description: Switch what a box serves as one transaction, and go back where the proof fails
version_added: 0.1.0
description:
  - Keeps all that a box has to serve (units, settings, references to secrets) as a generation, complete before it
    counts, and has C(gb10-fleet-switch.service) on the box take it there. What is not named is stopped and removed,
    what is named is started and proven, and only then the generation counts as good.
  - The proof is a set of completions that were read, and the boot log. Another backend than the model role expects, or
    a KV pool more than 2 % off the plan, is a failed deploy.
  - Where anything fails, the generation that served before is put back, started and proven again, and the task fails
    naming both. A box on which nothing good served before ends without the new instances.
  - An interrupted playbook does not interrupt the switch. Power loss does not either, as the box goes on at its next
    boot; it goes back then, if it went down while the new engine was starting.
  - Instances that the switch does not change run on untouched.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._progress
attributes:
  action:
    description: The action plugin of the same name renders the templates on the controller and shows the progress.
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
      - V(serving) serves exactly O(instances).
      - V(previous) goes back to the good generation before the one that serves, or to O(generation).
      - V(undone) goes back to what served before the last switch, and to an empty box where nothing did.
      - V(settled) waits for a switch that an earlier run has begun, however it ends, and changes nothing else.
      - V(untouched) asks the instances that a switch to O(instances) would not touch, and fails where one of them fails
        its proof. It changes nothing, and asks nobody where the box serves O(instances) already.
    type: str
    choices: [serving, previous, undone, settled, untouched]
    default: serving
  instances:
    description:
      - The instances, as P(gb10.fleet.vllm_units#filter) returns them. Used by V(serving) and V(untouched).
      - The secrets that they name have to lie on the box.
    type: list
    elements: dict
    default: []
  files:
    description: The files that make them, as P(gb10.fleet.unit_files#filter) returns them. Used by V(serving) and
        V(untouched).
    type: list
    elements: dict
    default: []
    suboptions:
      dest:
        description: Where the file goes.
        type: path
        required: true
      content:
        description: The text.
        type: str
      template:
        description: The name of a template in C(templates) of the role, in place of O(files[].content).
        type: str
      vars:
        description: Variables for O(files[].template), beside those of the task.
        type: dict
        default: {}
      mode:
        description: The permissions, in octal.
        type: str
        default: "0644"
  generation:
    description:
      - The good generation to go back to. Used by V(previous).
      - One of which a soak has failed has to be named.
    type: str
    default: ""
  keep:
    description: How many good generations are kept, the one that serves among them.
    type: int
    default: 3
  sysroot:
    description: The folder that stands for the root of the file system where files are read and written.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Serve what the inventory names
  gb10.fleet.vllm_deployment:
    instances: "{{ units }}"
    files: "{{ units | gb10.fleet.unit_files('/etc/gb10-fleet', 'units') }}"

- name: Go back to what served before
  gb10.fleet.vllm_deployment:
    state: previous
"""

RETURN = r"""
finished:
  description: Whether the switch has ended.
  returned: success
  type: bool
progress:
  description: What the switch is doing, or how it ended, in one line.
  returned: always
  type: str
  sample: 'vllm-coordinator: 62 s of 1800 s: starting: nothing listens yet'
generation:
  description: The generation that was asked for.
  returned: always
  type: str
  sample: 3f9c2d71a08b
last:
  description: How the switch ended, null where none was needed.
  returned: always
  type: dict
  contains:
    to:
      description: The generation that it led to.
      type: str
    before:
      description: The generation that served before, empty where there was none.
      type: str
    outcome:
      description:
        - V(served), V(restored) where the one before serves again, V(down) where that failed or there was none.
      type: str
    reason:
      description: Why it failed, empty where it did not.
      type: str
    message:
      description: How it ended, in one line.
      type: str
    restored_s:
      description: Seconds from the failure until the one before was proven again; 0 where the box does not know.
      type: float
    at:
      description: When it ended, in seconds since the epoch.
      type: float
    specs:
      description: The fingerprints of the instances of C(to).
      type: dict
"""

import dataclasses
import pathlib
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _converge,
    _deployment,
    _docker,
    _generation,
    _instance,
    _proof,
    _status,
)

STATES = ["serving", "previous", "undone", "settled", "untouched"]
FILE = {
    "dest": {"type": "path", "required": True},
    "content": {"type": "str"},
    "template": {"type": "str"},
    "vars": {"type": "dict", "default": {}},
    "mode": {"type": "str", "default": "0644"},
}


def generation(params: dict) -> _generation.Generation:
    """Return what the task asks for."""
    files = [_generation.File(one["dest"], one["content"] or "", int(one["mode"], 8)) for one in params["files"]]
    return _generation.Generation(
        tuple(_generation.Member.from_plain(one) for one in params["instances"]), tuple(files)
    )


def main() -> None:
    """Begin the switch or join it, then wait for a moment."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": STATES, "default": "serving"},
            "instances": {"type": "list", "elements": "dict", "default": []},
            "files": {"type": "list", "elements": "dict", "default": [], "options": FILE},
            "generation": {"type": "str", "default": ""},
            "keep": {"type": "int", "default": 3},
            "sysroot": {"type": "path", "default": "/"},
            "begin": {"type": "bool", "default": True},
            "step": {"type": "int", "default": 8},
        },
        supports_check_mode=True,
    )
    given = module.params
    pace = {"begin": given["begin"], "step_s": given["step"]}
    root = pathlib.Path(given["sysroot"])
    work = _deployment.Deployment(
        box=_converge.Box(
            run=module.run_command,
            check_mode=module.check_mode,
            sysroot=root,
            status_folder=root / _status.FOLDER.relative_to("/"),
        ),
        store=_generation.Store(root),
        keep=given["keep"],
    )
    try:
        if given["state"] == "serving":
            outcome = work.serve(generation(given), prove=_proof.prove, **pace)
        elif given["state"] == "untouched":
            outcome = work.ask_untouched(generation(given), _proof.prove)
        elif given["state"] == "settled":
            outcome = work.settle(**pace)
        else:
            outcome = work.go_back(given["generation"], undo=given["state"] == "undone", **pace)
    except (
        _deployment.DeploymentError,
        _docker.DockerError,
        _generation.GenerationError,
        _instance.UnitError,
    ) as error:
        module.fail_json(msg=str(error))
    result: dict[str, t.Any] = {
        "changed": outcome.changed,
        "finished": outcome.finished,
        "progress": outcome.message,
        "generation": outcome.generation,
        "last": dataclasses.asdict(outcome.last) if outcome.last else None,
        "diff": outcome.diff,
    }
    if outcome.failed:
        module.fail_json(msg=outcome.message, **result)
    module.exit_json(msg=outcome.message, **result)


if __name__ == "__main__":
    main()
