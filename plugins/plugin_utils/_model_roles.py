# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Model roles: the catalogue that describes them, and the instances that an inventory makes of them.

A box's inventory says ``model_roles: [coordinator]``. This file turns that into one complete instance per entry
(the shipped catalogue, the user's ``model_catalogue`` over it, the entry's own keys over both), or into a list of
everything that is wrong with it. It is pure: no host, no file, no clock.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import copy
import dataclasses
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.plugin_utils import _schema as schema
from ansible_collections.gb10.fleet.plugins.plugin_utils._schema import Problem

# systemd unit names, container names and file names all accept this.
_NAME: t.Final = r"[a-z0-9](?:[a-z0-9_.-]{0,61}[a-z0-9])?"
_DEFAULT_PORT: t.Final = 8000

# vLLM flags that the collection writes itself; in "args" they would be given twice.
OWNED_FLAGS: t.Final[c.Mapping[str, str]] = {
    "model": "checkpoint.repo",
    "revision": "checkpoint.revision",
    "tokenizer_revision": "checkpoint.revision",
    "host": "vllm_server_listen_address",
    "port": "port",
    "served_model_name": "served_model_name",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "kv_cache_dtype": "kv_cache_dtype",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "speculative_config": "speculative",
    "reasoning_parser": "reasoning_parser",
    "tool_call_parser": "tool_call_parser",
    "enable_auto_tool_choice": "tool_call_parser",
    "tensor_parallel_size": "tensor_parallel_size",
    "api_key": "vllm_server_api_key",
    "hf_token": "vllm_server_hf_token",
}
_SECRET_NAME: t.Final = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|APIKEY|PRIVATE_KEY)$")


def _no_suffix(value: object) -> str | None:
    """Reject the sizes that people copy from logs: vLLM reads 6G and 6g as different numbers."""
    return "is a size with a unit" if isinstance(value, str) else None


def _flag_names(value: dict[t.Any, t.Any]) -> str | None:
    for name in value:
        plain = str(name).lstrip("-").replace("-", "_")
        if plain in OWNED_FLAGS:
            return f"sets the flag {name!r}, which has a key of its own: {OWNED_FLAGS[plain]}"
        if str(name).startswith("-"):
            return f"names the flag {name!r} with its dashes; write {str(name).lstrip('-')}"
    return None


def _environment(value: dict[t.Any, t.Any]) -> str | None:
    for name, content in value.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
            return f"has {name!r}, which is not the name of an environment variable"
        if _SECRET_NAME.search(str(name).upper()):
            return (
                f"has {name!r}, which looks like a secret and would be readable by everyone who may read the unit; "
                "put it into vllm_server_secret_env"
            )
        if isinstance(content, bool) or not isinstance(content, str | int | float):
            return f"gives {name} {schema.kind_of(content)}; put the exact text in quotes"
        if "\n" in str(content):
            return f"gives {name} more than one line"
        if str(content) == "":
            return f"sets {name} to an empty string, which is not the same as leaving it unset; remove the line"
    return None


def _with_check(kind: schema.Kind, check: c.Callable[[t.Any], str | None]) -> schema.Kind:
    return dataclasses.replace(kind, check=check)


_CHECKPOINT = schema.mapping(
    "{repo: nvidia/Qwen3.6-35B-A3B-NVFP4, revision: <40 hex digits>}",
    {
        "repo": schema.text(
            "nvidia/Qwen3.6-35B-A3B-NVFP4",
            pattern=r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*",
            meaning="the id of a Hugging Face repository, owner/name",
        ),
        "revision": schema.text(
            "0123456789abcdef0123456789abcdef01234567",
            pattern=r"[0-9a-f]{40}",
            meaning="a commit (40 hex digits)",
            remedy="a branch such as main moves under your feet; copy the commit from the repository's history",
        ),
    },
    required=("repo", "revision"),
)
_IMAGE = schema.mapping(
    "{name: vllm/vllm-openai, digest: 'sha256:<64 hex digits>'}",
    {
        "name": schema.text(
            "vllm/vllm-openai",
            pattern=r"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*",
            meaning="the name of an image without a tag or digest",
            remedy="a tag can point to another image tomorrow; write name: and digest: as two keys",
        ),
        "digest": schema.text(
            "sha256:<64 hex digits>",
            pattern=r"sha256:[0-9a-f]{64}",
            meaning="a digest (sha256: and 64 hex digits)",
            remedy="`docker buildx imagetools inspect NAME:TAG` prints the digest of a tag",
        ),
    },
    required=("name",),
)
_PORT = schema.whole("8000", low=1024, high=65535)

