#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_instance_info
short_description: Read what a box serves now, and what it would need to serve more
version_added: 0.1.0
description:
  - Reads in one go the instances that the collection has placed on the box (their systemd units, containers and
    settings), Docker Engine, the GPU's CDI devices, and which of some images and files are there.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._attributes.info_module
options:
  instances:
    description: Names of instances to look at beside those that are placed already.
    type: list
    elements: str
    default: []
  images:
    description: Images, by digest, whose presence on the box is of interest.
    type: list
    elements: str
    default: []
  sysroot:
    description: The folder that stands for the root of the file system where files are read.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Read what the box serves
  gb10.fleet.vllm_instance_info:
    instances: [coordinator]
  register: observed

- name: Show the names of what is placed
  ansible.builtin.debug:
    msg: "{{ observed.placed }}"
"""

RETURN = r"""
placed:
  description: The names of the instances that the collection has placed on the box.
  returned: success
  type: list
  elements: str
  sample: [coordinator]
foreign:
  description: Those of O(instances) whose unit file exists, but was written by somebody else.
  returned: success
  type: list
  elements: str
  sample: []
instances:
  description:
    - By name, the state of every instance in RV(placed) and O(instances).
    - C(up) is whether its engine runs, or systemd is about to start it (its boot, its gate, the pause between two
      tries). A rank of a serving group that waits for the others without an engine is not up.
    - C(due) is whether it is down and enabled, so that the next boot brings it back.
  returned: success
  type: dict
  sample:
    coordinator: {up: true, due: false, active_state: active, running_spec: 6f1c, port: 8000}
images:
  description: By image of O(images), its id on the box, or an empty string where it is not there.
  returned: success
  type: dict
deployment:
  description:
    - What the box says of its deployment, see M(gb10.fleet.vllm_deployment).
    - C(serving) is the generation that serves, C(good) are those that have served, the newest first, C(last) is how the
      last switch ended, and C(under_way) is the generation that a switch leads to now, empty where there is none.
    - C(damaged) of a good generation says that it is not what it was; nothing is then known of its instances.
    - C(proven) and C(because) of an instance are what its deploy record says, or would say if that engine served again,
      and C(soak) is the verdict of its last soak, empty where it had none.
    - C(group) of an instance is the serving group that it is a rank of (C(name), C(boxes), and C(spec), which is the
      same on boxes that were deployed alike), null where it is of one box.
  returned: success
  type: dict
  sample:
    serving: 3f9c2d71a08b
    good:
      - id: 3f9c2d71a08b
        answered_at: '2026-11-29T20:14:09Z'
        damaged: false
        instances: [{name: coordinator, group: null}]
    under_way: ''
docker:
  description: Docker Engine's version, cgroup and storage drivers and CDI settings.
  returned: success
  type: dict
  sample: {version: 28.3.3, cgroup_driver: cgroupfs, cdi_devices: ['nvidia.com/gpu=all']}
gpu:
  description:
    - How a container reaches the GPU, V(cdi) by a CDI device, V(none) where the box has no NVIDIA device node.
    - V(unusable) where there is a device node but no CDI specification for it.
  returned: success
  type: str
  sample: cdi
"""

import dataclasses
import pathlib

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _converge,
    _deployment,
    _docker,
    _generation,
    _instance,
    _sysroot,
)


def main() -> None:
    """Read, and return what was read."""
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "str", "default": []},
            "images": {"type": "list", "elements": "str", "default": []},
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    if wrong := _sysroot.refusal(module.params["sysroot"]):
        module.fail_json(msg=wrong)
    sysroot = pathlib.Path(module.params["sysroot"])
    run = module.run_command
    try:
        placed = _instance.placed(sysroot)
        names = dict.fromkeys((*placed, *module.params["instances"]))
        engine = _docker.engine(run)
        module.exit_json(
            changed=False,
            placed=list(placed),
            foreign=list(_instance.foreign(module.params["instances"], sysroot)),
            instances={name: _instance.observe(run, name, sysroot).as_dict() for name in names},
            images={image: _docker.image_id(run, image) or "" for image in module.params["images"]},
            deployment=_deployment.Deployment(_converge.Box(run), _generation.Store(sysroot)).as_dict(),
            docker=dataclasses.asdict(engine),
            gpu=_docker.gpu_access(engine, sysroot),
        )
    except (_docker.DockerError, _generation.GenerationError, _instance.UnitError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
