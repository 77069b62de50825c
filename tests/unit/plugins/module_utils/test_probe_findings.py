# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pathlib
import re

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._probe_findings import KNOWN, STAGES, finding

ROOT = pathlib.Path(__file__).parents[4]


def rows(name: str) -> dict[str, list[str]]:
    """Return the table rows of a document by their first cell."""
    lines = (ROOT / "docs" / name).read_text("utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_every_finding_is_documented_as_it_is() -> None:
    documented = rows("findings.md")
    for name, known in KNOWN.items():
        assert documented.get(name) == [known.severity, known.meaning, known.remedy], name


def test_every_stage_is_documented_as_it_is() -> None:
    documented = rows("readiness.md")
    assert {name: (row[0], row[-1]) for name, row in documented.items() if name in STAGES} == {
        name: (stage.rung, stage.patience) for name, stage in STAGES.items()
    }


def test_every_finding_is_made_somewhere_and_none_is_unknown() -> None:
    source = "".join(
        path.read_text("utf-8")
        for path in (ROOT / "plugins" / "module_utils").glob("_probe*.py")
        if path.name != "_probe_findings.py"
    )
    made = set(re.findall(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"', source))
    assert made == set(KNOWN)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_finding_has_a_meaning_and_a_remedy_in_whole_sentences(name: str) -> None:
    known = KNOWN[name]
    assert re.fullmatch(r"[A-Z0-9_]+", name)
    assert known.meaning.endswith(".")
    assert known.remedy.endswith(".")


def test_a_finding_is_made_with_its_usual_severity_or_another() -> None:
    usual, other = finding("WRONG_ANSWER", "13", "x"), finding("WRONG_ANSWER", "13", severity="info")
    assert (usual.severity, usual.evidence, usual.remedy) == ("error", "x", KNOWN["WRONG_ANSWER"].remedy)
    assert other.severity == "info"
