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
import difflib
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._boot_expectations import EXPECTATIONS
from ansible_collections.gb10.fleet.plugins.plugin_utils import _flag_policy, _speculation, _vllm_cli
from ansible_collections.gb10.fleet.plugins.plugin_utils import _schema as schema
from ansible_collections.gb10.fleet.plugins.plugin_utils._schema import Problem

# systemd unit names, container names and file names all accept this.
_NAME: t.Final = r"[a-z0-9](?:[a-z0-9_.-]{0,61}[a-z0-9])?"
_DEFAULT_PORT: t.Final = 8000
# More is a slip of the finger: activations alone would take the pool many times over.
_MOST_BATCHED: t.Final = 1_048_576
_MODEL_NAME: t.Final = r"[A-Za-z0-9][\w./:+@-]{0,199}"

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
    "spec_method": "speculative.method",
    "spec_model": "speculative.model",
    "spec_tokens": "speculative.num_speculative_tokens",
    "reasoning_parser": "reasoning_parser",
    "tool_call_parser": "tool_call_parser",
    "enable_auto_tool_choice": "tool_call_parser",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "serving_group.pipeline_parallel_size",
    "nnodes": "serving_group",
    "node_rank": "serving_group.ranks",
    "master_addr": "serving_address",
    "master_port": "serving_group.master_port",
    "headless": "serving_group",
    "api_key": "vllm_server_api_key",
    "hf_token": "vllm_server_hf_token",
}
_SECRET_NAME: t.Final = re.compile(
    r"SECRET|PASSW|PASSPHRASE|CREDENTIAL|(?:^|_)TOKEN$|(?:API|ACCESS|PRIVATE|OPENAI|AUTH)_?KEY|(?:^|_)KEY$",
    re.IGNORECASE,
)
_SECRET_VALUE: t.Final = re.compile(
    r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|nvapi-|xox[abp]-|AKIA)[A-Za-z0-9_-]{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]+:[^/\s@]+@"
)


def _no_suffix(value: object) -> str | None:
    """Reject the sizes that people copy from logs: vLLM reads 6G and 6g as different numbers."""
    return "is a size with a unit" if isinstance(value, str) else None


Faults = c.Iterator[tuple[schema.Path, str, str]]
_A_NUMBER: t.Final = ("max_num_batched_tokens",)


def _flag_names(value: dict[t.Any, t.Any]) -> Faults:
    for name, content in value.items():
        plain = str(name).lstrip("-").replace("-", "_").partition(".")[0]
        said = f"sets the flag {str(name)!r}"
        if plain in OWNED_FLAGS:
            owner = OWNED_FLAGS[plain]
            yield (name,), f"{said}, which has a key of its own: {owner}", f"say it with {owner}"
        elif why := _flag_policy.refusal(plain, content):
            yield (name,), f"{said}, which cannot be used: {why}", "remove it"
        elif plain in _A_NUMBER and not _is_batch(content):
            what = f"has {schema.shown(content)} for {name}, which is not a whole number from 1 to {_MOST_BATCHED}"
            yield (name,), what, f"write it like this: {name}: 8192"
        elif str(name).startswith("-"):
            what = f"names the flag {str(name)!r} with its dashes"
            yield (name,), what, f"write {str(name).lstrip('-')}"
        elif plain == "hf_overrides" and (keys := _geometry_of(name, content)):
            what = f"changes {', '.join(keys)} of the checkpoint, which the plan reads from its config.json"
            yield (name,), what, "use a checkpoint whose config.json says so"
    yield from hidden_secrets(value)


def _geometry_of(name: object, content: t.Any) -> list[str]:
    nested: t.Any = _vllm_cli.from_json(content)
    for step in reversed(str(name).split(".")[1:]):
        nested = {step: nested}
    return _flag_policy.geometry_overrides(nested)


def _is_batch(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_BATCHED


def _environment(value: dict[t.Any, t.Any]) -> Faults:
    for name, content in value.items():
        path = (str(name),)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name), re.ASCII):
            yield path, f"has {str(name)!r}, which is not the name of an environment variable", "use letters and digits"
        elif isinstance(content, bool) or not isinstance(content, str | int | float):
            yield path, f"gives {name} {schema.kind_of(content)}", "put the exact text in quotes"
        elif str(content) == "":
            what = f"sets {name} to an empty string, which is not the same as leaving it unset"
            yield path, what, "remove the line"
    yield from hidden_secrets(value)


