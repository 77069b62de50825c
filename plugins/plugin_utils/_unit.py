# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an instance is on a box (its container's command line, its guard's settings), and what that changes there.

Pure: the same instance, plan and box give the same unit, and so the same fingerprint.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import hashlib
import json
import math
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _deploy_record, _liveness
from ansible_collections.gb10.fleet.plugins.module_utils._probe_session import DEFAULT_CHECKS
from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_cli import render_args

# Raised when the unit's template changes in a way that a running engine has to be restarted for.
_UNIT_GENERATION: t.Final = 1
_HOME: t.Final = "/root"
_UNIT_FOLDER: t.Final = "/etc/systemd/system"
_HASH_ROUNDS: t.Final = 200_000
_NAME_DIGITS: t.Final = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """How often the watch of a box looks (seconds), and how often it may restart an engine within its window."""

    period_s: int
    restarts: int
    window_s: int

    @property
    def answer_s(self) -> int:
        """How long a look waits for its completion: a busy engine takes its time, and 10 s prove nothing."""
        return min(60, max(10, self.period_s // 5))

    @property
    def every_s(self) -> int:
        """The time from one look to the next, so that a dead engine is noticed within one period, or 16 s at the least.

        A tenth of the wait for an answer, 5 s at most, is for seeing whether the tokens of others move. Looks are no
        less than 5 s apart, so that with a period of 15 s an answer is known after 5 + 1 + 10 s.
        """
        return max(5, self.period_s - self.answer_s - min(5, -(-self.answer_s // 10)))

    @property
    def failing_s(self) -> int:
        """How long an engine that never works may be active before it is restarted: what it fails in is slow as well.

        Garbage takes three strikes of three questions each, a hang with requests a whole period beside its looks.
        """
        limits = _liveness.Limits(self.period_s, self.answer_s, self.restarts, self.window_s)
        question = self.answer_s + _liveness.MARGIN_S
        short, long = limits.witness_s + question, limits.witness_s + 3 * question
        garbage = long + 2 * min(limits.pause_s + long, limits.row_s)
        hang = short + self.period_s + min(limits.pause_s + short, limits.row_s)
        return math.ceil(self.every_s + max(garbage, hang))

    @property
    def limit_s(self) -> int:
        """How long a look and its repetitions may take before systemd ends them."""
        return 2 * self.period_s + 120


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where things lie on the box, and how long they may take (seconds)."""

    state_folder: str
    config_folder: str
    listen_address: str
    gpu: str
    secrets: c.Mapping[str, str]
    gate_timeout_s: int
    boot_timeout_s: int
    proof_timeout_s: int
    stop_timeout_s: int
    start_limit_burst: int
    liveness: Liveness | None = None


def docker_run(
    instance: c.Mapping[str, t.Any], vllm_args: c.Sequence[str], layout: Layout, labels: c.Mapping[str, str]
) -> list[str]:
    """Return the argv that runs the instance's container in the foreground."""
    name = instance["name"]
    cache = f"{layout.state_folder}/cache/{name}"
    argv = ["/usr/bin/docker", "run", f"--name=vllm-{name}", "--pull=never", "--log-driver=none"]
    # Host network and IPC: NCCL, shared memory and the readiness probe on 127.0.0.1 need them.
    argv += ["--network=host", "--ipc=host", f"--stop-timeout={layout.stop_timeout_s}"]
    ulimits = dict(instance.get("ulimits", {}))
    if layout.gpu == "cdi":
        # CUDA pins host memory, which the default limit would not allow.
        argv.append("--device=nvidia.com/gpu=all")
        ulimits = {"memlock": "-1", "stack": "67108864"} | ulimits
    argv += [f"--ulimit={name}={value}" for name, value in ulimits.items()]
    argv += [f"--device={path}" for path in instance.get("devices", [])]
    argv += [f"--cap-add={name}" for name in instance.get("capabilities", [])]
    argv += [f"--label={key}={value}" for key, value in sorted(labels.items())]
    if layout.secrets:
        argv += [f"--env-file={secrets_file(instance, layout)}"]
    # The weights are on the box and complete, so a boot asks nobody; what the model role says comes last and wins.
    defaults = {"HF_HUB_OFFLINE": "1", "TRITON_CACHE_DIR": f"{_HOME}/.cache/triton"}
    argv += [f"--env={key}={value}" for key, value in sorted({**defaults, **instance["env"]}.items())]
    argv += [
        f"--volume={cache}:{_HOME}/.cache",
        f"--volume={layout.state_folder}/huggingface:{_HOME}/.cache/huggingface",
        "--entrypoint=vllm",
        instance["image"]["reference"],
        "serve",
        *vllm_args,
    ]
    return argv


def fingerprint(argv: c.Sequence[str], secrets: c.Mapping[str, str]) -> str:
    """Return what tells one deployed engine from another: the hash of all that its container is started with.

    The fingerprint can be read by everyone on the box. A secret goes into it only behind a slow hash, so that it
    cannot be guessed from it.
    """
    hidden = slow_hash(secrets) if secrets else ""
    return hashlib.sha256(json.dumps([_UNIT_GENERATION, list(argv), hidden]).encode()).hexdigest()


def slow_hash(secrets: c.Mapping[str, str]) -> str:
    """Return what tells secrets apart without telling them."""
    text = json.dumps(sorted(secrets.items()))
    return hashlib.pbkdf2_hmac("sha256", text.encode(), b"gb10.fleet", _HASH_ROUNDS).hex()


def secrets(layout: Layout) -> dict[str, str]:
    """Return where the secrets of a deployment are kept on the box, and their hash; nothing where there are none.

    The file is named by the hash, so that those of the generation before stay where they are until they are not needed.
    """
    if not layout.secrets:
        return {}
    digest = slow_hash(layout.secrets)
    return {"file": f"{layout.state_folder}/secrets/{digest[:_NAME_DIGITS]}.env", "hash": digest}


def settings(
    instance: c.Mapping[str, t.Any], plan: c.Mapping[str, t.Any], layout: Layout, spec: str
) -> dict[str, t.Any]:
    """Return what the box's program has to know of the instance."""
    return {
        "name": instance["name"],
        "model_role": instance["model_role"],
        "kind": instance["kind"],
        "port": instance["port"],
        "url": f"http://{_probed(layout.listen_address)}:{instance['port']}",
        "models": instance["served_model_name"],
        "secrets_file": secrets_file(instance, layout) if layout.secrets else "",
        "reasoning_parser": instance.get("reasoning_parser", ""),
        "tool_call_parser": instance.get("tool_call_parser", ""),
        "speculative": bool(instance.get("speculative")),
        "max_num_seqs": instance["max_num_seqs"],
        "memory_bytes": plan["memory_bytes"],
        "memory_floor_bytes": plan["memory_floor_bytes"],
        "gate_timeout_s": layout.gate_timeout_s,
        "boot_timeout_s": layout.boot_timeout_s,
        "proof_timeout_s": layout.proof_timeout_s,
        "checks": _checks(instance),
        # What follows from versions alone is shown, and not held against a boot: only the image decides what runs.
        "expects": dict(plan["expects"] if plan.get("image_seen") else instance.get("expects", {})),
        "planned": _planned(instance, plan),
        "start_limit_burst": layout.start_limit_burst,
        "image": instance["image"]["reference"],
        "spec": spec,
        "liveness": _liveness_settings(instance, layout.liveness),
        "group": group_settings(instance, plan, layout),
    }


def _liveness_settings(instance: c.Mapping[str, t.Any], liveness: Liveness | None) -> dict[str, t.Any] | None:
    """Return what the watch has to know of the instance, None where there is none: a headless rank cannot be asked."""
    if liveness is None or instance.get("headless") or not instance.get("liveness", True):
        return None
    return {
        "period_s": liveness.period_s,
        "answer_s": liveness.answer_s,
        "every_s": liveness.every_s,
        "limit_s": liveness.limit_s,
        "restarts": liveness.restarts,
        "window_s": liveness.window_s,
        "restart_after_hours": instance.get("restart_after_hours", 0),
    }


def _checks(instance: c.Mapping[str, t.Any]) -> list[str]:
    """Return what a deploy asks of an instance beyond the checks of its kind; none where those are all."""
    if instance["kind"] != "chat" or not instance.get("tool_call_parser"):
        return []
    return [*DEFAULT_CHECKS["chat"], "tools"]


def _planned(instance: c.Mapping[str, t.Any], plan: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return the numbers of the plan that a boot log is held to."""
    numbers = plan.get("numbers", {})
    found = {name: numbers[name]["value"] for name in ("kv_tokens", "kv_block_size", "weights") if name in numbers}
    found |= {"max_model_len": instance["max_model_len"], "vllm": instance["vllm"]}
    return {**found, "kv_cache_memory_bytes": plan["kv_cache_memory_bytes"]}


def group_settings(
    instance: c.Mapping[str, t.Any], plan: c.Mapping[str, t.Any], layout: Layout
) -> dict[str, t.Any] | None:
    """Return what a rank has to know of its serving group, None for an instance of one box.

    Its ``spec`` is the same on every rank that was deployed with the same image, arguments and environment, whatever
    is of one box only: ranks that differ in it never start together.
    """
    group = instance.get("serving_group")
    if not group:
        return None
    own = {"node_rank", "headless", "host"}
    common = {key: value for key, value in instance.items() if key not in own}
    env = {key: value for key, value in instance["env"].items() if key not in instance["box_env"]}
    words = [instance["image"]["reference"], *_vllm_args(common, plan, layout), *(f"{k}={env[k]}" for k in sorted(env))]
    members = [[one["rank"], one["box"], one["address"]] for one in group["members"]]
    spec = hashlib.sha256(json.dumps([_UNIT_GENERATION, words, members]).encode()).hexdigest()
    return {**group, "spec": spec}


def _probed(listen_address: str) -> str:
    """Return where an engine that listens there is asked from its own box."""
    if listen_address in {"0.0.0.0", "::"}:  # noqa: S104 - these say "everywhere", and the loopback is part of that
        return "127.0.0.1"
    return f"[{listen_address}]" if ":" in listen_address else listen_address


def secrets_file(instance: c.Mapping[str, t.Any], layout: Layout) -> str:
    """Return where the secrets of an instance lie on the box."""
    return f"{layout.config_folder}/instances/{instance['name']}.env"


def unit(instance: c.Mapping[str, t.Any], plan: c.Mapping[str, t.Any], layout: Layout) -> dict[str, t.Any]:
    """Return an instance's name, the argv of its container, its fingerprint and the settings of its guard."""
    vllm_args = _vllm_args(instance, plan, layout)
    labels = {"gb10.fleet.instance": instance["name"], "gb10.fleet.model_role": instance["model_role"]}
    spec = fingerprint(docker_run(instance, vllm_args, layout, labels), layout.secrets)
    argv = docker_run(instance, vllm_args, layout, {**labels, "gb10.fleet.spec": spec})
    known = settings(instance, plan, layout, spec)
    return {
        "name": instance["name"],
        "model_role": instance["model_role"],
        "port": instance["port"],
        "argv": argv,
        "spec": spec,
        "plan": dict(plan),
        "secrets": secrets(layout),
        "settings": known,
        # What its deploy record says until a soak says more.
        **_deploy_record.proven(known, None),
    }


def _vllm_args(instance: c.Mapping[str, t.Any], plan: c.Mapping[str, t.Any], layout: Layout) -> list[str]:
    return render_args(
        {
            **instance,
            "host": layout.listen_address,
            "kv_cache_memory_bytes": plan["kv_cache_memory_bytes"],
            "gpu_memory_utilization": plan["gpu_memory_utilization"],
        }
    )


def files(
    units: c.Sequence[c.Mapping[str, t.Any]], config_folder: str, which: t.Literal["units", "secrets"]
) -> list[dict[str, t.Any]]:
    """Return the files of the units as managed_files takes them: units and settings, or the secrets alone."""
    if which == "secrets":
        kept = dict.fromkeys(one["secrets"]["file"] for one in units if one["secrets"])
        return [{"dest": path, "template": "secrets.env.j2", "mode": "0600"} for path in kept]
    found: list[dict[str, t.Any]] = [
        {"dest": f"{_UNIT_FOLDER}/gb10-fleet-explain@.service", "template": "gb10-fleet-explain@.service.j2"}
    ]
    watched = [one["settings"]["liveness"] for one in units if one["settings"]["liveness"]]
    if watched:
        found += [
            {
                "dest": f"{_UNIT_FOLDER}/gb10-fleet-watch@.{suffix}",
                "template": f"gb10-fleet-watch@.{suffix}.j2",
                "vars": {"__vllm_server_liveness": watched[0]},
            }
            for suffix in ("service", "timer")
        ]
    if any(one["settings"]["group"] for one in units):
        found.append({"dest": f"{_UNIT_FOLDER}/gb10-fleet-peer@.service", "template": "gb10-fleet-peer@.service.j2"})
    for one in units:
        text = json.dumps(one["settings"], indent=4, sort_keys=True)
        found += [
            {"dest": f"{config_folder}/instances/{one['name']}.json", "content": f"{text}\n"},
            {
                "dest": f"{_UNIT_FOLDER}/vllm-{one['name']}.service",
                "template": "vllm.service.j2",
                "vars": {"__vllm_server_unit": dict(one)},
            },
        ]
    return found


def changes(units: c.Sequence[c.Mapping[str, t.Any]], observed: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return what a box has to do to serve exactly ``units``.

    ``leaving`` are no longer named, ``replaced`` run with another fingerprint, ``starting`` are all that have to be
    started; ``announcement`` says each of these in a sentence, and whether the same has failed before. ``unproven``
    says what will not be proven by answering alone.
    """
    there = observed["instances"]
    last = observed.get("deployment", {}).get("last", {})
    wanted = {one["name"]: one for one in units}
    leaving = [name for name in observed["placed"] if name not in wanted]
    starting = [name for name, one in wanted.items() if not _serves(there.get(name, {}), one["spec"])]
    replaced = [name for name in starting if there.get(name, {}).get("running")]
    lines = [f"stop and remove vllm-{name}: the inventory no longer names it" for name in leaving]
    for name in starting:
        role, port = wanted[name]["model_role"], wanted[name]["port"]
        verb = "restart" if name in replaced else "start"
        what = "it serves something else" if name in replaced else "it does not serve yet"
        lines.append(f"{verb} vllm-{name} (model role {role}, port {port}): {what}")
    lines += [
        f"enable vllm-{name}: it serves, and would not start at the next boot"
        for name in wanted
        if name not in starting and not there[name].get("enabled", True)
    ]
    if lines and last.get("reason") and last["specs"] == {name: one["spec"] for name, one in wanted.items()}:
        lines.append(f"try again what failed the last time: {last['reason']}")
    return {
        "leaving": leaving,
        "replaced": replaced,
        "starting": starting,
        "announcement": lines,
        "unproven": [sentence for name, one in wanted.items() if (sentence := _unproven(one, there.get(name, {})))],
    }


def _unproven(unit: c.Mapping[str, t.Any], state: c.Mapping[str, t.Any]) -> str:
    """Return why an instance is not proven, and what proves it; empty where it is."""
    known = state.get("recorded_spec") == unit["spec"] and "proven" in state
    proven, because = (state["proven"], state["because"]) if known else (unit["proven"], unit["because"])
    remedy = "soak it (playbooks/soak.yml) before you trust it"
    return "" if proven else f"vllm-{unit['name']} is not proven: {because}; {remedy}"


def _serves(state: c.Mapping[str, t.Any], spec: str) -> bool:
    return state.get("active_state") == "active" and state.get("running_spec") == spec


def systemd_word(argument: str) -> str:
    """Return an argument as one word of an Exec line, whatever is in it.

    systemd reads double quotes and backslashes much like a shell, then "%" as a specifier and "$" as a variable
    (systemd.service(5), "COMMAND LINES"; systemd.syntax(7), "QUOTING"). Nothing may be left for it to read.
    """
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
    # Some of them would end the line, and with it the argument, in the unit file.
    escaped = "".join(f"\\x{ord(char):02x}" if ord(char) < 32 or ord(char) == 127 else char for char in escaped)
    escaped = escaped.replace("%", "%%").replace("$", "$$")
    harmless = all(char.isalnum() or char in "-_=./:@,+" for char in argument)
    return escaped if argument and harmless else f'"{escaped}"'
