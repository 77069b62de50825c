# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads a command line as the parser of one vLLM release does.

vLLM rewrites the words first ("_" becomes "-", --a.b becomes JSON), then Python's argparse reads them: prefixes,
"=", repeated values and all. So the words are rewritten here by the same rules, and a real argparse reads them, with
the flags of the release's catalogue. The release's own checks come last.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_catalogue as catalogues
from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_values as values

if t.TYPE_CHECKING:
    import collections.abc as c

    from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_catalogue import Catalogue, Flag

_BEFORE_DOT: t.Final = re.compile(r"(?<=--)[^.]*")
# A checkpoint's repository or folder, and not a value of a flag.
_MODEL: t.Final = re.compile(r"(?:[\w.-]+/[\w.-]+|[~.]?/\S*)$")
_PLACEHOLDER: t.Final = "MODEL"
_LEVELS: t.Final = frozenset({"0", "1", "2", "3"})


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """Why the parser would not take a command line. ``kind`` is unknown, value, ambiguous, usage or rule."""

    kind: t.Literal["unknown", "value", "ambiguous", "usage", "rule"]
    flag: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """One flag as it stands on a command line: the flag, the spelling that matched, the value, and what was written."""

    flag: Flag
    spelling: str
    value: t.Any
    written: t.Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Parsed:
    """A command line, read: the uses of flags in their order, the model, and every fault."""

    uses: tuple[Use, ...]
    faults: tuple[Fault, ...]
    model: str | None
    abbreviated: tuple[tuple[str, str], ...]
    """Flags that were matched by a prefix only: what was written, and the flag that it is taken for."""

    def value(self, name: str) -> t.Any:
        """Return the value that the flag has in the end, or None where it is not given."""
        return next((use.value for use in reversed(self.uses) if use.flag.name == name), None)


