#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: container_runtime_info
short_description: Read what a box runs containers with
version_added: 0.1.0
description:
  - Reads the versions of Docker Engine and NVIDIA's container toolkit, how Docker Engine places containers, and whether
    it runs with the configuration that it has. Works on a box that has neither.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._attributes.info_module
options:
  minimums:
    description: The oldest versions that will do.
    type: list
    elements: dict
    default: []
    suboptions:
      program:
        description: Which program.
        type: str
        choices: [docker, nvidia_container_toolkit]
        required: true
      version:
        description: The version.
        type: str
        required: true
      why:
        description: What older ones lack.
        type: str
        required: true
      source:
        description: Who says so.
        type: str
        required: true
      date:
        description: Since when, or when that was read.
        type: str
        required: true
  path:
    description: Docker Engine's configuration.
    type: path
    default: /etc/docker/daemon.json
"""

EXAMPLES = r"""
- name: Read what the box runs containers with
  gb10.fleet.container_runtime_info:
  register: runtime
"""

RETURN = r"""
docker:
  description: Docker Engine.
  returned: success
  type: dict
  contains:
    version:
      description: Its version, an empty string where it is not installed.
      type: str
      sample: 28.3.3
    answers:
      description: Whether it runs.
      type: bool
    cgroup_driver:
      description: How it places containers into control groups.
      type: str
      sample: cgroupfs
    cdi:
      description: Whether it hands out CDI devices.
      type: bool
    running:
      description: How many containers run.
      type: int
    live_restore:
      description: Whether containers outlive a restart of it.
      type: bool
toolkit:
  description: NVIDIA's container toolkit.
  returned: success
  type: dict
  contains:
    version:
      description: Its version, an empty string where it is not installed.
      type: str
      sample: 1.19.0
restart_reasons:
  description: Why Docker Engine has to be restarted to run with the configuration that it has, one sentence each.
  returned: success
  type: list
  elements: str
findings:
  description: What is missing or too old; see C(docs/findings.md).
  returned: success
  type: list
  elements: dict
"""

import pathlib

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _command, _container_runtime, _daemon_config


def main() -> None:
    """Read, and return what was read."""
    word = {"type": "str", "required": True}
    options = {"version": word, "why": word, "source": word, "date": word}
    program = {"type": "str", "required": True, "choices": ["docker", "nvidia_container_toolkit"]}
    module = AnsibleModule(
        argument_spec={
            "minimums": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"program": program, **options},
            },
            "path": {"type": "path", "default": "/etc/docker/daemon.json"},
        },
        supports_check_mode=True,
    )
    path = pathlib.Path(module.params["path"])
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        config = _daemon_config.parse(str(path), text) if text.strip() else {}
    except (_daemon_config.ConfigError, UnicodeDecodeError) as error:
        module.fail_json(msg=f"{error}. Nothing was changed.")
    runtime = _container_runtime.observe(_command.run)
    minimums = [_container_runtime.Minimum(**one) for one in module.params["minimums"]]
    engine = runtime.engine
    module.exit_json(
        changed=False,
        docker={
            "version": runtime.docker_version,
            "answers": engine is not None,
            "cgroup_driver": engine.cgroup_driver if engine else "",
            "cdi": bool(engine and engine.cdi_spec_dirs),
            "running": runtime.running,
            "live_restore": runtime.live_restore,
        },
        toolkit={"version": runtime.toolkit_version},
        restart_reasons=list(_container_runtime.restart_reasons(runtime, config)),
        findings=[one.as_dict() for one in _container_runtime.findings(runtime, minimums)],
    )


if __name__ == "__main__":
    main()
