# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The variables of the collection's roles and playbooks: which there are, and what each may be.

Ansible's own argument specs convert, and look at a variable only when its role begins, which may be after a reboot.
Here all of them are looked at before anything is done. It is pure: no host, no file, no clock.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import difflib
import ipaddress
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._openai_api import key_fault
from ansible_collections.gb10.fleet.plugins.module_utils._text_sanity import SCRIPT_NAMES
from ansible_collections.gb10.fleet.plugins.plugin_utils import _schema as schema
from ansible_collections.gb10.fleet.plugins.plugin_utils._schema import Kind, Problem
from ansible_collections.gb10.fleet.plugins.plugin_utils._unit import Liveness

_WEEK_S: t.Final = 7 * 24 * 3600
# What a start may take beyond its limits, as __vllm_server_start_limit_interval of the role has it.
_SLACK_S: t.Final = 60
_PACKAGE: t.Final = r"[a-z0-9][a-z0-9+.-]*(?::[a-z0-9]+)?(?:=[\w.+:~-]+)?"
# A slip of the finger; names that share no more than a word with one of ours are somebody else's.
_OURS: t.Final = 0.85
_ANYBODYS: t.Final = 0.9


def _seconds(example: str, low: int = 1) -> Kind:
    return schema.whole(example, low=low, high=_WEEK_S)


def _or_empty(kind: Kind) -> Kind:
    """Return a kind of text that may also be the empty one."""
    check = kind.check
    return dataclasses.replace(kind, check=lambda value: None if value == "" or check is None else check(value))


def _not_an_address(value: str) -> str | None:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return "is not an IPv4 or IPv6 address of the box"
    return None


def _packages(example: str, pattern: str = _PACKAGE) -> Kind:
    name = schema.text(example, pattern=pattern, meaning="the name of a package")
    return schema.sequence(f"[{example}]", name)


def _folder() -> Kind:
    return schema.text("/", pattern=r"/[^\0]*", meaning="a path that begins with /")


def _daemon_config(value: dict[t.Any, t.Any]) -> c.Iterator[tuple[schema.Path, str, str]]:
    for key, types, kind, example in (
        ("exec-opts", list, "a list", "[native.cgroupdriver=cgroupfs]"),
        ("features", dict, "a mapping", "{cdi: true}"),
    ):
        if key in value and not isinstance(value[key], types):
            what = f"{schema.shown(value[key])} is {schema.kind_of(value[key])}, and Docker Engine takes {kind}"
            yield (key,), what, f"write it like this: {key}: {example}"


_DAEMON_CONFIG: t.Final = dataclasses.replace(
    schema.mapping("{exec-opts: [native.cgroupdriver=cgroupfs], features: {cdi: true}}"),
    faults=_daemon_config,
)
_VERSION: t.Final = schema.text(
    '"580.173.02"',
    pattern=r"\d{3}(?:\.\d{1,3}){1,2}",
    meaning="a version of the driver",
    remedy='write it whole and in quotes, without what the distribution adds: "580.173.02"',
)
_SCRIPT: t.Final = schema.text(
    "cjk",
    pattern="|".join(("any", *SCRIPT_NAMES)),
    meaning="the name of a script",
    remedy=f"write any, or some of {', '.join(SCRIPT_NAMES)}",
)
_INSTANCE: t.Final = schema.text("coordinator", pattern=r"[a-z0-9][a-z0-9_.-]*", meaning="the name of an instance")

