# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads what people have: shell commands, recipes and compose files that start vLLM.

The words and the environment come out as vLLM would get them, with findings on what would not survive the move.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import re
import shlex
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.plugin_utils import _instance_facts

_PLACEHOLDER: t.Final = re.compile(r"<[\w-]+>|\b(?:rocep|enp)X\w*|[\w-]+-or-roce-ip|\b(?:head|worker)-roce-ip\b")
_ASSIGNMENT: t.Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SHELL_DEFAULT: t.Final = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}")
# Options of docker run that are followed by a value.
_DOCKER_WITH_VALUE: t.Final = re.compile(
    r"-[evpw]|--(?:env|volume|name|gpus|entrypoint|network|net|ipc|shm-size|publish|ulimit|restart|memory|device|cap-add"
    r"|env-file|label|runtime|workdir|user)"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Imported:
    """One vLLM server as somebody wrote it down. ``words`` follow ``vllm serve``; it is empty where none is started."""

    words: tuple[str, ...] = ()
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    image: dict[str, str | None] = dataclasses.field(default_factory=dict)
    nodes: int = 1
    findings: tuple[Finding, ...] = ()

    @property
    def is_vllm(self) -> bool:
        """Whether a vLLM server is started."""
        return bool(self.words)

    def facts(self, version: str) -> dict[str, t.Any]:
        """Return the facts to judge it by, for a version of vLLM."""
        facts = _instance_facts.command_facts(version, self.words, self.env)
        tensor, pipeline = facts["flags"].get("tensor_parallel_size"), facts["flags"].get("pipeline_parallel_size")
        facts["nodes"] = max(self.nodes, int(tensor or 1) * int(pipeline or 1))
        return facts | ({"image": self.image} if self.image else {})


def image_of(text: str) -> dict[str, str | None]:
    """Return name, tag and digest of an image reference."""
    name, _at, digest = text.partition("@")
    head, slash, last = name.rpartition("/")
    last, _colon, tag = last.partition(":")
    return {"name": head + slash + last, "tag": tag or (None if digest else "latest"), "digest": digest or None}


def from_shell(text: str) -> Imported:
    """Read a shell script that runs ``vllm serve``, directly or by ``docker run``."""
    findings = list(_text_findings(text))
    lines, has_comment = [], False
    for line in text.splitlines():
        match = re.match(r"(.*\\)\s+#.*$", line)
        has_comment = has_comment or bool(match)
        lines.append(match[1] if match else line)
    if has_comment:
        message = "A comment follows a backslash at the end of a line, so that the shell ends the command there."
        remedy = "Remove the comments."
        findings.append(Finding("COMMENT_AFTER_BACKSLASH", "warning", message, remedy=remedy))
    env: dict[str, str] = {}
    for command in re.split(r"\n|;|&&", "\n".join(lines).replace("\\\n", " ")):
        words = _split(command)
        while words and (words[0] == "export" or _ASSIGNMENT.fullmatch(words[0])):
            word = words.pop(0)
            if match := _ASSIGNMENT.fullmatch(word):
                env[match[1]] = match[2]
        found = _serve(words)
        if found is not None:
            serve, more, image = found
            return Imported(tuple(serve), env | more, image, findings=tuple(findings))
    return Imported(env=env, findings=(*findings, _not_vllm("the script")))


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command, comments=True)
    except ValueError:
        return []


def _serve(words: list[str]) -> tuple[list[str], dict[str, str], dict[str, str | None]] | None:
    if words[:1] == ["exec"]:
        words = words[1:]
    if len(words) > 1 and words[0].rsplit("/", 1)[-1] == "vllm" and words[1] == "serve":
        return words[2:], {}, {}
    if words[:2] not in (["docker", "run"], ["podman", "run"]):
        return None
    env: dict[str, str] = {}
    rest = iter(words[2:])
    for word in rest:
        if _DOCKER_WITH_VALUE.fullmatch(word):
            value = next(rest, "")
            if word in {"-e", "--env"} and (match := _ASSIGNMENT.fullmatch(value)):
                env[match[1]] = match[2]
        elif not word.startswith("-"):
            inside = [one for one in rest if one not in {"vllm", "serve"}]
            return inside, env, image_of(word)
    return None


