# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One thing that a check found out, in the shape that every module and plan of the collection returns.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import typing as t

Severity = t.Literal["error", "warning", "info"]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A finding: what is wrong or worth knowing, how we know, and what to do about it.

    ``id`` is UPPER_SNAKE and is listed, with its meaning, in docs/findings.md. ``claim`` names the dated fact
    (plugins/plugin_utils/data/claims) that the finding rests on, and is empty where it rests on none.
    """

    id: str
    severity: Severity
    message: str
    evidence: str = ""
    remedy: str = ""
    claim: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the finding as plain data, the way it leaves a module."""
        return dataclasses.asdict(self)


def worst(findings: t.Iterable[Finding]) -> Severity | None:
    """Return the gravest severity among the findings, or None where there are none."""
    present = {finding.severity for finding in findings}
    for severity in t.get_args(Severity):
        if severity in present:
            return t.cast("Severity", severity)
    return None