# One model role. The keys of the design; "port" and the two memory numbers may also be given per box.
MODEL_ROLE: t.Final[c.Mapping[str, schema.Kind]] = {
    "description": schema.text("answers the team's questions"),
    "checkpoint": _CHECKPOINT,
    "image": _IMAGE,
    "vllm": schema.text(
        '"0.32.0"',
        pattern=r"\d+\.\d+\.\d+(?:[.+-]?\w+)*",
        meaning="a vLLM version",
        remedy='the version inside the image, in quotes, for example "0.32.0"',
    ),
    "kind": schema.text("chat", pattern="chat|base|embedding", meaning="one of chat, base, embedding"),
    "max_model_len": schema.whole("131072", low=1, high=100_000_000),
    "max_num_seqs": schema.whole("8", low=1, high=65536),
    "kv_cache_dtype": schema.text("fp8"),
    "kv_cache_memory_bytes": _with_check(
        schema.Kind(
            name="a whole number of bytes",
            types=(int, str),
            example="17179869184",
            remedy="vLLM reads 6G and 6g as different numbers; write plain bytes, for example 17179869184",
        ),
        lambda value: _no_suffix(value) or (None if value > 0 else "is not above 0"),
    ),
    "gpu_memory_utilization": schema.fraction("0.6", high=1.0),
    "speculative": schema.mapping("{method: mtp, num_speculative_tokens: 2}"),
    "reasoning_parser": schema.text("qwen3"),
    "tool_call_parser": schema.text("qwen3_coder"),
    "served_model_name": schema.any_of(
        "coordinator", schema.text("coordinator"), schema.sequence("[coordinator, my-gateway-name]")
    ),
    "tensor_parallel_size": schema.whole("1", low=1, high=64),
    "args": _with_check(schema.mapping("{max_num_batched_tokens: 8192}"), _flag_names),
    "env": _with_check(schema.mapping("{VLLM_LOGGING_LEVEL: INFO}"), _environment),
    "port": _PORT,
    "expects": schema.mapping("{moe_backend: FLASHINFER_CUTLASS}"),
    "measured": schema.mapping("{weights_gib: 21.9, overhead_gib: 3.1, source: boot log, date: '2026-11-29'}"),
    "evidence": schema.any_of(
        "[what was run, where and when]", schema.text("a sentence"), schema.sequence("[...]"), schema.mapping("{...}")
    ),
}
_REQUIRED: t.Final = ("checkpoint", "image", "vllm", "max_model_len", "max_num_seqs")

