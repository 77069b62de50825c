# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Says what a vLLM release will make of a command line, before anything is started.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.plugin_utils import _config_rules
from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_catalogue as catalogues
from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_cli as cli
from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_parser as reader
from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_values import size

if t.TYPE_CHECKING:
    import collections.abc as c

    from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_catalogue import Catalogue
    from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_parser import Fault, Parsed

_NOTES: t.Final = pathlib.Path(__file__).parent / "data" / "vllm_notes.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Lint:
    """What a release makes of a command line. ``parses`` is None where no release can answer for the version."""

    parses: bool | None
    findings: tuple[Finding, ...]
    release: str
    exact: bool

    def as_dict(self) -> dict[str, t.Any]:
        """Return the answer as plain data."""
        findings = [finding.as_dict() for finding in self.findings]
        return {"parses": self.parses, "findings": findings, "release": self.release, "exact": self.exact}


def lint_args(version: str, words: c.Sequence[str], env: c.Mapping[str, str] | None = None) -> Lint:
    """Read a command line with the parser of a version, and its environment with the names that the version knows."""
    try:
        catalogue, exact = catalogues.catalogue_for(version)
    except catalogues.UnknownVersionError as error:
        finding = Finding("VLLM_VERSION_UNKNOWN", "error", str(error), version, "Nothing was checked.")
        return Lint(None, (finding,), "", False)
    env = env or {}
    parsed = reader.parse(catalogue, words, env)
    findings = [] if exact else [_not_exact(version, catalogue)]
    findings += [_fault_finding(fault, version, catalogue) for fault in parsed.faults]
    findings += _config_rules.refused(parsed, version, catalogue)
    findings += _spelling_findings(parsed, catalogue)
    findings += _name_findings(parsed, version, catalogue)
    findings += _env_findings(env, version, catalogue, is_strict=bool(parsed.value("--fail-on-environ-validation")))
    return Lint(not parsed.faults, tuple(findings), catalogue.version, exact)


def lint_instance(instance: c.Mapping[str, t.Any]) -> Lint:
    """Write an instance's command line and lint it with the instance's environment."""
    env = {str(name): str(value) for name, value in (instance.get("env") or {}).items()}
    try:
        words = cli.render_args(instance)
    except cli.FlagError as error:
        rest = lint_args(str(instance["vllm"]), error.words, env)
        has_answer = rest.parses is not None
        findings = (*error.findings, *(one for one in rest.findings if has_answer))
        return Lint(False if has_answer else None, findings, rest.release, rest.exact)
    return lint_args(str(instance["vllm"]), words, env)


def _not_exact(version: str, catalogue: Catalogue) -> Finding:
    message = (
        f"The flags of vLLM {version} are not known; those of {catalogue.version}, the nearest lower release, stand in."
    )
    remedy = (
        "A flag that was added or removed in between is judged wrongly: trust `vllm serve --help=all` of the image."
    )
    return Finding("VLLM_VERSION_NEAREST", "warning", message, version, remedy)


# --- what stops the parser -------------------------------------------------------------------------------------------


def _fault_finding(fault: Fault, version: str, catalogue: Catalogue) -> Finding:
    if fault.kind == "unknown":
        return _unknown(fault.flag, version)
    if fault.kind == "ambiguous":
        message = f"{fault.flag} is short for several flags of vLLM {version}: {fault.reason}."
        return Finding("FLAG_AMBIGUOUS", "error", message, fault.flag, "Write the flag in full.")
    if fault.kind == "rule":
        message = f"vLLM {version} refuses {fault.flag}: {fault.reason}."
        return Finding("FLAG_COMBINATION_INVALID", "error", message, fault.flag, "Give both, or neither.")
    if fault.kind == "value":
        message = f"vLLM {version} does not take this value of {fault.flag}: {fault.reason}."
        return Finding("FLAG_VALUE_INVALID", "error", message, fault.flag, _value_remedy(fault, catalogue))
    message = f"vLLM {version} cannot read {fault.flag or 'the command line'}: {fault.reason}."
    return Finding("FLAG_USAGE_INVALID", "error", message, fault.flag)


