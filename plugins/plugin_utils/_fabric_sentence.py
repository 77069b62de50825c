# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A problem of a fabric in one sentence, with the file and the line where they are known.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

from ansible_collections.gb10.fleet.plugins.plugin_utils import _origin, _schema


def sentence(problem: _schema.Problem, fabric: object) -> str:
    """Return where it is, which key, what is wrong and what to do."""
    place = _origin.place_of(problem.value) or _origin.place_on_the_way(problem.path[1:], fabric)
    end = "" if problem.remedy.endswith("?") else "."
    return f"{place or 'the inventory'}: {_schema.dotted(problem.path)}: {problem.what}; {problem.remedy}{end}"
