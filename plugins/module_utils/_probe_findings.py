# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The stages a probe can end at, and everything it can find: severity, meaning and remedy of each.

docs/readiness.md and docs/findings.md hold the same tables for people; a test keeps them in step.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding, Severity

# What waiting is good for: "wait" cures it in time, "strikes" may be a passing fault, "stop" is never cured by waiting.
Patience = t.Literal["wait", "strikes", "stop"]


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """One way for a probe to end: the rung of the ladder it ended on, and whether waiting may help."""

    rung: str
    patience: Patience


STAGES: t.Final[dict[str, Stage]] = {
    "ready": Stage("end", "stop"),
    "degraded": Stage("end", "stop"),
    "dead": Stage("process", "stop"),
    "starting": Stage("port", "wait"),
    "unreachable": Stage("port", "wait"),
    "tls_failed": Stage("port", "stop"),
    "port_squatter": Stage("port", "stop"),
    "auth_required": Stage("auth", "stop"),
    "auth_failed": Stage("auth", "stop"),
    "wrong_model": Stage("model", "stop"),
    "engine_dead": Stage("completion", "strikes"),
    "hung": Stage("completion", "strikes"),
    "busy": Stage("completion", "wait"),
    "request_refused": Stage("completion", "strikes"),
    "bad_reply": Stage("completion", "strikes"),
    "budget": Stage("text", "strikes"),
    "no_answer": Stage("text", "strikes"),
    "garbage": Stage("text", "strikes"),
    "wrong_answer": Stage("answer", "strikes"),
    "capability_failed": Stage("capability", "strikes"),
    "out_of_time": Stage("end", "stop"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """What is known beforehand about a finding."""

    severity: Severity
    meaning: str
    remedy: str


_KERNELS = (
    "Compare the backends that the boot log names with what the model role expects; try CUDA graph mode PIECEWISE, "
    "the other FP4 backends and bf16 KV cache, one at a time."
)
_ENGINE_LOG = "Read the engine's log for its first error; the unit's restart brings it back if the cause was transient."

KNOWN: t.Final[dict[str, Known]] = {
    # process and port
    "PROCESS_GONE": Known(
        "error",
        "The process behind the port has ended.",
        "Read the last lines of the unit's journal; a memory or flag error there is the cause.",
    ),
    "PROCESS_RESTARTING": Known(
        "warning",
        "The process has ended and its supervisor is about to start it again.",
        "If it goes on, read the journal of the failed starts: the first error is the cause.",
    ),
    "ENGINE_STARTING": Known(
        "info",
        "Nothing listens yet and the process is alive: vLLM opens its port only when its engine is ready.",
        "Wait; a first boot takes 5 to 15 minutes.",
    ),
    "NO_LISTENER": Known(
        "error",
        "Nothing listens on the port, and whether a process is on its way is not known.",
        "Name the unit or the container, so that starting can be told from dead; or check host and port.",
    ),
    "NAME_NOT_RESOLVED": Known("error", "The host name has no address.", "Check the host in url."),
    "HOST_UNREACHABLE": Known(
        "error", "No connection to the host came about.", "Check that the box is up and the network leads to it."
    ),
    "TLS_FAILED": Known(
        "error",
        "TLS could not be agreed upon, or the certificate is not trusted.",
        "Use http:// where the server speaks plain HTTP; for a certificate of your own set validate_certs to false.",
    ),
    "PORT_SQUATTER": Known(
        "error",
        "Something answers on the port, and it is no OpenAI-compatible server.",
        "Find it with `ss -ltnp` and stop it, or give the instance another port.",
    ),
    "UPSTREAM_UNAVAILABLE": Known(
        "error",
        "A proxy answers that the server behind it is not there.",
        "Probe the engine's own port, or wait until the engine behind the proxy is up.",
    ),
    "SERVER_NOT_ANSWERING": Known(
        "error",
        "The port is open, and no HTTP answer comes, not even to /health.",
        "If it lasts, restart the unit: the API server's own process is stuck.",
    ),
    "HEALTH_SLOW": Known(
        "warning",
        "/health took longer than its share of time, but completions came: busy is not dead.",
        "None, unless it lasts; never restart for this alone.",
    ),
    # auth and model
    "AUTH_REQUIRED": Known(
        "error",
        "The server is alive and wants an API key, and none was given.",
        "Give api_key or api_key_file.",
    ),
    "AUTH_FAILED": Known(
        "error",
        "The server is alive and refuses the API key.",
        "Compare the key with the one that the server was started with.",
    ),
    "WRONG_MODEL": Known(
        "error",
        "The server does not serve the model id that was asked for.",
        "Ask for one of the ids that it serves, or set --served-model-name.",
    ),
    "NO_MODEL_SERVED": Known("error", "The server's list of models is empty.", "Read the server's log."),
    # completion
    "ENGINE_DEAD": Known(
        "error", "The HTTP server answers for an engine that is dead or fails every request.", _ENGINE_LOG
    ),
    "CONNECTION_LOST": Known("error", "The server closed the connection instead of completing.", _ENGINE_LOG),
    "COMPLETION_HUNG": Known(
        "error",
        "A completion did not come in time, and the engine's counters do not show that it works on anything.",
        "Restart the unit; with two boxes restart both, since one of them may wait for the other.",
    ),
    "TOKENS_COUNTER_FROZEN": Known(
        "error",
        "Requests are running and the token counters stand still: the engine is wedged.",
        "Restart the unit.",
    ),
    "REQUESTS_WAIT_NONE_RUNS": Known(
        "error",
        "Requests wait and none runs: the scheduler is stuck, or no request fits the KV cache.",
        "Restart the unit; if it comes back, give the KV cache more room.",
    ),
    "ENGINE_BUSY": Known(
        "warning",
        "The completion did not come in time, but the engine is computing: it is busy or slow, not dead.",
        "Wait, or allow more time; do not restart it for this.",
    ),
    "GB10_LOW_POWER_STATE": Known(
        "warning",
        "The GPU is busy at less than half its clock or below 30 W: the platform is in its low-power state.",
        "Shut down and take the power supply off the wall for a minute; a reboot does not cure it.",
    ),
    "OUT_OF_TIME": Known(
        "error",
        "The time given was over before the ladder was climbed; this says nothing about the engine.",
        "Allow more time.",
    ),
    "REQUEST_REFUSED": Known(
        "error",
        "The server refuses the completion as a bad request; the engine may well be healthy.",
        "Read the server's message; set kind to the kind of the model, or leave the check out.",
    ),
    "CONTEXT_TOO_SMALL": Known(
        "error", "The question does not fit the model's context.", "Raise max_model_len or leave the check out."
    ),
    "REPLY_MALFORMED": Known(
        "error", "The answer is not what the API promises.", "See what stands between the probe and vLLM."
    ),
    "STREAM_BROKEN": Known(
        "error",
        "A streamed answer broke off before its end.",
        "Read the engine's log around that time; a proxy's idle timeout does this, too.",
    ),
    "NOT_STREAMED": Known(
        "warning",
        "A completion that was to be streamed came in one piece.",
        "See what stands between the probe and vLLM; clients will wait for whole answers.",
    ),
    "USAGE_MISSING": Known(
        "warning", "The server did not count tokens.", "Counts in reports will be unknown; chunks are no substitute."
    ),
    # text
    "TOKEN_BUDGET_EXHAUSTED": Known(
        "error",
        "The token budget ended before an answer began, as a rule inside the model's thinking. The engine is alive.",
        "Allow more time and a larger max_model_len, or a chat template that can switch thinking off.",
    ),
    "EMPTY_ANSWER": Known("error", "The model finished on its own and said nothing.", _KERNELS),
    "ANSWER_IN_REASONING_CONTENT_NULL": Known(
        "error",
        "The whole answer landed in the reasoning field and content is empty.",
        "Use the reasoning parser of the model's family; some cannot tell an answer when thinking is switched off.",
    ),
    "TEXT_NUL_BYTES": Known("error", "The text holds NUL bytes.", _KERNELS),
    "TEXT_CONTROL_CHARACTERS": Known(
        "error", "The text holds control, private-use or unassigned characters.", _KERNELS
    ),
    "TEXT_REPLACEMENT_CHARACTERS": Known("error", "The text holds broken characters (U+FFFD).", _KERNELS),
    "TEXT_UNEXPECTED_SCRIPT": Known(
        "error",
        "The text holds letters of a script that nobody asked for.",
        _KERNELS + " If the model honestly answers in that script, name it in scripts.",
    ),
    "TEXT_REPETITION": Known("error", "The text says the same thing over and over.", _KERNELS),
    "TEXT_SYMBOL_RUN": Known("error", "The text is a run of one symbol.", _KERNELS),
    "REASONING_IN_CONTENT": Known(
        "warning",
        "Thinking stands in the answer's text: no reasoning parser, or the wrong one.",
        "Set --reasoning-parser to the parser of the model's family.",
    ),
    "SPECIAL_TOKENS_IN_CONTENT": Known(
        "warning",
        "Markers of the chat template stand in the answer's text.",
        "Check the chat template, the stop tokens in generation_config.json and the parsers.",
    ),
    "TOOL_CALL_IN_CONTENT": Known(
        "error",
        "A tool call stands in the answer's text and tool_calls is empty: no tool parser, or the wrong one.",
        "Set --tool-call-parser to the parser of the model's family, with --enable-auto-tool-choice.",
    ),
    "WRONG_ANSWER": Known(
        "error",
        "The model misses most of the simple questions.",
        _KERNELS + " For a base model set answer to warning or ignore.",
    ),
    "ANSWER_UNSTEADY": Known(
        "warning", "The model missed one of three simple questions.", "Watch it; run a soak before trusting it."
    ),
    # capabilities
    "COMPLETIONS_NOT_OFFERED": Known(
        "warning", "The server does not take raw completions.", "Leave completions out of checks."
    ),
    "TOOL_CHOICE_FLAGS_MISSING": Known(
        "error",
        "The server refuses tool calls because two flags are missing; it is healthy otherwise.",
        "Set --enable-auto-tool-choice and --tool-call-parser.",
    ),
    "TOOL_REQUEST_FAILED": Known(
        "error", "The server does not complete requests with tools.", "Read the server's message and its log."
    ),
    "TOOL_NOT_CALLED": Known(
        "error",
        "The model answered in words where a tool call was asked for.",
        "Check that the chat template knows tools and that the parser is of the model's family.",
    ),
    "TOOL_CALL_INVALID": Known(
        "error",
        "A tool call names no tool that was offered, or its arguments are not the JSON that was asked for.",
        "Use the tool parser of the model's family.",
    ),
    "STRUCTURED_OUTPUT_FAILED": Known(
        "error",
        "The server does not complete requests for structured output.",
        "Read the server's message and its log.",
    ),
    "STRUCTURED_OUTPUT_INVALID": Known(
        "error",
        "The answer is not the JSON that the request's schema asks for.",
        "Check the structured outputs backend; with speculative decoding try without it.",
    ),
    "EMBEDDINGS_NOT_OFFERED": Known(
        "error",
        "The server offers neither completions nor embeddings nor pooling for this model.",
        "Set --runner to what the model is for.",
    ),
    "EMBEDDING_INVALID": Known(
        "error", "Vectors are empty, not finite, all zero, or do not depend on the text as they must.", _KERNELS
    ),
}


def finding(name: str, message: str, evidence: str = "", severity: Severity | None = None) -> Finding:
    """Make one of the known findings."""
    known = KNOWN[name]
    return Finding(name, severity or known.severity, message, evidence, known.remedy)