def _unknown(word: str, version: str) -> Finding:
    if not word.startswith("-"):
        message = f"vLLM {version} does not know what to do with {word!r}: it follows no flag that takes a value."
        return Finding(
            "FLAG_USAGE_INVALID", "error", message, word, "Remove it; a switch such as --enforce-eager takes no value."
        )
    finding = cli.missing_flag(word, version)
    note = notes()["flags"].get(finding.evidence)
    if note is None:
        return finding
    if note.get("fork") and finding.id == "FLAG_UNKNOWN":
        message = f"vLLM {version} has no flag {finding.evidence}: only {note['fork']} has it."
        finding = dataclasses.replace(finding, id="FLAG_ONLY_IN_FORK", message=message)
    return dataclasses.replace(finding, remedy=note.get("remedy") or finding.remedy)


def _value_remedy(fault: Fault, catalogue: Catalogue) -> str:
    """Say which releases take the word, where it is a choice that others have, or which choice is like it."""
    match = re.match(r"'([^']+)' is not one of", fault.reason)
    flag = catalogue.flags.get(fault.flag)
    if not match or flag is None or flag.choices is None:
        return ""
    word = match[1].lower().replace("-", "_") if flag.kind == "backend_name" else match[1]
    with_it = [one for one in catalogues.releases() if word in _choices(one, fault.flag)]
    if with_it:
        return f"vLLM {with_it[0]} to {with_it[-1]} take it: use one of those, or another value."
    like = catalogues.nearest(word, (str(one) for one in flag.choices if one))
    return f"Did you mean {like}?" if like else ""


def _choices(release: str, name: str) -> tuple[t.Any, ...]:
    flag = catalogues.load(release).flags.get(name)
    return flag.choices or () if flag else ()


# --- what the parser takes, and a reader should know -----------------------------------------------------------------


def _spelling_findings(parsed: Parsed, catalogue: Catalogue) -> list[Finding]:
    found = []
    for written, full in parsed.abbreviated:
        message = f"{written} is taken for {full}, of which it is the beginning; another release may take it otherwise."
        found.append(Finding("FLAG_ABBREVIATED", "warning", message, written, f"Write {full}."))
    counted: dict[str, int] = {}
    for use in parsed.uses:
        if isinstance(use.written, str) and re.fullmatch(r"\d+[kmgtKMGT]", use.written) and isinstance(use.value, int):
            other = size(use.written.swapcase())
            message = f"{use.flag.name} {use.written} is {use.value}; {use.written.swapcase()} would be {other}."
            found.append(Finding("SIZE_SUFFIX", "info", message, use.flag.name, "Write the plain number."))
        counted[use.flag.name] = counted.get(use.flag.name, 0) + (use.flag.action != "append")
        if use.flag.deprecated and counted[use.flag.name] == 1:
            message = f"vLLM {catalogue.version} still takes {use.flag.name}, but calls it deprecated."
            found.append(Finding("FLAG_DEPRECATED", "info", message, use.spelling))
    for name, times in counted.items():
        if times > 1:
            message = f"{name} is given {times} times; the last one counts."
            found.append(Finding("FLAG_TWICE", "warning", message, name, "Give it once."))
    return found