def hidden_secrets(value: t.Any, path: schema.Path = ()) -> Faults:
    """Yield what looks like a secret, or cannot be seen, at any depth; never the secret itself."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from hidden_secrets(one, (*path, str(key)))
        return
    if isinstance(value, list):
        for one in value:
            yield from hidden_secrets(one, path)
        return
    if not isinstance(value, str):
        return
    name = str(path[-1]) if path else ""
    if schema.control_character(value):
        yield path, f"gives {name} a line break or another control character", "write it in one line that can be read"
    elif _SECRET_NAME.search(name) or _SECRET_VALUE.search(value):
        what = f"has {name!r}, which looks like a secret and would be readable by everyone who may read the unit"
        yield path, what, "put it into vllm_server_secret_env"
    elif isinstance(inside := _vllm_cli.from_json(value), dict | list):
        yield from hidden_secrets(inside, path)


def _speculative(value: dict[t.Any, t.Any]) -> Faults:
    if not value:
        yield (), "is empty, and vLLM dies of that", "leave it out, or write {method: mtp, num_speculative_tokens: 2}"
    for key, what, remedy in _speculation.faults(value):
        yield (key,), what, remedy
    yield from hidden_secrets(value)


_MEASURED: t.Final = ("weights_gib", "overhead_gib", "boot_peak_gib")


def _measured(value: dict[t.Any, t.Any]) -> Faults:
    for name in _MEASURED:
        given = value.get(name)
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if given is not None and not (is_number and 0 <= given < 1e6):
            what = f"has {schema.shown(given)} for {name}, which is not a size in GiB"
            yield (name,), what, f"write it like this: {name}: 21.9"
    for name in value:
        # Whatever was measured may be noted; a misspelt size would be ignored in silence.
        like = difflib.get_close_matches(str(name), _MEASURED, n=1, cutoff=0.85)
        if like and name not in _MEASURED:
            yield (
                (str(name),),
                f"is not read by the plan, which knows {', '.join(_MEASURED)}",
                f"did you mean {like[0]}?",
            )


def _model_names(value: list[t.Any]) -> str | None:
    good = [isinstance(one, str) and re.fullmatch(_MODEL_NAME, one, re.ASCII) for one in value]
    return None if value and all(good) else "is not a list of names without spaces"


def _backend_names(value: list[t.Any]) -> str | None:
    good = [isinstance(one, str) and one.strip() for one in value]
    return None if value and all(good) else "is not a list of names as the boot log writes them"


def _with_check(kind: schema.Kind, check: c.Callable[[t.Any], str | None]) -> schema.Kind:
    return dataclasses.replace(kind, check=check)


def _with_faults(kind: schema.Kind, faults: c.Callable[[t.Any], Faults]) -> schema.Kind:
    return dataclasses.replace(kind, faults=faults)


_CHECKPOINT = schema.mapping(
    "{repo: owner/name, revision: <40 hex digits>}",
    {
        "repo": schema.text(
            "owner/name",
            pattern=r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*",
            meaning="the id of a Hugging Face repository, owner/name",
        ),
        "revision": schema.text(
            "<40 hex digits>",
            pattern=r"(?!0{40})[0-9a-f]{40}",
            meaning="a commit (40 hex digits)",
            remedy="a branch such as main moves under your feet; copy the commit from the repository's history",
        ),
    },
    required=("repo", "revision"),
)
_IMAGE = schema.mapping(
    "{name: registry/image, digest: 'sha256:<64 hex digits>'}",
    {
        "name": schema.text(
            "vllm/vllm-openai",
            pattern=r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*",
            meaning="the name of an image without a tag or digest",
            remedy="a tag can point to another image tomorrow; write name: and digest: as two keys",
        ),
        "digest": schema.text(
            "sha256:<64 hex digits>",
            pattern=r"sha256:(?!0{64})[0-9a-f]{64}",
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
        pattern=r"\d{1,9}(?:\.\d{1,9}){2,3}[\w.+-]{0,60}",
        meaning="a vLLM version",
        remedy='the version inside the image, in quotes, for example "0.32.0"',
    ),
    "kind": schema.text("chat", pattern="chat|base|embedding", meaning="one of chat, base, embedding"),
    "max_model_len": schema.whole("131072", low=1, high=100_000_000),
    "max_num_seqs": schema.whole("8", low=1, high=65536),
    "kv_sequences": schema.whole("8", low=1, high=65536),
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
    "speculative": _with_faults(schema.mapping("{method: mtp, num_speculative_tokens: 2}"), _speculative),
    "reasoning_parser": schema.text("qwen3"),
    "tool_call_parser": schema.text("qwen3_coder"),
    "served_model_name": schema.any_of(
        "coordinator",
        schema.text("coordinator", pattern=_MODEL_NAME, meaning="a name without spaces"),
        schema.Kind(name="a list", types=(list,), example="[coordinator, my-gateway-name]", check=_model_names),
    ),
    "tensor_parallel_size": schema.whole("1", low=1, high=64),
    "args": _with_faults(schema.mapping("{max_num_batched_tokens: 8192}"), _flag_names),
    "env": _with_faults(schema.mapping("{VLLM_LOGGING_LEVEL: INFO}"), _environment),
    "port": _PORT,
    "liveness": schema.flag("false"),
    "restart_after_hours": schema.whole("20", low=1, high=720),
    "expects": schema.mapping(
        "{moe_backend: FLASHINFER_CUTLASS}",
        {
            name: schema.any_of(
                "FLASHINFER_CUTLASS",
                schema.text("FLASHINFER_CUTLASS"),
                schema.Kind(name="a list", types=(list,), example="[TRITON, MARLIN]", check=_backend_names),
            )
            for name in EXPECTATIONS
        },
    ),
    "measured": _with_faults(
        schema.mapping("{weights_gib: 21.9, overhead_gib: 3.1, source: boot log, date: '2026-11-29'}"), _measured
    ),
    "evidence": schema.any_of(
        "[what was run, where and when]", schema.text("a sentence"), schema.sequence("[...]"), schema.mapping("{...}")
    ),
}
_REQUIRED: t.Final = ("checkpoint", "image", "vllm", "max_model_len", "max_num_seqs")

# What an entry of model_roles, or a serving group, may say beside what it overrides of the model role.
ENTRY: t.Final[c.Mapping[str, schema.Kind]] = {
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
            instance = make_instance(entry, catalogue)
            wrong = list(instance_problems(instance, path, entry))
            # What no digest will cure comes first.
            wrong.sort(key=lambda one: not one.what.startswith("tensor_parallel_size"))
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
    yield from schema.problems(entry, schema.mapping("{role: coordinator}", ENTRY), path, partial=True)
    role = entry.get("role")
    if "role" not in entry:
        yield Problem((*path, "role"), "is missing", "add it, for example: role: coordinator", entry)
    if isinstance(role, str) and role.strip() and role not in catalogue:
        yield Problem((*path, "role"), f"there is no model role {role!r}", schema.nearest(role, catalogue), role)


def make_instance(entry: str | dict[str, t.Any], catalogue: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return the complete instance of an entry whose model role exists, its defaults filled in."""
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
        sources = [checkpoint, *_drafter(instance)]
        instance["download"] = [{**one, "image": image["reference"], "env": hub} for one in sources]
    repo = checkpoint.get("repo")
    names = instance.get("served_model_name", [instance["name"], *([repo] if repo else [])])
    instance["served_model_name"] = [names] if isinstance(names, str) else list(names)
    return instance


