#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_pull
short_description: Pull a container image by digest, with progress
version_added: 0.1.0
description:
  - Pulls an image by its digest into Docker Engine, in a transient systemd unit of the box. An interrupted playbook
    does not interrupt the pull, and the next run waits for the same one.
  - Nothing that runs on the box is touched. A registry that is down or a digest that does not exist fails the task.
  - Accounts of private registries are those of C(docker login) on the box.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._progress
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  image:
    description: The image, as C(name@sha256:...).
    type: str
    required: true
  program:
    description: Where the collection's program lies on the box, see M(gb10.fleet.box_program).
    type: path
    default: /usr/local/lib/gb10-fleet/fleet.pyz
"""

EXAMPLES = r"""
- name: Pull the image of the coordinator
  gb10.fleet.image_pull:
    image: vllm/vllm-openai@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
"""

RETURN = r"""
finished:
  description: Whether the image is complete.
  returned: success
  type: bool
progress:
  description: How much has arrived, in one line.
  returned: success
  type: str
  sample: 3 of 7 layers, 1.20 of 9.41 GB
"""

import re

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _docker, _instance, _job, _status


def main() -> None:
    """Begin the pull or join it, then wait for a moment."""
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "program": {"type": "path", "default": "/usr/local/lib/gb10-fleet/fleet.pyz"},
            "begin": {"type": "bool", "default": True},
            "step": {"type": "int", "default": 8},
        },
        supports_check_mode=True,
    )
    given = module.params
    image = given["image"]
    if not re.fullmatch(r"[^@\s]+@sha256:[0-9a-f]{64}", image):
        module.fail_json(msg=f"{image!r} has no digest; a tag can move, so write name@sha256:<64 hex digits>.")
    try:
        if given["begin"] and _docker.image_id(module.run_command, image):
            module.exit_json(changed=False, finished=True, progress="the image is on the box")
        if module.check_mode:
            module.exit_json(changed=True, finished=True, progress="the image would be pulled")
        job = _job.Job(
            name=_status.job_name("pull", image),
            description=f"Pull {image}",
            argv=("/usr/bin/python3", given["program"], "pull", image),
        )
        outcome = _job.wait(module.run_command, job, begin=given["begin"], step_s=given["step"])
    except (_docker.DockerError, _instance.UnitError) as error:
        module.fail_json(msg=str(error))
    if outcome.failed:
        module.fail_json(
            msg=f"{image} could not be pulled: {outcome.message}. Nothing that runs on the box was touched."
        )
    module.exit_json(changed=True, finished=outcome.finished, progress=outcome.message)


if __name__ == "__main__":
    main()