def _name_findings(parsed: Parsed, version: str, catalogue: Catalogue) -> list[Finding]:
    """Check the names that argparse does not: the server would die on them seconds or minutes after its start."""
    lists = (
        ("--tool-call-parser", "tool_parsers", "PARSER_UNKNOWN", "--tool-parser-plugin", False),
        ("--reasoning-parser", "reasoning_parsers", "PARSER_UNKNOWN", "--reasoning-parser-plugin", False),
        ("--quantization", "quantization", "QUANTIZATION_UNKNOWN", "", False),
        ("--attention-backend", "attention_backends", "ATTENTION_BACKEND_UNKNOWN", "", True),
        ("--kv-cache-dtype", "kv_cache_dtypes", "KV_CACHE_DTYPE_UNKNOWN", "", False),
    )
    found = []
    faulty = {fault.flag for fault in parsed.faults}
    for flag, attribute, identity, plugin, is_any_case in lists:
        value, known = parsed.value(flag), getattr(catalogue, attribute)
        if not value or known is None or not isinstance(value, str) or flag in faulty:
            continue
        name = value.split(".", 1)[0].upper() if is_any_case else value
        if name in known or (is_any_case and name == "AUTO"):
            continue
        if plugin and parsed.value(plugin):
            message = f"{value!r} is not a name that vLLM {version} registers for {flag}; {plugin} may bring it."
            found.append(Finding(identity, "info", message, f"{flag} {value}"))
            continue
        message = (
            f"vLLM {version} has no {value!r} for {flag}; its parser takes the word, but the server will not start."
        )
        found.append(Finding(identity, "error", message, f"{flag} {value}", _name_remedy(name, attribute, known)))
    return found


def _name_remedy(name: str, attribute: str, known: frozenset[str]) -> str:
    with_it = [one for one in catalogues.releases() if name in (getattr(catalogues.load(one), attribute) or ())]
    if with_it:
        return f"vLLM {with_it[0]} to {with_it[-1]} have it."
    other = {"tool_parsers": "reasoning_parsers", "reasoning_parsers": "tool_parsers"}.get(attribute, "")
    newest = catalogues.load(catalogues.releases()[-1])
    if other and name in (getattr(newest, other) or ()):
        kind = other.replace("_parsers", "")
        return f"There is a {kind} parser of that name, but none of this kind."
    like = catalogues.nearest(name, known)
    return f"Did you mean {like}?" if like else f"It knows {', '.join(sorted(known))}."


def _env_findings(env: c.Mapping[str, str], version: str, catalogue: Catalogue, *, is_strict: bool) -> list[Finding]:
    found = []
    for name in sorted(env):
        if not name.startswith("VLLM_") or catalogue.env is None or name in catalogue.env:
            continue
        severity: t.Literal["error", "warning"] = "error" if is_strict else "warning"
        note = notes()["env"].get(name, {})
        first, last = env_lifetimes().get(name, ("", ""))
        remedy = note.get("remedy") or "Remove it."
        if not first:
            like = catalogues.nearest(name, catalogue.env)
            fork = f" Only {note['fork']} has it." if note.get("fork") else ""
            message = f"vLLM {version} does not read {name}, nor does any release whose names are known.{fork}"
            remedy = note.get("remedy") or (f"Did you mean {like}?" if like else remedy)
            found.append(Finding("ENV_UNKNOWN", severity, message, name, remedy))
        elif catalogues.version_key(last) < catalogues.version_key(catalogue.version):
            message = f"vLLM {version} does not read {name} any more: {last} was the last release that did."
            found.append(Finding("ENV_REMOVED", severity, message, name, remedy))
        else:
            message = f"vLLM {version} does not read {name} yet: {first} is the first release that does."
            found.append(Finding("ENV_TOO_NEW", severity, message, name, note.get("remedy") or "Use a newer image."))
    return found


@functools.cache
def env_lifetimes() -> dict[str, tuple[str, str]]:
    """Return for each VLLM_ variable ever known the first and the last release that reads it."""
    found: dict[str, tuple[str, str]] = {}
    for release in catalogues.releases():
        for name in catalogues.load(release).env or ():
            found[name] = (found.get(name, (release, release))[0], release)
    return found


@functools.cache
def notes() -> dict[str, dict[str, dict[str, str]]]:
    """Return what is known of flags and variables beyond the releases' own lists, each with its source."""
    found: dict[str, dict[str, dict[str, str]]] = json.loads(_NOTES.read_text(encoding="utf-8"))
    return found
