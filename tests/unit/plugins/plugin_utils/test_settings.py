# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The variables of roles and playbooks: every one is checked, and a misspelt one is not passed over in silence."""

from __future__ import annotations

import pathlib
import re
import typing as t

import pytest
import yaml

from ansible_collections.gb10.fleet.plugins.plugin_utils import _claims, _settings

CHECKOUT = pathlib.Path(__file__).parents[4]


def specs() -> dict[str, dict[str, t.Any]]:
    """Return the options of all roles by name."""
    found: dict[str, dict[str, t.Any]] = {}
    for path in sorted((CHECKOUT / "roles").glob("*/meta/argument_specs.yml")):
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"].values():
            found |= entry.get("options") or {}
    return found


def test_every_variable_of_a_role_is_known() -> None:
    assert set(specs()) - set(_settings.SETTINGS) - set(_settings.OTHERS) == set()


def test_every_variable_of_a_playbook_is_known() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (CHECKOUT / "playbooks").glob("*.yml")]
    found = {name for text in texts for name in re.findall(r"(?<![\w.] )(?<!\w)([a-z]+_\w+) \| default\(", text)}
    # Not those of Ansible itself.
    asked = {name for name in found if not name.startswith("ansible_")}
    assert {"soak_requests", "rollback_to", "plan_dest", "fleet_batches"} <= asked
    assert asked - set(_settings.SETTINGS) - set(_settings.OTHERS) == set()


def test_what_a_role_has_by_default_may_be_written_down() -> None:
    given = {name: spec["default"] for name, spec in specs().items() if "default" in spec}
    assert list(_settings.problems(given)) == []


@pytest.mark.parametrize("name", sorted(_settings.SETTINGS))
def test_a_variable_with_nothing_in_it(name: str) -> None:
    found = list(_settings.problems({name: None}))
    assert [one.path for one in found] == [(name,)]
    assert found[0].what.startswith("None is nothing")


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("vllm_server_liveness_period", -5, "-5 is not between"),
        ("vllm_server_liveness_period", "-5", "-5 is not between"),
        ("vllm_server_check_kernels", "allways", "not one of auto, always, never"),
        ("vllm_server_liveness", "no", "is a string, not true or false"),
        ("vllm_server_liveness_window", 10, "no time for 3 restarts"),
        ("fabric_confirm_timeout", True, "not a whole number"),
        ("fabric_nccl_image", "vllm/vllm-openai:latest", "not an image by its digest"),
        ("nvidia_driver_manage", "maybe", "not true or false"),
        ("nvidia_driver_version", 580.1, "is a number, not a string"),
        ("nvidia_driver_version", "580.95.05-0ubuntu1", "not a version of the driver"),
        ("nvidia_driver_version", "570.86.10", "not of the branch 580"),
        ("nvidia_driver_known_limits", ["NO_SUCH_CLAIM"], "there is no claim 'NO_SUCH_CLAIM'"),
        ("nvidia_driver_platform_packages", ["a b"], "not the name of a package"),
        ("container_runtime_daemon_config", {"exec-opts": "x"}, "Docker Engine takes a list"),
        ("soak_concurrency", "0", "0 is not between"),
        ("soak_instances", "coordinator", "is a string, not a list"),
        ("soak_scripts", "cjk", "is a string, not a list"),
        ("soak_scripts", ["cjk", "latein"], "'latein' is not the name of a script"),
        ("rollback_to", "../x", "not the id of a generation"),
        ("serving_address", None, "nothing stands there"),
    ],
)
def test_a_value_that_would_fail_later(name: str, value: object, what: str) -> None:
    claims = {claim.id for claim in _claims.load()}
    found = list(_settings.problems({name: value}, claims))
    assert len(found) == 1
    assert found[0].path[0] == name
    assert what in found[0].what


@pytest.mark.parametrize(
    "given",
    [
        {"soak_concurrency": "8", "nvidia_driver_manage": "True", "vllm_server_liveness": "false"},
        {"soak_scripts": ["any"], "soak_instances": ["coordinator"]},
        {"nvidia_driver_branch": 570, "nvidia_driver_version": "570.86.10"},
        {"nvidia_driver_branch": "580", "nvidia_driver_version": ""},
        {"nvidia_driver_known_limits": [_claims.load()[0].id]},
        {"vllm_server_liveness_window": 30, "vllm_server_liveness_restarts": 2, "vllm_server_liveness_period": 15},
        {"container_runtime_docker_packages": ["docker.io", "docker-cli=5:28.0~x"]},
    ],
)
def test_a_value_that_is_right(given: dict[str, object]) -> None:
    assert list(_settings.problems(given, {claim.id for claim in _claims.load()})) == []


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("vllm_server_boot_timout", "vllm_server_boot_timeout"),
        ("model_catalog", "model_catalogue"),
        ("model_role", "model_roles"),
        ("fabrics", "fabric"),
        ("serving_adress", "serving_address"),
        ("nvida_driver_manage", "nvidia_driver_manage"),
        ("container_runtime_manege", "container_runtime_manage"),
        ("soak_request", "soak_requests"),
        ("soak_script", "soak_scripts"),
        ("rolback_to", "rollback_to"),
        ("model_store_folder", ""),
        ("vllm_server_boot_timeout", ""),
        ("vault_vllm_server_api_key", ""),
        ("nvidia_driver_runfile_url", ""),
        ("ansible_user", ""),
        ("group_names", ""),
        ("environment_name", ""),
    ],
)
def test_a_variable_that_nothing_reads(name: str, like: str) -> None:
    found = [one.remedy for one in _settings.misspelt([name])]
    assert found == ([f"did you mean {like}?"] if like else [])