class _RejectedError(Exception):
    """argparse gave up."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> t.NoReturn:
        raise _RejectedError(message)

    def exit(self, status: int = 0, message: str | None = None) -> t.NoReturn:
        raise _RejectedError(message or f"exits with {status}")


class _Note(argparse.Action):
    """Notes the use of a flag instead of storing a value."""

    flag: Flag

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: t.Any, spelling: str | None = None
    ) -> None:
        if self.flag.action == "help":
            raise _RejectedError("it prints the help and exits")
        if self.flag.action in {"bool", "true", "false"}:
            value = (spelling not in self.flag.off) == (self.flag.action != "false")
        namespace.uses.append((self.flag, spelling or "", value))


@functools.lru_cache(maxsize=8)
def _parser(release: str) -> _Parser:
    catalogue = catalogues.load(release)
    parser = _Parser(prog="vllm serve", add_help=False)
    parser.add_argument("model_tag", nargs="?")
    for flag in catalogue.flags.values():
        takes_none = flag.action in {"bool", "true", "false", "help"}
        options: dict[str, t.Any] = {"nargs": 0 if takes_none else flag.nargs, "default": argparse.SUPPRESS}
        if flag.const is not None:
            options["const"] = flag.const
        action = t.cast(
            "_Note", parser.add_argument(*flag.spellings, dest=flag.name, action=_Note, metavar=flag.name, **options)
        )
        action.flag = flag
    return parser


def parse(catalogue: Catalogue, words: c.Sequence[str], env: c.Mapping[str, str] | None = None) -> Parsed:
    """Read the words that follow ``vllm serve`` (or start with it).

    Words that begin with a flag are read as if the model stood before them, unless one of them looks like a model: else
    argparse would take the first stray word, such as the "true" of ``--enforce-eager true``, for the model.
    """
    faults: list[Fault] = []
    rest = list(words)
    if rest[:1] == ["vllm"]:
        rest = rest[1:]
    if rest[:1] == ["serve"]:
        rest, faults = _serve(rest, catalogue)
    elif (not rest or rest[0][:1] in {"", "-"}) and not any(_MODEL.match(word) for word in rest):
        rest = [_PLACEHOLDER, *rest]
    try:
        rest = rewrite(rest, catalogue)
    except (RecursionError, ValueError) as error:
        return Parsed((), (*faults, Fault("usage", "", str(error))), None, ())
    parser = _parser(catalogue.version)
    namespace = argparse.Namespace(uses=[], model_tag=None)
    extra: list[str] = []
    try:
        _namespace, extra = parser.parse_known_args(rest, namespace)
    except _RejectedError as error:
        faults.append(_fault(str(error)))
    faults += [Fault("unknown", word, "") for word in _unknown(extra)]
    uses = [_converted(use, catalogue, faults) for use in namespace.uses]
    parsed = Parsed(tuple(uses), (), namespace.model_tag, tuple(_abbreviated(rest, parser)))
    faults += (
        [Fault("rule", flag, reason) for flag, reason in broken_rules(parsed, catalogue, env or {})]
        if not faults
        else []
    )
    return dataclasses.replace(parsed, faults=tuple(faults))


def _unknown(extra: list[str]) -> list[str]:
    """Return the flags among the words that nothing took, or the first stray word where there is no flag."""
    flags = [word.split("=", 1)[0] for word in extra if word.startswith("-") and not re.match(r"-\d", word)]
    return flags or extra[:1]


def _fault(message: str) -> Fault:
    match = re.fullmatch(r"argument ([^:]+): (.*)", message, re.DOTALL)
    if match:
        return Fault("usage", match[1].split("/", 1)[0], match[2])
    match = re.fullmatch(r"ambiguous option: (\S+) could match (.*)", message)
    if match:
        return Fault("ambiguous", match[1].split("=", 1)[0], match[2])
    return Fault("usage", "", message)


def _converted(use: tuple[Flag, str, t.Any], catalogue: Catalogue, faults: list[Fault]) -> Use:
    flag, spelling, raw = use
    if isinstance(raw, bool) or raw is None:
        return Use(flag, spelling, raw)
    try:
        if isinstance(raw, list):
            read: t.Any = [values.convert(flag, one, catalogue) for one in raw]
        else:
            read = values.convert(flag, raw, catalogue)
        if flag.action == "LoRAParserAction":
            _check_lora(read)
    except ValueError as error:
        faults.append(Fault("value", flag.name, str(error)))
        return Use(flag, spelling, raw)
    except RecursionError:
        faults.append(Fault("value", flag.name, "it is nested too deeply"))
        return Use(flag, spelling, raw)
    return Use(flag, spelling, read, raw)


def _check_lora(modules: list[str | None]) -> None:
    for one in modules:
        if not one or ("=" in one and "," not in one):
            continue
        try:
            module = json.loads(one)
        except ValueError as error:
            raise ValueError(f"{one!r} is neither name=path nor JSON") from error
        if not isinstance(module, dict) or not {"name", "path"} <= module.keys() <= _LORA_KEYS:
            raise ValueError(f"{one!r} is not a mapping of name, path and maybe base_model_name")


_LORA_KEYS: t.Final = frozenset({"name", "path", "base_model_name"})


def _abbreviated(words: list[str], parser: _Parser) -> c.Iterator[tuple[str, str]]:
    known = parser._option_string_actions
    for word in words:
        name = word.split("=", 1)[0]
        if name.startswith("--") and name not in known and len(name) > len("--"):
            full = [spelling for spelling in known if spelling.startswith(name)]
            if len(full) == 1:
                yield name, full[0]


# --- what vLLM does to the words before argparse sees them -----------------------------------------------------------


def _serve(words: list[str], catalogue: Catalogue) -> tuple[list[str], list[Fault]]:
    """Take the subcommand off, and treat --model as the release does."""
    rest = words[1:]
    traits = catalogue.parser
    index = next((i for i, word in enumerate(rest) if re.match(r"--model(=.+|$)", word)), None)
    if index is not None and traits.serve_model == "rejected":
        return rest, [Fault("usage", "--model", "it comes first, without the flag: vllm serve MODEL")]
    if index is not None and traits.serve_model == "moved":
        length = 2 if rest[index] == "--model" else 1
        if index + length > len(rest):
            return rest, [Fault("usage", "--model", "expected one argument")]
        model = rest[index + 1] if length == 2 else rest[index].removeprefix("--model=")
        rest = [model, *rest[:index], *rest[index + length :]]
    is_named = any(re.match(r"--served[-_]model[-_]name(=.+|$)", word) for word in rest)
    is_configured = any(re.match(r"--config(=.+|$)", word) for word in rest)
    if traits.serve_needs_model and rest and rest[0].startswith("-") and is_named and not is_configured:
        return rest, [Fault("usage", "--served-model-name", "it needs the model as the first word: vllm serve MODEL")]
    return rest, []


def rewrite(words: c.Sequence[str], catalogue: Catalogue) -> list[str]:
    """Return the words as argparse gets them: dashes in names, optimisation levels, and dotted keys as JSON."""
    return _fold_dotted(_dashes(words, catalogue), catalogue)


def _dashes(words: c.Sequence[str], catalogue: Catalogue) -> list[str]:
    level, dotted = catalogue.parser.level, catalogue.parser.dotted_level
    done: list[str] = []
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            done.append(_BEFORE_DOT.sub(lambda match: match.group().replace("_", "-"), name, count=1) + equals + value)
        elif word.startswith("-O.") and dotted:
            done.append(word.replace("-O", dotted, 1))
        elif word.startswith("-O") and word != "-O":
            number = word[3:] if word[2] == "=" else word[2:]
            done += [f"{level}={number}"] if "." in level else [level, number]
        elif word == "-O" and index + 1 < len(words) and words[index + 1] in _LEVELS:
            done.append(level)
        else:
            done.append(word)
    return done


def _fold_dotted(words: list[str], catalogue: Catalogue) -> list[str]:
    plain: list[str] = []
    folded: dict[str, dict[str, t.Any]] = {}
    queue = iter(words)
    for word in queue:
        name, equals, value = word.partition("=")
        if not (word.startswith("-") and "." in name):
            plain.append(word)
            continue
        if not equals:
            value = next(queue, "")
            if not value:
                raise ValueError(f"{name} is the last word and has no value")
        if name.endswith("+"):
            name, value = name[:-1], json.dumps(value.split(","))
        flag, *path = name.split(".")
        content: t.Any = _dotted_value(value, catalogue)
        for step in reversed(path):
            content = {step: content}
        _merge(folded.setdefault(flag, {}), content)
    for flag, content in folded.items():
        plain += [flag, json.dumps(content)]
    return plain


def _dotted_value(text: str, catalogue: Catalogue) -> t.Any:
    try:
        return json.loads(text)
    except (RecursionError, ValueError):
        if catalogue.parser.dotted_suffixes:
            try:
                return values.size(text)
            except ValueError:
                return text
        return text


def _merge(base: dict[str, t.Any], over: dict[str, t.Any]) -> None:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        elif isinstance(value, list) and isinstance(base.get(key), list):
            base[key] += value
        else:
            base[key] = value


# --- what vLLM checks once the words are read ------------------------------------------------------------------------


def broken_rules(parsed: Parsed, catalogue: Catalogue, env: c.Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the release's own checks that a command line fails, as flag and reason."""
    found: list[tuple[str, str]] = []
    if parsed.value("--enable-auto-tool-choice") and not parsed.value("--tool-call-parser"):
        found.append(("--enable-auto-tool-choice", "it needs --tool-call-parser"))
    for name in catalogue.parser.rules:
        found += _RULES[name](parsed, catalogue) if name in _RULES else []
    if (
        "grpc_port" in catalogue.parser.rules
        and parsed.value("--grpc-port") is not None
        and env.get("VLLM_USE_RUST_FRONTEND", "0") in {"", "0"}
    ):
        found.append(("--grpc-port", "it needs the Rust frontend (VLLM_USE_RUST_FRONTEND=1)"))
    return found