def _drafter(instance: c.Mapping[str, t.Any]) -> list[dict[str, str]]:
    """Return the drafter's repository and commit, where there is one to download."""
    speculative = instance.get("speculative") or {}
    repo, revision = _speculation.drafter(speculative), speculative.get("revision")
    return [{"repo": repo, "revision": str(revision)}] if repo and revision else []


def instance_problems(
    instance: dict[str, t.Any], path: schema.Path, entry: str | dict[str, t.Any], *, alone: bool = True
) -> c.Iterator[Problem]:
    """Yield what an instance lacks. ``alone`` says that it is to be served by one box."""
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
    yield from _disagreements(instance, path)
    if alone and instance["tensor_parallel_size"] > 1:
        size = instance["tensor_parallel_size"]
        what = f"tensor_parallel_size is {size}, but a box has one GPU"
        remedy = (
            f"choose a model role that fits one box, or make an inventory group of {size} boxes with "
            f"serving_group: {{model_role: {role}, tensor_parallel_size: {size}}} in its group_vars"
        )
        yield Problem(path, what, remedy, entry)


def _disagreements(instance: c.Mapping[str, t.Any], path: schema.Path) -> c.Iterator[Problem]:
    """Yield where the keys of a complete instance do not go together, whatever file each of them comes from."""
    role, args, kind = instance["model_role"], _vllm_cli.plain_args(instance["args"]), instance["kind"]
    speculative = instance.get("speculative") or {}
    for key, why, example in _speculation.lacks(speculative) if speculative else ():
        remedy = f"add to your inventory: model_catalogue: {{{role}: {{speculative: {{{key}: {example}}}}}}}"
        yield Problem((*path, "speculative", key), f"model role {role!r} does not say it; {why}", remedy)
    if (kind == "embedding" and args.get("runner") == "generate") or (
        kind != "embedding" and args.get("runner") == "pooling"
    ):
        what = f"model role {role!r} is of kind {kind}, which an engine with runner {args['runner']} cannot answer as"
        yield Problem((*path, "args", "runner"), what, "change kind, or remove runner")
    if str(instance["env"].get("HF_HUB_OFFLINE", "1")) == "1":
        for flag, place in _flag_policy.remote(args, str(instance.get("checkpoint", {}).get("repo", ""))):
            what = f"{schema.shown(place)} is neither pinned nor downloaded, and an engine asks nobody while it boots"
            yield Problem((*path, "args", flag), what, "use the checkpoint's own, or a folder inside the image")


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
