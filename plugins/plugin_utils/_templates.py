# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Renders, on the controller, the files that a module takes as texts.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.loader import lookup_loader

if t.TYPE_CHECKING:
    from ansible.plugins.action import ActionBase


def rendered(action: ActionBase, file: t.Mapping[str, t.Any], variables: dict[str, t.Any]) -> dict[str, t.Any]:
    """Return a file with its text, which it has by itself or by a template of the role."""
    if ("content" in file) == ("template" in file):
        name = action._task.action.rpartition(".")[2]
        raise AnsibleActionFail(f"{name}: {file.get('dest')} needs content or template, and not both.")
    plain = {key: value for key, value in file.items() if key not in {"template", "vars"}}
    if "template" in file:
        lookup = lookup_loader.get("ansible.builtin.template", loader=action._loader, templar=action._templar)
        texts = lookup.run([file["template"]], variables=variables, template_vars=file.get("vars", {}))
        plain["content"] = texts[0]
    return plain