# By role, in the order of its defaults. What a role takes beside these, others hand over to it.
SETTINGS: t.Final[c.Mapping[str, Kind]] = {
    "vllm_server_listen_address": Kind(name="a string", types=(str,), example="127.0.0.1", check=_not_an_address),
    "vllm_server_gpu": schema.text("auto", pattern="auto|cdi|none", meaning="one of auto, cdi, none"),
    "vllm_server_check_kernels": schema.text("auto", pattern="auto|always|never", meaning="one of auto, always, never"),
    "vllm_server_boot_timeout": _seconds("1800"),
    "vllm_server_gate_timeout": _seconds("240"),
    "vllm_server_stop_timeout": _seconds("60"),
    "vllm_server_restart_delay": _seconds("10"),
    "vllm_server_start_limit_burst": schema.whole("3", low=1, high=100),
    "vllm_server_host_reserve_bytes": schema.whole("8589934592", low=0, high=2**50),
    "vllm_server_liveness": schema.flag("true"),
    "vllm_server_liveness_period": schema.whole("300", low=15, high=86400),
    "vllm_server_liveness_restarts": schema.whole("3", low=1, high=100),
    "vllm_server_liveness_window": _seconds("21600"),
    "vllm_server_probe_timeout": _seconds("120"),
    "vllm_server_keep_generations": schema.whole("3", low=1, high=100),
    "fabric_confirm_timeout": _seconds("60", low=5),
    "fabric_verify_timeout": _seconds("60"),
    "fabric_sysroot": _folder(),
    "fabric_load_seconds": schema.whole("5", low=1, high=3600),
    "fabric_nccl_image": _or_empty(
        schema.text(
            "registry/image@sha256:<64 hex digits>",
            pattern=r"[^\s@]+@sha256:[0-9a-f]{64}",
            meaning="an image by its digest",
            remedy="write name@sha256:<64 hex digits>: a tag could bring another NCCL than the one that serves",
        )
    ),
    "nvidia_driver_manage": schema.flag("true"),
    "nvidia_driver_branch": schema.any_of(
        '"580"',
        schema.text('"580"', pattern=r"\d{3}", meaning="a branch of the driver"),
        schema.whole("580", low=100, high=999),
    ),
    "nvidia_driver_version": _or_empty(_VERSION),
    "nvidia_driver_upgrade": schema.flag("false"),
    "nvidia_driver_kernel_flavour": schema.text(
        "nvidia-hwe-24.04", pattern=r"[a-z0-9][a-z0-9.-]*", meaning="the flavour of a kernel, as its packages name it"
    ),
    "nvidia_driver_allow_reboot": schema.flag("true"),
    "nvidia_driver_reboot_timeout": _seconds("1800"),
    "nvidia_driver_lock_timeout": _seconds("600"),
    "nvidia_driver_platform_packages": _packages("nvidia-*", r"[a-z0-9*?][a-z0-9+.*?-]*"),
    "nvidia_driver_nodes": schema.whole("1", low=1, high=1024),
    "nvidia_driver_known_limits": schema.sequence("[ID_OF_A_CLAIM]", schema.text("ID_OF_A_CLAIM")),
    "nvidia_driver_sysroot": _folder(),
    "container_runtime_manage": schema.flag("true"),
    "container_runtime_docker_packages": _packages("docker-ce"),
    "container_runtime_toolkit_packages": _packages("nvidia-container-toolkit"),
    "container_runtime_daemon_config": _DAEMON_CONFIG,
    "container_runtime_allow_restart": schema.flag("true"),
    "container_runtime_sysroot": _folder(),
    "preflight_python_floor": schema.text(
        '"3.11"',
        pattern=r"\d+\.\d+",
        meaning="a version of Python",
        remedy='put it in quotes: "3.11"',
    ),
    "preflight_architectures": schema.sequence("[aarch64]", schema.text("aarch64")),
    "preflight_sysctl": schema.mapping("{vm.swappiness: 1}"),
    # The variables of playbooks.
    "soak_concurrency": schema.whole("8", low=1, high=4096),
    "soak_requests": schema.whole("400", low=1, high=10_000_000),
    "soak_max_tokens": schema.whole("256", low=1, high=10_000_000),
    "soak_timeout": _seconds("3600"),
    "soak_shared_prefix": schema.whole("0", low=0, high=10_000_000),
    "soak_instances": schema.sequence("[coordinator]", _INSTANCE),
    "soak_scripts": schema.sequence("[cjk]", _SCRIPT),
    "rollback_to": _or_empty(
        schema.text(
            "0123456789ab",
            pattern=r"[\w.-]+",
            meaning="the id of a generation",
            remedy="/var/lib/gb10-fleet/deployment.json on the box has those that it can go back to, under good",
        )
    ),
    "plan_facts": schema.text("facts"),
    "plan_checkpoints": schema.text("checkpoints"),
    "plan_dest": schema.text("facts/plan.json"),
}
# Read and checked elsewhere.
OTHERS: t.Final = (
    "model_roles",
    "model_catalogue",
    "serving_group",
    "serving_address",
    "serving_env",
    "serving_devices",
    "fabric",
    "fleet_batches",
    "box_memory",
    "box_checkpoints",
    "vllm_server_hf_token",
    "vllm_server_api_key",
    "vllm_server_secret_env",
    "model_store_checkpoints",
    "model_store_folder",
    "model_store_hf_token",
)
# What decides whether the watch ever comes to the end of its restarts, with the values that the role has by default.
ENDLESS: t.Final[c.Mapping[str, int]] = {
    "vllm_server_liveness_window": 21600,
    "vllm_server_liveness_restarts": 3,
    "vllm_server_liveness_period": 300,
    "vllm_server_boot_timeout": 1800,
    "vllm_server_gate_timeout": 240,
    "vllm_server_stop_timeout": 60,
    "vllm_server_restart_delay": 10,
}
_SECRETS: t.Final = ("vllm_server_hf_token", "vllm_server_api_key")
# The key of an engine, as a variable and as the name that vLLM reads it from.
_KEYS: t.Final = ("vllm_server_api_key", "VLLM_API_KEY")
_PREFIXES: t.Final = (
    "vllm_server_",
    "fabric_",
    "nvidia_driver_",
    "container_runtime_",
    "preflight_",
    "model_",
    "serving_",
    "soak_",
    "plan_",
    "rollback_",
)
# Whoever writes these alone leaves the value open; nothing would be read where something was meant.
_NEVER_NOTHING: t.Final = ("serving_address",)


