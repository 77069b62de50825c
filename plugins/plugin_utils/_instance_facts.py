# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The facts about an instance that claims are judged by.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import functools
import pathlib
import re
import typing as t

import yaml

from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_catalogue as catalogues
from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_cli as cli
from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_parser as reader

_FAMILIES: t.Final = pathlib.Path(__file__).parent / "data" / "families.yml"
_SPEC_KINDS: t.Final = (("mtp", "mtp"), ("ngram", "ngram"), ("dflash", "dflash"), ("eagle", "eagle"))
_DEFAULT_GRAPHS: t.Final = "FULL_AND_PIECEWISE"


@functools.cache
def families() -> tuple[dict[str, t.Any], ...]:
    """Return what is known of model families, the more specific names first."""
    return tuple(yaml.safe_load(_FAMILIES.read_text(encoding="utf-8")))


def family_of(repo: str) -> dict[str, t.Any] | None:
    """Return the family that a repository's name belongs to, or None where it belongs to none that is known."""
    return next((one for one in families() if re.search(one["matches"], repo, re.IGNORECASE)), None)


def instance_facts(instance: c.Mapping[str, t.Any], more: c.Mapping[str, t.Any] | None = None) -> dict[str, t.Any]:
    """Return the facts of an instance. ``more`` adds what was observed: driver, kernel, scheme, reported_vllm, ..."""
    try:
        words = cli.render_args(instance)
    except cli.FlagError as error:
        # The linter says what is wrong with the flags; claims are judged by those that are right.
        words = list(error.words)
    env = {str(name): str(value) for name, value in (instance.get("env") or {}).items()}
    facts = command_facts(str(instance["vllm"]), words, env)
    image = instance.get("image") or {}
    if image:
        facts["image"] = {"name": image.get("name"), "digest": image.get("digest"), "tag": image.get("tag")}
    if instance.get("serving_group") or instance.get("tensor_parallel_size"):
        facts["nodes"] = int(instance.get("nodes") or instance.get("tensor_parallel_size") or 1)
    if instance.get("fabric_state"):
        facts["fabric"] = {"state": str(instance["fabric_state"])}
    facts["kind"] = instance.get("kind", facts["kind"])
    if instance.get("restart_after_hours"):
        facts["daily_restart"] = int(instance["restart_after_hours"]) <= 24
    return with_observed(facts, more or {})


def with_observed(facts: c.Mapping[str, t.Any], observed: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return facts with what was observed laid over them, and what follows from both.

    ``observed`` may hold driver, kernel, nodes, reported_vllm, gateway (wants, served), daily_restart, and checkpoint,
    the result of checkpoint_info.
    """
    known = dict(facts) | {key: value for key, value in observed.items() if value is not None}
    known |= _checkpoint(known.pop("checkpoint", None) or {})
    reported = known.get("reported_vllm")
    if reported:
        known["version_matches"] = _same_version(str(reported), str(known["vllm"]))
    gateway = known.get("gateway")
    if isinstance(gateway, c.Mapping) and "wants" in gateway and "served" in gateway:
        known["gateway"] = {**gateway, "is_served": gateway["wants"] in gateway["served"]}
    return known


def _checkpoint(found: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    parts = found.get("parts") or {}
    details = (found.get("part_details") or {}).get("experts") or {}
    spellings = [str(one.get("spelling", "")).lower() for one in details.get("schemes", [])]
    facts = {
        "scheme": found.get("scheme"),
        "draft_scheme": parts.get("draft"),
        "lm_head_scheme": parts.get("lm_head"),
        "expert_schemes": sorted({word.split(" ")[0].rstrip(",") for word in spellings if word}) or None,
        "kv_scales": (found.get("kv_cache") or {}).get("calibrated"),
    }
    return {key: value for key, value in facts.items() if value is not None}


def _same_version(one: str, other: str) -> bool:
    try:
        return catalogues.version_key(one) == catalogues.version_key(other)
    except catalogues.UnknownVersionError:
        return one == other


def command_facts(version: str, words: c.Sequence[str], env: c.Mapping[str, str]) -> dict[str, t.Any]:
    """Return the facts that a command line and its environment state by themselves."""
    facts: dict[str, t.Any] = {"vllm": version, "env": dict(env), "flags": {}, "spec": {}, "kind": "chat"}
    # A command line alone is part of no fabric that is known here.
    facts["fabric"] = {}
    try:
        catalogue, _exact = catalogues.catalogue_for(version)
    except catalogues.UnknownVersionError:
        return facts
    parsed = reader.parse(catalogue, words, env)
    flags = {use.flag.name.removeprefix("--").replace("-", "_"): use.value for use in parsed.uses}
    facts["flags"] = flags
    facts["spec"] = _spec(flags.get("speculative_config"))
    facts["model"] = _model(parsed.model or flags.get("model"))
    facts["graphs"] = _graphs(flags, facts["spec"])
    facts["parsers"] = _parsers(flags, facts["model"])
    is_pooling = flags.get("runner") == "pooling" or facts["model"].get("family") == "qwen3-embedding"
    facts["kind"] = "embedding" if is_pooling else "chat"
    return facts


def _spec(config: t.Any) -> dict[str, t.Any]:
    if not isinstance(config, c.Mapping):
        return {}
    method = str(config.get("method", "")).lower()
    kind = next((kind for part, kind in _SPEC_KINDS if part in method), method or "draft_model")
    return {**config, "kind": kind}


def _model(repo: t.Any) -> dict[str, t.Any]:
    if not isinstance(repo, str):
        return {}
    family = family_of(repo) or {}
    return {
        "repo": repo,
        "family": family.get("family"),
        "hybrid": family.get("hybrid"),
        "tool_parsers": family.get("tool_parsers"),
        "reasoning_parsers": family.get("reasoning_parsers"),
    }


def _parsers(flags: c.Mapping[str, t.Any], model: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return whether the parsers are of the model's family; None where either is not known."""
    found: dict[str, t.Any] = {}
    for kind, flag in (("tool", "tool_call_parser"), ("reasoning", "reasoning_parser")):
        suited, given = model.get(f"{kind}_parsers"), flags.get(flag)
        found[f"{kind}_fits"] = None if not given or suited is None else given in suited
        found[f"{kind}_suggested"] = suited[0] if suited else "none"
    return found


def _graphs(flags: c.Mapping[str, t.Any], spec: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return how CUDA graphs are captured: the mode, the largest batch captured, and the largest batch to come."""
    config = flags.get("compilation_config")
    config = config if isinstance(config, c.Mapping) else {}
    mode = str(config.get("cudagraph_mode") or _DEFAULT_GRAPHS).upper()
    if flags.get("enforce_eager"):
        mode = "NONE"
    sizes = flags.get("cudagraph_capture_sizes") or config.get("cudagraph_capture_sizes")
    largest = flags.get("max_cudagraph_capture_size") or config.get("max_cudagraph_capture_size")
    if isinstance(sizes, list) and sizes:
        largest = max(int(size) for size in sizes)
    seqs = flags.get("max_num_seqs")
    drafts = spec.get("num_speculative_tokens") or 0
    needed = int(seqs) * (int(drafts) + 1) if seqs is not None else None
    return {"mode": mode, "full": "FULL" in mode, "largest": largest, "needed": needed}