# What an entry of model_roles may say beside what it overrides of the model role.
_ENTRY: t.Final[c.Mapping[str, schema.Kind]] = {
    **MODEL_ROLE,
    "role": schema.text("coordinator"),
    "name": schema.text(
        "coordinator",
        pattern=_NAME,
        meaning="a name of lower-case letters, digits, dots, dashes and underscores",
        remedy="it becomes the name of a systemd unit and a container: vllm-<name>",
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Resolved:
    """What an inventory makes of a box: its instances (plain data), or the problems that forbid them."""

    instances: tuple[dict[str, t.Any], ...]
    problems: tuple[Problem, ...]


def catalogue_problems(user: object, shipped: c.Mapping[str, t.Any]) -> c.Iterator[Problem]:
    """Yield what is wrong with the user's ``model_catalogue``, used or not."""
    if not isinstance(user, dict):
        what = f"{schema.shown(user)} is {schema.kind_of(user)}, not a mapping of model roles"
        yield Problem(("model_catalogue",), what, "write it like this: model_catalogue: {my-role: {checkpoint: ...}}")
        return
    for name, model_role in user.items():
        path = ("model_catalogue", str(name))
        if not isinstance(name, str) or not re.fullmatch(_NAME, name):
            yield Problem(
                path, f"{name!r} cannot be the name of a model role", "use lower-case letters, digits and dashes", name
            )
            continue
        kind = schema.mapping("{checkpoint: ...}", MODEL_ROLE, _REQUIRED)
        yield from schema.problems(model_role, kind, path, partial=name in shipped)


def merged(base: c.Mapping[str, t.Any], over: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return ``base`` with ``over`` laid upon it: mappings key by key, everything else as a whole."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def merged_catalogue(shipped: c.Mapping[str, t.Any], user: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return the catalogue that counts: the user's model roles laid over the shipped ones."""
    return {
        name: merged(shipped.get(name, {}), user.get(name, {})) if name in user else shipped[name]
        for name in (*shipped, *(one for one in user if one not in shipped))
    }


def resolve(model_roles: object, catalogue: c.Mapping[str, t.Any]) -> Resolved:
    """Return the instances of one box, or everything that is wrong with its ``model_roles``."""
    if not isinstance(model_roles, list):
        what = f"{schema.shown(model_roles)} is {schema.kind_of(model_roles)}, not a list"
        return Resolved((), (Problem(("model_roles",), what, "write model_roles: [coordinator]", model_roles),))
    found: list[Problem] = []
    instances: list[dict[str, t.Any]] = []
    for index, entry in enumerate(model_roles):
        path: schema.Path = ("model_roles", index)
        wrong = list(_entry_problems(entry, catalogue, path))
        if not wrong:
            instance = _instance(entry, catalogue)
            wrong = list(_instance_problems(instance, path, entry))
            instances.append(instance)
        found += wrong
    if not found:
        found += _clashes(instances, model_roles)
    return Resolved(() if found else tuple(instances), tuple(found))


def _entry_problems(entry: object, catalogue: c.Mapping[str, t.Any], path: schema.Path) -> c.Iterator[Problem]:
    if isinstance(entry, str):
        if entry not in catalogue:
            yield Problem(path, f"there is no model role {entry!r}", schema.nearest(entry, catalogue), entry)
        return
    if not isinstance(entry, dict):
        what = f"{schema.shown(entry)} is {schema.kind_of(entry)}, not the name of a model role or a mapping"
        yield Problem(path, what, "write coordinator, or {role: coordinator, port: 8000}", entry)
        return
    yield from schema.problems(entry, schema.mapping("{role: coordinator}", _ENTRY), path, partial=True)
    role = entry.get("role")
    if "role" not in entry:
        yield Problem((*path, "role"), "is missing", "add it, for example: role: coordinator", entry)
    if isinstance(role, str) and role.strip() and role not in catalogue:
        yield Problem((*path, "role"), f"there is no model role {role!r}", schema.nearest(role, catalogue), role)


def _instance(entry: str | dict[str, t.Any], catalogue: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    own: dict[str, t.Any] = {"role": entry} if isinstance(entry, str) else entry
    role = str(own["role"])
    over = {key: value for key, value in own.items() if key not in {"role", "name"}}
    instance = merged(copy.deepcopy(catalogue[role]), over)
    instance["model_role"] = role
    instance["name"] = str(own.get("name", role))
    instance.setdefault("kind", "chat")
    instance.setdefault("port", _DEFAULT_PORT)
    instance.setdefault("tensor_parallel_size", 1)
    instance.setdefault("args", {})
    instance.setdefault("env", {})
    instance.setdefault("expects", {})
    instance.setdefault("measured", {})
    image, checkpoint = instance.get("image", {}), instance.get("checkpoint", {})
    if image.keys() >= {"name", "digest"}:
        image["reference"] = f"{image['name']}@{image['digest']}"
        # What the role model_store brings onto the box, and with which library.
        hub = {name: value for name, value in instance["env"].items() if name.startswith("HF_")}
        instance["download"] = {**checkpoint, "image": image["reference"], "env": hub}
    repo = checkpoint.get("repo")
    names = instance.get("served_model_name", [instance["name"], *([repo] if repo else [])])
    instance["served_model_name"] = [names] if isinstance(names, str) else list(names)
    return instance


def _instance_problems(
    instance: dict[str, t.Any], path: schema.Path, entry: str | dict[str, t.Any]
) -> c.Iterator[Problem]:
    role = instance["model_role"]
    for key in _REQUIRED:
        kind = MODEL_ROLE[key]
        if key not in instance:
            remedy = f"add to your inventory: model_catalogue: {{{role}: {{{key}: {kind.example}}}}}"
            yield Problem(path, f"model role {role!r} does not say {key}", remedy, entry)
            continue
        for name in sorted(kind.required - set(instance[key]) if kind.keys else ()):
            example = (kind.keys or {})[name].example
            remedy = f"add to your inventory: model_catalogue: {{{role}: {{{key}: {{{name}: '{example}'}}}}}}"
            yield Problem(path, f"model role {role!r} does not say {key}.{name}", remedy, entry)
    image = instance.get("image", {})
    if image and "digest" not in image:
        what = f"model role {role!r} names the image {image.get('name')} without a digest, and a tag alone can move"
        remedy = f"add to your inventory: model_catalogue: {{{role}: {{image: {{digest: 'sha256:...'}}}}}}"
        yield Problem(path, what, remedy, entry)
    if instance["tensor_parallel_size"] > 1:
        what = (
            f"tensor_parallel_size is {instance['tensor_parallel_size']}, but a box has one GPU, so this model role "
            "needs a serving group"
        )
        yield Problem(
            path,
            what,
            "put the boxes into a group with serving_group: in its group_vars, or choose another role",
            entry,
        )


def _clashes(instances: c.Sequence[dict[str, t.Any]], entries: c.Sequence[t.Any]) -> c.Iterator[Problem]:
    remedies = {
        "name": "give one of them a name: of its own, for example {{role: {role}, name: {name}-2}}",
        "port": "give one of them a port: of its own, for example {{role: {role}, port: {port_after}}}",
    }
    for key, remedy in remedies.items():
        first: dict[object, int] = {}
        for index, instance in enumerate(instances):
            value = instance[key]
            if value not in first:
                first[value] = index
                continue
            what = f"{key} {value} is taken by model_roles[{first[value]}] ({instances[first[value]]['name']}) already"
            advice = remedy.format(
                role=instance["model_role"], name=instance["name"], port_after=max(i["port"] for i in instances) + 1
            )
            yield Problem(("model_roles", index, key), what, advice, entries[index])