def misspelt(names: c.Iterable[str]) -> c.Iterator[Problem]:
    """Yield the variables of a box that nothing reads, but that look like one that the collection reads."""
    known = (*SETTINGS, *OTHERS)
    for name in names:
        if name in known or name.startswith(("_", "ansible_", "vault_")):
            continue
        cutoff = _OURS if name.startswith(_PREFIXES) else _ANYBODYS
        if like := difflib.get_close_matches(name, known, n=1, cutoff=cutoff):
            yield Problem((name,), "nothing reads this variable", f"did you mean {like[0]}?", name)


def problems(variables: c.Mapping[str, t.Any], claims: c.Collection[str] = ()) -> c.Iterator[Problem]:
    """Yield what is wrong with the values. ``claims`` has the ids that there are; none where they do not matter."""
    for name in _NEVER_NOTHING:
        if name in variables and variables[name] is None:
            yield Problem((name,), "nothing stands there", "write the value, or remove the line")
    for name, kind in SETTINGS.items():
        if name in variables:
            yield from schema.problems(_of_command_line(variables[name], kind), kind, (name,))
    yield from _secrets(variables)
    yield from _together(variables)
    limits = variables.get("nvidia_driver_known_limits")
    for index, one in enumerate(limits if isinstance(limits, list) else ()):
        if claims and isinstance(one, str) and one not in claims:
            path = ("nvidia_driver_known_limits", index)
            yield Problem(path, f"there is no claim {schema.shown(one)}", _nearest_claim(one, claims), one)


def _nearest_claim(name: str, claims: c.Collection[str]) -> str:
    close = difflib.get_close_matches(name, claims, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else "the run that is refused names its id"


def _secrets(variables: c.Mapping[str, t.Any]) -> c.Iterator[Problem]:
    """Yield what is wrong with secrets, which are checked, and never shown."""
    for name in _SECRETS:
        if name in variables:
            yield from _secret(name, variables[name], (name,))
    secrets = variables.get("vllm_server_secret_env", {})
    if not isinstance(secrets, dict):
        yield Problem(("vllm_server_secret_env",), "it is not a mapping", "write it like this: {NAME: secret}", secrets)
        return
    for name, value in secrets.items():
        path = ("vllm_server_secret_env", str(name))
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name), re.ASCII):
            what = "it is not the name of an environment variable"
            yield Problem(path, what, "use letters, digits, underscores", name)
        else:
            yield from _secret(name, value, path)


