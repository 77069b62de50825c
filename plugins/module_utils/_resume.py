# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Serves again what the unit of an instance starts, whatever that is: for who has only interrupted it.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

from ansible_collections.gb10.fleet.plugins.module_utils import _converge, _instance


def resumed(
    box: _converge.Box, name: str, *, begin: bool, step_s: float, keep_trying: bool = False
) -> _converge.Outcome:
    """Start the unit where ``begin`` says so and it does not start already, and wait up to ``step_s`` for its answer.

    An engine of a unit that was edited by hand has no fingerprint that could be waited for. So what counts is what runs
    at the beginning of a step; an engine that has come up in the middle of one is found by the next.
    """
    spec = _instance.observe(box.run, name, box.sysroot).running_spec
    return _converge.started(box, name, spec, begin=begin, step_s=step_s, keep_trying=keep_trying)
