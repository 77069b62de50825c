# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a module that works step by step has in common with the others.

Note that this doc fragment is private to the collection and can change without notice.
"""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation fragment that modules extend as ``gb10.fleet._progress``."""

    DOCUMENTATION = r"""
attributes:
  action:
    description: The action plugin of the same name shows the progress.
    support: full
options:
  begin:
    description:
      - Whether to begin the work, or only to wait for what was begun.
      - The action plugin sets it; leave it out.
    type: bool
    default: true
  step:
    description: How long to wait before returning with RV(finished) false, in seconds. The action plugin sets it.
    type: int
    default: 8
"""
