# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The variables of roles and playbooks: every one is checked, and a misspelt one is not passed over in silence."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import typing as t

import pytest
import yaml

from ansible_collections.gb10.fleet.plugins.module_utils import _liveness
from ansible_collections.gb10.fleet.plugins.plugin_utils import _claims, _settings, _unit

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
        ("vllm_server_liveness_window", 9509, "within 9509 s there is no time for 3 restarts"),
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
        {"vllm_server_liveness_window": 9510},
        {"vllm_server_boot_timeout": 5830},
        {"vllm_server_liveness_window": 10, "vllm_server_liveness": "false"},
        {"vllm_server_api_key": "", "vllm_server_secret_env": {"VLLM_API_KEY": "sk-1!~", "PASSWORD": "zwei Wörter"}},
        {"container_runtime_docker_packages": ["docker.io", "docker-cli=5:28.0~x"]},
    ],
)
def test_a_value_that_is_right(given: dict[str, object]) -> None:
    assert list(_settings.problems(given, {claim.id for claim in _claims.load()})) == []


def test_what_the_restarts_of_the_watch_take_is_counted_from_what_the_role_has_by_default() -> None:
    defaults = {name: spec.get("default") for name, spec in specs().items()}
    assert {name: defaults[name] for name in _settings.ENDLESS} == _settings.ENDLESS


@pytest.mark.parametrize(("name", "value"), [("restarts", "7"), ("period", 3600)])
def test_what_leaves_the_usual_window_no_time_asks_for_a_longer_one(name: str, value: object) -> None:
    (found,) = _settings.problems({f"vllm_server_liveness_{name}": value})
    assert found.path == ("vllm_server_liveness_window",)
    assert found.what.startswith("within 21600 s there is no time for ")
    least = int(re.findall(r"give it (\d+) or more", found.remedy)[0])
    given = {f"vllm_server_liveness_{name}": value, "vllm_server_liveness_window": least}
    assert list(_settings.problems(given)) == []


def test_a_window_that_may_not_be_long_enough_has_other_words() -> None:
    (found,) = _settings.problems({"vllm_server_boot_timeout": 604800})
    assert found.path == ("vllm_server_liveness_window",)
    assert found.remedy == (
        "no window is long enough (at most 604800): lower vllm_server_liveness_restarts or these times"
    )


def restarts_of(engine: _unit.Liveness, start_s: float, sign: str, *, loaded: bool) -> int | None:
    """Return after how many restarts an engine that always fails stays down, None where that is not within a year.

    It takes ``start_s`` from each restart to its first answer, and every look at it comes late and is slow.
    """
    limits = _liveness.Limits(engine.period_s, engine.answer_s, engine.restarts, engine.window_s)
    look_s = limits.witness_s + (engine.answer_s + _liveness.MARGIN_S) * (3 if sign == "text" else 1)
    state, at, restarts = _liveness.State(), 0.0, 0
    while at < 365 * 86400:
        at += start_s + engine.every_s + look_s
        deed = "again"
        while deed == "again":
            seen = _liveness.Look(at=at, invocation=str(restarts), sign=t.cast("t.Any", sign), loaded=loaded)
            state, action = _liveness.decide(state, seen, limits)
            deed = action.deed
            at += min(action.again_s + look_s, limits.row_s) if deed == "again" else 0
        if deed == "stop":
            return restarts
        restarts += 1
    return None


@pytest.mark.parametrize(("sign", "loaded"), [("hang", False), ("hang", True), ("text", False)])
@pytest.mark.parametrize(
    ("period", "restarts", "boot"), [(300, 3, 1800), (300, 24, 900), (60, 3, 300), (15, 2, 600), (3600, 5, 1800)]
)
def test_what_fails_after_every_restart_stays_down_in_the_end(
    period: int, restarts: int, boot: int, sign: str, loaded: bool
) -> None:
    given = {
        **_settings.ENDLESS,
        "vllm_server_liveness_period": period,
        "vllm_server_liveness_restarts": restarts,
        "vllm_server_boot_timeout": boot,
    }
    given["vllm_server_liveness_window"] = _settings.least_window_s(given)
    watch = _unit.Liveness(period_s=period, restarts=restarts, window_s=given["vllm_server_liveness_window"])
    start_s = 60 + 10 + 240 + boot
    assert restarts_of(watch, start_s, sign, loaded=loaded) == restarts
    # With a period for each restart and no time to boot, the first is forgotten before the last, and it never ends.
    hasty = dataclasses.replace(watch, window_s=restarts * period)
    assert restarts_of(hasty, start_s, sign, loaded=loaded) is None


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
