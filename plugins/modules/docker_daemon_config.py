#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_daemon_config
short_description: Add settings to Docker Engine's configuration
version_added: 0.1.0
description:
  - Adds settings to C(/etc/docker/daemon.json) and leaves everything else in it as it is. A setting that is there with
    another value is not replaced. The task then fails, names both, and changes nothing.
  - A file that is not valid JSON is refused by file and line.
  - Docker Engine itself checks the result, where it is installed, before it is written, with the options that it was
    started with. What stands in both keeps it from starting. It is not restarted.
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
  config:
    description:
      - The settings, as they stand in the file. Mappings are merged key by key.
      - A list is added to. A word C(name=value) in it conflicts with one of the same name.
    type: dict
    required: true
  path:
    description: The file.
    type: path
    default: /etc/docker/daemon.json
"""

EXAMPLES = r"""
- name: Let a reload of systemd leave the GPU to its containers
  gb10.fleet.docker_daemon_config:
    config:
      exec-opts: [native.cgroupdriver=cgroupfs]
"""

RETURN = r"""
conflicts:
  description: The settings that have another value in the file.
  returned: always
  type: list
  elements: dict
  sample: [{key: exec-opts, found: native.cgroupdriver=systemd, wanted: native.cgroupdriver=cgroupfs}]
"""

import collections.abc as c
import dataclasses
import pathlib
import tempfile

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _command, _daemon_config, _files, _instance


def main() -> None:
    """Merge, and write what differs."""
    module = AnsibleModule(
        argument_spec={
            "config": {"type": "dict", "required": True},
            "path": {"type": "path", "default": "/etc/docker/daemon.json"},
        },
        supports_check_mode=True,
    )
    # A link stays one: what it leads to is the file.
    path = pathlib.Path(module.params["path"]).resolve()
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        merged = _daemon_config.merge(str(path), text, module.params["config"])
    except (_daemon_config.ConfigError, UnicodeDecodeError) as error:
        module.fail_json(msg=f"{error}. Nothing was changed.", conflicts=[])
    conflicts = [dataclasses.asdict(one) for one in merged.conflicts]
    if conflicts:
        named = "; ".join(f"{one['key']} has {one['found']!r}, and {one['wanted']!r} is wanted" for one in conflicts)
        module.fail_json(
            msg=f"{path}: {named}. Change it there, or do not ask for it. Nothing was changed.", conflicts=conflicts
        )
    if merged.text == text:
        module.exit_json(changed=False, conflicts=[])
    wanted = _files.Wanted(path, merged.text, path.stat().st_mode & 0o777 if path.exists() else 0o644)
    difference = _files.difference(wanted)
    refuse_what_docker_refuses(module, merged.text)
    if not module.check_mode:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _files.write(wanted)
    module.exit_json(changed=True, conflicts=[], diff=difference)


def options_of_docker() -> list[str]:
    """Return the options that Docker Engine was started with, without its file; none where it does not run."""
    try:
        words = _instance.command_line(_instance.show(_command.run, "docker.service").main_pid)[1:]
    except _instance.UnitError:
        return []
    return list(without_file(words))


def without_file(words: c.Iterable[str]) -> c.Iterator[str]:
    """Yield the words of a command line but for the option that names the file."""
    rest = iter(words)
    for word in rest:
        if word == "--config-file":
            next(rest, None)
        elif not word.startswith("--config-file="):
            yield word


def refuse_what_docker_refuses(module: AnsibleModule, text: str) -> None:
    """Let Docker Engine look at the file before it has to start with it, with the options that it was started with."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        argv = ["dockerd", *options_of_docker(), "--validate", f"--config-file={file.name}"]
        code, out, err = _command.run(argv, timeout_s=30)
    # Before 23.0 it cannot be asked.
    if code not in {0, _command.NOT_FOUND} and "unknown flag: --validate" not in err:
        said = (err.strip() or out.strip()).replace(file.name, module.params["path"])
        module.fail_json(msg=f"Docker Engine refuses the configuration: {said}. Nothing was changed.", conflicts=[])


if __name__ == "__main__":
    main()
