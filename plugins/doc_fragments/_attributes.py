# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a module of this collection does in check mode, in diff mode and when run twice.

Note that this doc fragment is private to the collection and can change without notice.
"""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation fragments that modules extend as ``gb10.fleet._attributes[.name]``."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return the changed status without changing the box.
  diff_mode:
    description: Returns in C(--diff) mode what changed, or would change in check mode.
  idempotent:
    description: Run twice in a row with the same options, the second run changes nothing.
"""

    # A reader: nothing on the box is changed by it, ever.
    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - This module changes nothing, so it does the same in check mode.
  diff_mode:
    support: N/A
    details:
      - This module changes nothing.
  idempotent:
    support: full
    details:
      - This module changes nothing.
"""

    # An action plugin that reads the inventory and opens no connection.
    CONTROLLER = r"""
options: {}
attributes:
  action:
    description: Runs on the controller.
    support: full
  check_mode:
    description: Can run in C(check_mode) and return the same.
    support: full
  diff_mode:
    description: Returns in C(--diff) mode what changed.
    support: N/A
    details:
      - This module changes nothing.
"""
