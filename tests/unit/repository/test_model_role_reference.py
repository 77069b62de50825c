# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""docs/model-roles.md names every key of a model role, says of each whether it is required, and names no other."""

from __future__ import annotations

import pathlib
import re

from ansible_collections.gb10.fleet.plugins.plugin_utils import _model_roles, _speculation

TEXT = (pathlib.Path(__file__).parents[3] / "docs" / "model-roles.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([a-z_.]+)` \| (.*) \|$", TEXT, re.MULTILINE))


def test_every_key_has_a_row_and_every_row_a_key() -> None:
    known = set(_model_roles.ENTRY)
    known |= {f"{key}.{inner}" for key, kind in _model_roles.ENTRY.items() for inner in kind.keys or ()}
    known |= {f"measured.{name}" for name in _model_roles._MEASURED}
    known |= {f"speculative.{name}" for name in _speculation.PLANNED_KEYS}
    known |= {f"speculative.{name}" for name in ("method", "num_speculative_tokens", "model", "revision")}
    assert set(ROWS) == known


def test_what_is_required_is_marked() -> None:
    required = set(_model_roles._REQUIRED)
    required |= {f"{key}.{name}" for key in required for name in _model_roles.MODEL_ROLE[key].required}
    required.add("image.digest")
    marked = {key for key, says in ROWS.items() if "**required**" in says.lower() and not key.startswith("speculative")}
    assert marked == required


def test_what_is_only_for_the_plan_is_marked() -> None:
    assert {key for key, says in ROWS.items() if says.startswith("for the plan")} == {
        f"speculative.{name}" for name in _speculation.PLANNED_KEYS
    }
