# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The same fact in several files of the repository is the same."""

from __future__ import annotations

import pathlib
import tomllib
import typing as t

import yaml

from ansible_collections.gb10.fleet.plugins.module_utils._version import VERSION

CHECKOUT = pathlib.Path(__file__).parents[3]


def load(path: str) -> t.Any:
    return yaml.safe_load((CHECKOUT / path).read_text(encoding="utf-8"))


def test_there_is_one_version() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert load("galaxy.yml")["version"] == project["version"] == VERSION


def test_both_lists_of_collections_agree() -> None:
    required = {entry["name"]: entry["version"] for entry in load("requirements.yml")["collections"]}
    assert required == load("galaxy.yml")["dependencies"]


def test_every_role_has_documented_options_and_a_default_for_each() -> None:
    for role in sorted((CHECKOUT / "roles").iterdir()):
        options = load(f"roles/{role.name}/meta/argument_specs.yml")["argument_specs"]["main"]["options"]
        defaults_file = role / "defaults" / "main.yml"
        defaults = load(f"roles/{role.name}/defaults/main.yml") if defaults_file.exists() else {}
        assert {name: option["default"] for name, option in options.items()} == defaults, role.name


def test_every_module_and_filter_is_reachable_from_the_readme() -> None:
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    modules = [path.stem for path in (CHECKOUT / "plugins" / "modules").glob("*.py")]
    filters = [path.stem for path in (CHECKOUT / "plugins" / "filter").glob("*.yml")]
    roles = [path.name for path in (CHECKOUT / "roles").iterdir()]
    missing = [name for name in (*modules, *filters, *roles) if f"`{name}`" not in readme]
    assert not missing