def from_recipe(recipe: c.Mapping[str, t.Any]) -> Imported:
    """Read a recipe: defaults, an environment, and a command with {placeholders} and {{ doubled }} braces."""
    runtime = str(recipe.get("runtime", "vllm"))
    if runtime != "vllm":
        message = f"The recipe is for {runtime}, whose flags and memory fraction mean other things."
        finding = Finding("RUNTIME_NOT_VLLM", "error", message, runtime, "Write a model role for vLLM anew.")
        return Imported(findings=(finding,))
    defaults = {str(key): str(value) for key, value in (recipe.get("defaults") or {}).items()}
    command = str(recipe.get("command", ""))
    findings: list[Finding] = []
    for name in defaults:
        if f"{{{name}}}" not in command:
            message = f"The recipe's default {name} is not used by its command."
            findings.append(Finding("RECIPE_DEFAULT_UNUSED", "info", message, name))
    found = from_shell(_fill(command, defaults))
    env = {str(key): str(value) for key, value in (recipe.get("env") or {}).items()} | found.env
    image = image_of(str(recipe["container"])) if recipe.get("container") else {}
    nodes = int(recipe.get("min_nodes") or 1)
    return Imported(found.words, env, image, nodes, (*found.findings, *findings))


def _fill(text: str, values: c.Mapping[str, str]) -> str:
    """Fill {name} in and undouble braces in one pass, like the programs that read recipes."""

    def one(match: re.Match[str]) -> str:
        if match[0] in {"{{", "}}"}:
            return match[0][0]
        return values.get(match[1], match[0])

    return re.sub(r"\{\{|\}\}|\{(\w+)\}", one, text)


def from_service(service: c.Mapping[str, t.Any], variables: c.Mapping[str, str] | None = None) -> Imported:
    """Read one service of a compose file; ``variables`` fill in ${NAME}."""

    def fill(value: t.Any) -> str:
        known = variables or {}
        return _SHELL_DEFAULT.sub(lambda match: known.get(match[1]) or match[2] or "", str(value))

    command = service.get("command") or []
    if not isinstance(command, list | str):
        return Imported(findings=(_not_vllm("the service's command, which is no text or list"),))
    words = [fill(word) for word in command] if isinstance(command, list) else _split(fill(command))
    while words and words[0] in {"vllm", "serve"}:
        words.pop(0)
    given = service.get("environment") or {}
    pairs = given.items() if isinstance(given, c.Mapping) else [str(one).partition("=")[::2] for one in given]
    env = {str(key): fill(value) for key, value in pairs}
    image = image_of(fill(service["image"])) if service.get("image") else {}
    findings = [*_text_findings("\n".join([*words, *env.values()])), *_service_findings(service, env)]
    return Imported(tuple(words), env, image, findings=tuple(findings))


def _service_findings(service: c.Mapping[str, t.Any], env: c.Mapping[str, str]) -> c.Iterator[Finding]:
    probe = str((service.get("healthcheck") or {}).get("test", ""))
    if "/health" in probe or "/v1/models" in probe:
        message = "The health check asks an address that stays green when the engine is wedged or talks garbage."
        remedy = "Prove readiness by a completion."
        yield Finding("READINESS_WITHOUT_COMPLETION", "warning", message, probe, remedy)
    if service.get("restart") in {"unless-stopped", "always"}:
        message = "Docker restarts the container at once, into memory that the driver has not given back yet."
        remedy = "Let systemd restart it behind a memory gate; set restart: no."
        yield Finding("RESTART_WITHOUT_GATE", "warning", message, str(service["restart"]), remedy)
    if service.get("runtime") == "nvidia":
        message = "The service needs a Docker runtime called nvidia, which is not there where CDI is used."
        yield Finding("RUNTIME_NVIDIA_MAY_BE_MISSING", "warning", message, remedy="Use the GPU through CDI.")
    if env.get("VLLM_API_KEY"):
        message = "An API key is written into the file."
        yield Finding("API_KEY_IN_FILE", "error", message, "VLLM_API_KEY", "Move it into a vault.")


def undoubled(text: str) -> tuple[str, Finding | None]:
    """Return a value with {{ }} that stood for { } in a recipe, and the finding on it."""
    if not re.search(r"\{\{\s*\\?\"", text):
        return text, None
    message = "Doubled braces are a recipe's way to write JSON; in variables, Ansible evaluates them as an expression."
    remedy = "Write the value as a YAML mapping under args."
    return _fill(text, {}), Finding("DOUBLE_BRACE_JSON", "error", message, text, remedy)


def _text_findings(text: str) -> c.Iterator[Finding]:
    for name in dict.fromkeys(_PLACEHOLDER.findall(text)):
        message = f"{name} is a placeholder that nobody filled in."
        yield Finding("PLACEHOLDER_LEFT", "error", message, name, "Write what it stands for.")


def _not_vllm(what: str) -> Finding:
    return Finding("RUNTIME_NOT_VLLM", "error", f"No vllm serve was found in {what}.", "", "Give the command itself.")