def _log_outputs(parsed: Parsed, _catalogue: Catalogue) -> list[tuple[str, str]]:
    if parsed.value("--enable-log-outputs") and not parsed.value("--enable-log-requests"):
        return [("--enable-log-outputs", "it needs --enable-log-requests")]
    return []


def _sse_keep_alive(parsed: Parsed, _catalogue: Catalogue) -> list[tuple[str, str]]:
    interval = parsed.value("--sse-keep-alive-interval")
    return [("--sse-keep-alive-interval", "it cannot be below 0")] if interval is not None and interval < 0 else []


def _per_request_metrics(parsed: Parsed, _catalogue: Catalogue) -> list[tuple[str, str]]:
    if parsed.value("--enable-per-request-metrics") and parsed.value("--disable-log-stats"):
        return [("--enable-per-request-metrics", "it needs the statistics that --disable-log-stats switches off")]
    return []


def _reasoning_effort_map(parsed: Parsed, catalogue: Catalogue) -> list[tuple[str, str]]:
    efforts = parsed.value("--reasoning-effort-map")
    if efforts is None:
        return []
    known = catalogue.reasoning_efforts or frozenset()
    if not isinstance(efforts, dict) or not all(isinstance(one, str) for one in efforts.values()):
        return [("--reasoning-effort-map", "it is not a mapping of reasoning efforts to strings")]
    unknown = sorted(set(efforts) - known)
    return [("--reasoning-effort-map", f"{unknown[0]!r} is no reasoning effort")] if unknown and known else []


def _multi_port_lb(parsed: Parsed, _catalogue: Catalogue) -> list[tuple[str, str]]:
    name = "--data-parallel-multi-port-external-lb"
    if not parsed.value(name):
        return []
    against = ("--grpc", "--uds", "--data-parallel-rank", "--data-parallel-external-lb", "--data-parallel-hybrid-lb")
    clash = next((one for one in against if parsed.value(one) not in (None, False)), "")
    if clash:
        return [(name, f"it cannot be combined with {clash}")]
    if parsed.value("--api-server-count") not in (None, 1):
        return [(name, "it needs --api-server-count 1")]
    if (parsed.value("--data-parallel-size") or 1) < 2:
        return [(name, "it needs --data-parallel-size 2 or more")]
    if (parsed.value("--data-parallel-size-local") or 1) < 2:
        return [(name, "it needs --data-parallel-size-local 2 or more")]
    return []


_RULES: t.Final[dict[str, c.Callable[[Parsed, Catalogue], list[tuple[str, str]]]]] = {
    "log_outputs": _log_outputs,
    "sse_keep_alive": _sse_keep_alive,
    "per_request_metrics": _per_request_metrics,
    "reasoning_effort_map": _reasoning_effort_map,
    "multi_port_lb": _multi_port_lb,
}
