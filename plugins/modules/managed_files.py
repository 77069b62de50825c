#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: managed_files
short_description: Write several text files of root in one go
version_added: 0.1.0
description:
  - Writes files whose text is known on the controller, all of them with one execution on the box, where
    M(ansible.builtin.copy) and M(ansible.builtin.template) need five each.
  - Each file is replaced as a whole. Files that have the wanted text and mode are left alone.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
attributes:
  action:
    description: The action plugin of the same name renders the templates on the controller.
    support: full
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  files:
    description: The files.
    type: list
    elements: dict
    required: true
    suboptions:
      dest:
        description: Where the file goes. Its folder has to exist, except in check mode.
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
"""

EXAMPLES = r"""
- name: Write two files
  gb10.fleet.managed_files:
    files:
      - dest: /etc/one.conf
        content: "key = value\n"
      - dest: /etc/two.conf
        template: two.conf.j2
        mode: "0600"
"""

RETURN = r"""
written:
  description: The files that were written, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [/etc/one.conf]
"""

import pathlib

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _files


def main() -> None:
    """Write what differs."""
    module = AnsibleModule(
        argument_spec={
            "files": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "dest": {"type": "path", "required": True},
                    "content": {"type": "str"},
                    "template": {"type": "str"},
                    "vars": {"type": "dict", "default": {}},
                    "mode": {"type": "str", "default": "0644"},
                },
            }
        },
        supports_check_mode=True,
    )
    wanted = [
        _files.Wanted(pathlib.Path(one["dest"]), one["content"] or "", int(one["mode"], 8))
        for one in module.params["files"]
    ]
    changed = [one for one in wanted if _files.differs(one)]
    diff = [_files.difference(one) for one in changed]
    try:
        for one in changed if not module.check_mode else ():
            _files.write(one)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}.")
    module.exit_json(changed=bool(changed), written=[str(one.path) for one in changed], diff=diff)


if __name__ == "__main__":
    main()
