# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One finding about a driver, and what it does to the GPU and to the next boot.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding, Severity

Effect = t.Literal["", "no", "unknown"]


@dataclasses.dataclass(frozen=True, slots=True)
class Issue:
    """A finding, and what it does: to the GPU in that kernel (``gpu``), and to whether a boot into it is safe.

    ``about_next`` says that it is about which kernel boots next, and holds for none of them by itself.
    """

    finding: Finding
    gpu: Effect = ""
    safe: Effect = ""
    about_next: bool = False


def issue(
    name: str,
    severity: Severity,
    message: str,
    *,
    evidence: str = "",
    remedy: str = "",
    gpu: Effect = "",
    safe: Effect = "",
    about_next: bool = False,
) -> Issue:
    return Issue(Finding(name, severity, message, evidence, remedy), gpu, safe, about_next)