def _secret(name: str, value: object, path: schema.Path) -> c.Iterator[Problem]:
    """Yield what is wrong with one secret, with the name for its place. The box itself sends the key of its engines."""
    if not isinstance(value, str) or schema.control_character(value):
        yield Problem(path, "it is not one line of text", "put the secret itself there, in quotes", name)
    elif name in _KEYS and (fault := key_fault(value)):
        remedy = "choose one of letters, digits and punctuation, or neither the box nor a client could ask the engine"
        yield Problem(path, f"it {fault}", remedy, name)


def _together(variables: c.Mapping[str, t.Any]) -> c.Iterator[Problem]:
    """Yield the values that do not go together, each of them right for itself."""
    branch, version = variables.get("nvidia_driver_branch", "580"), variables.get("nvidia_driver_version")
    if isinstance(version, str) and re.match(r"\d{3}\.", version) and version.partition(".")[0] != str(branch):
        what = f"{version} is not of the branch {branch}"
        remedy = f'say nvidia_driver_branch: "{version.partition(".")[0]}" as well, or choose a version of {branch}'
        yield Problem(("nvidia_driver_version",), what, remedy, version)
    yield from _endless(variables)


def least_window_s(of: c.Mapping[str, int]) -> int:
    """Return the least window in which the watch counts its restarts, so that it comes to the end of them, in seconds.

    ``of`` has the settings of ENDLESS. An engine that fails again each time, however long it takes over its boot, has
    then used up its restarts before the first of them is forgotten.
    """
    return of["vllm_server_liveness_restarts"] * (_full_start_s(of) + _failing_s(of))


def _full_start_s(of: c.Mapping[str, int]) -> int:
    """Return how long an engine may take to end, and then to serve, as systemd's limit of starts counts it."""
    times = ("stop_timeout", "restart_delay", "gate_timeout", "boot_timeout")
    return sum(of[f"vllm_server_{name}"] for name in times) + _SLACK_S


def _failing_s(of: c.Mapping[str, int]) -> int:
    limits = {name: of[f"vllm_server_liveness_{name}"] for name in ("period", "restarts", "window")}
    return Liveness(period_s=limits["period"], restarts=limits["restarts"], window_s=limits["window"]).failing_s


def _endless(variables: c.Mapping[str, t.Any]) -> c.Iterator[Problem]:
    """Yield that a watch would never come to the end of its restarts, since it forgets the first before the last."""
    of = {name: _of_command_line(variables.get(name, default), SETTINGS[name]) for name, default in ENDLESS.items()}
    on = _of_command_line(variables.get("vllm_server_liveness", True), SETTINGS["vllm_server_liveness"])
    if on is False or any(one for name, value in of.items() for one in schema.problems(value, SETTINGS[name])):
        return
    known = t.cast("dict[str, int]", of)
    window, restarts = known["vllm_server_liveness_window"], known["vllm_server_liveness_restarts"]
    least = least_window_s(known)
    if window >= least:
        return
    serves = f"{_full_start_s(known)} s to serve again (vllm_server_boot_timeout and others)"
    failed = f"{_failing_s(known)} s to be seen to fail (vllm_server_liveness_period)"
    what = f"within {window} s there is no time for {restarts} restarts of an engine that takes {serves} and {failed}"
    enough = f"give it {least} or more" if least <= _WEEK_S else f"no window is long enough (at most {_WEEK_S})"
    less = "lower vllm_server_liveness_restarts or these times"
    remedy = f"{enough}, or {less}, or it is restarted for ever" if least <= _WEEK_S else f"{enough}: {less}"
    yield Problem(("vllm_server_liveness_window",), what, remedy, variables.get("vllm_server_liveness_window"))


def _of_command_line(given: object, kind: Kind) -> object:
    """Return what the role makes of a text from the command line (-e name=value), where that is all that it is."""
    if not isinstance(given, str) or str in kind.types:
        return given
    if int in kind.types and re.fullmatch(r"-?[0-9]{1,18}", given):
        return int(given)
    return given.lower() == "true" if bool in kind.types and given.lower() in {"true", "false"} else given
