#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ansible module: the readiness ladder against one endpoint."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_probe
short_description: Prove that a vLLM server really answers
version_added: 0.1.0
description:
  - Climbs the readiness ladder against one OpenAI-compatible server (vLLM first of all) and says on which rung it
    ended. The rungs are process, port, auth, model, completion, text, answer and capability.
  - C(/health) answers 200 over a dead engine and over one that writes garbage, and C(/v1/models) does so until the
    very end. Therefore a server is ready only after a real completion was received and read.
  - Tells apart what has to be treated differently, among others a server that is still starting from a dead one, a
    busy engine from a hung one, a used-up token budget from an empty answer, and a missing parser from broken
    kernels.
  - The verdicts, their meaning and what to do about each are listed in C(docs/readiness.md) of the collection.
  - Connects directly. Proxies in the environment are not used and redirects are not followed.
  - The module has to run where the server can be reached. With O(unit) or O(container) it has to run on the box
    itself.
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._attributes.info_module
options:
  url:
    description:
      - Base URL of the server, with or without C(/v1) at its end, and with a path before that where a proxy needs
        one.
    type: str
    default: http://127.0.0.1:8000
  model:
    description:
      - Model id that has to be served, exactly as in C(--served-model-name).
      - Without it, the first id that the server lists is used.
    type: str
  kind:
    description:
      - What the model is for.
      - V(auto) finds it out from what the server refuses. Name the kind where a chat model without its chat template
        must not pass as a base model.
    type: str
    choices:
      - auto
      - chat
      - base
      - embedding
    default: auto
  checks:
    description:
      - What has to work besides the one completion that every probe makes.
      - V(chat) is a whole chat completion, V(stream) a streamed one and V(completions) a raw one, which no chat
        template and no parser touches.
      - V(answer) judges the answers to the probe's questions.
      - V(tools) has a tool called, whole and streamed, and V(structured) asks for JSON after a schema.
      - V(embeddings) has texts turned into vectors with C(/v1/embeddings), or with C(/pooling) where that is what
        the server has.
      - The default depends on the kind of the model. It is V(chat), V(stream), V(completions) and V(answer) for chat
        models, V(completions), V(stream) and V(answer) for base models and V(embeddings) for the others.
    type: list
    elements: str
    choices:
      - chat
      - stream
      - completions
      - answer
      - tools
      - structured
      - embeddings
  question:
    description:
      - The kind of question that the server is asked.
      - V(arithmetic) asks for the sum of two random numbers from 1 to 20, V(echo) asks for a random word to be
        repeated.
    type: str
    choices:
      - arithmetic
      - echo
    default: arithmetic
  answer_severity:
    description:
      - How grave it is when most answers are wrong. With V(error) the server is not ready.
      - V(auto) is V(error) for chat models and V(warning) for base models, which nobody taught to answer.
    type: str
    choices:
      - auto
      - error
      - warning
      - info
    default: auto
  scripts:
    description:
      - Scripts besides Latin and Greek in which the model may honestly write, such as V(cjk) or V(cyrillic), or
        V(any).
      - Letters of any other script in an answer to an English question are a sign of broken kernels.
    type: list
    elements: str
    default: []
  max_tokens:
    description:
      - Largest token budget of one completion. It is used only where the model did not come to an answer within 256
        tokens.
      - Never more than the context of the model holds.
    type: int
    default: 4096
  api_key:
    description:
      - API key of the server. It is sent only to a server that identifies itself as vLLM, or that asks for a key.
    type: str
  api_key_file:
    description:
      - Path of a file on the box that holds the API key, either bare or as C(VLLM_API_KEY=...).
    type: path
  timeout:
    description:
      - Seconds that the whole probe may take, or, with O(wait=true), the whole wait.
    type: float
    default: 60
  request_timeout:
    description:
      - Seconds that one completion may take. The first one after a boot can take half a minute, because kernels are
        compiled for it.
    type: float
    default: 120
  wait:
    description:
      - Probe until the server is ready or O(timeout) is over.
      - Ends at once where waiting cannot help (dead process, wrong model, refused key, a stranger on the port), and
        after three failures in a row where the fault may be a passing one. Every change of the situation is logged
        on the box.
    type: bool
    default: false
  unit:
    description:
      - systemd unit whose main process decides whether a closed port means that the server is starting or that it is
        dead.
    type: str
  container:
    description:
      - Name of the Docker container that decides the same.
    type: str
  validate_certs:
    description:
      - Whether the certificate of an https URL has to be trusted by the box.
    type: bool
    default: true
  fail_on_not_ready:
    description:
      - Whether the module fails when the server is not ready. With V(false) the verdict is only returned.
    type: bool
    default: true
author:
  - gb10.fleet maintainers (@gb10-fleet)
seealso:
  - name: vLLM's OpenAI-compatible server
    description: The endpoints that are probed.
    link: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
"""

EXAMPLES = r"""
- name: Wait until the coordinator really answers
  gb10.fleet.vllm_probe:
    model: coordinator
    unit: vllm-coordinator.service
    wait: true
    timeout: 1800

- name: Prove tool calls and JSON output as well
  gb10.fleet.vllm_probe:
    url: http://127.0.0.1:8001
    model: extractor
    checks: [chat, stream, answer, tools, structured]
    api_key_file: /etc/gb10-fleet/extractor.key

- name: Look at a server without failing
  gb10.fleet.vllm_probe:
    fail_on_not_ready: false
  register: probe

- name: Say what was found
  ansible.builtin.debug:
    msg: "{{ probe.stage }}: {{ probe.findings | map(attribute='message') | join(' ') }}"
"""

RETURN = r"""
msg:
  description: The verdict in one line, or what is wrong with the options.
  returned: always
  type: str
  sample: "ready: it answered '12' to 'What is 5 plus 7? Answer with the number only.', first token after 85 ms"
ready:
  description: Whether the server answers as it should. True for the stages V(ready) and V(degraded).
  returned: when the options could be used
  type: bool
  sample: true
stage:
  description: >-
    What the probe found out, one of ready, degraded, dead, starting, unreachable, tls_failed, port_squatter,
    auth_required, auth_failed, wrong_model, engine_dead, hung, busy, request_refused, bad_reply, budget, no_answer,
    garbage, wrong_answer, capability_failed and out_of_time.
  returned: when the options could be used
  type: str
  sample: ready
rung:
  description: >-
    Rung of the ladder on which the probe ended, one of process, port, auth, model, completion, text, answer,
    capability and end.
  returned: when the options could be used
  type: str
  sample: end
ttft_ms:
  description: >-
    Milliseconds until the first token of the streamed completion, be it of the answer or of the model's thinking.
  returned: when the options could be used
  type: float
  sample: 85.2
evidence:
  description: What was seen, as far as the probe came. Token counts are the server's own.
  returned: when the options could be used
  type: dict
  sample:
    url: http://127.0.0.1:8000
    process: {life: alive, detail: "the unit is active (running), main process 4711"}
    health: 200
    version: 0.32.0
    served_models: [coordinator]
    model: coordinator
    max_model_len: 131072
    kind: chat
    checks: {chat: ok, stream: ok, completions: ok}
    stream:
      prompt: What is 5 plus 7? Answer with the number only.
      text: "12"
      finish_reason: stop
      prompt_tokens: 27
      completion_tokens: 3
      ttft_ms: 85.2
      chunks: 4
      tokens_per_second: 21.4
findings:
  description: Everything that is wrong or worth knowing, with a remedy for each.
  returned: when the options could be used
  type: list
  elements: dict
  contains:
    id:
      description: Name of the finding, as listed in C(docs/findings.md).
      type: str
      sample: AUTH_REQUIRED
    severity:
      description: One of error, warning and info.
      type: str
      sample: error
    message:
      description: What was found.
      type: str
      sample: The server wants an API key (HTTP 401).
    evidence:
      description: What it was found in.
      type: str
      sample: ""
    remedy:
      description: What to do about it.
      type: str
      sample: Give api_key or api_key_file.
    claim:
      description: Dated fact that the finding rests on, if any.
      type: str
      sample: ""
"""

import pathlib
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils._engine_signs import read_gpu
from ansible_collections.gb10.fleet.plugins.module_utils._openai_api import Endpoint, InputError, read_api_key
from ansible_collections.gb10.fleet.plugins.module_utils._probe import Options, Verdict, probe, wait_until_ready
from ansible_collections.gb10.fleet.plugins.module_utils._probe_session import CHECKS, KINDS, ProcessCheck
from ansible_collections.gb10.fleet.plugins.module_utils._process_state import container_check, unit_check


def _api_key(params: dict[str, t.Any]) -> str:
    path = params["api_key_file"]
    if not path:
        return params["api_key"] or ""
    try:
        key = read_api_key(pathlib.Path(path).read_text("utf-8"))
    except OSError as error:
        raise InputError(f"api_key_file {path} cannot be read ({error.strerror}); name a file on the box.") from None
    except ValueError:
        raise InputError(f"api_key_file {path} is no text file.") from None
    if not key:
        raise InputError(f"api_key_file {path} holds no key; write it on a line of its own.")
    return key


def _options(params: dict[str, t.Any], api_key: str) -> Options:
    severity = params["answer_severity"]
    return Options(
        url=params["url"],
        model=params["model"] or "",
        api_key=api_key,
        kind=params["kind"],
        checks=tuple(params["checks"] or ()),
        question=params["question"],
        answer_severity=None if severity == "auto" else severity,
        scripts=tuple(params["scripts"]),
        max_tokens=params["max_tokens"],
        request_timeout=params["request_timeout"],
        validate_certs=params["validate_certs"],
    )


def _process_check(params: dict[str, t.Any]) -> ProcessCheck | None:
    if params["unit"]:
        return unit_check(params["unit"])
    return container_check(params["container"]) if params["container"] else None


def _verdict(module: AnsibleModule) -> Verdict:
    params = module.params
    if not params["timeout"] > 0:
        raise InputError("timeout has to be more than zero.")
    api_key = _api_key(params)
    if api_key:
        module.no_log_values.add(api_key)
    options = _options(params, api_key)
    # Only the GPU of the box that the server runs on can tell anything about it.
    gpu = read_gpu if Endpoint.from_url(options.url).is_loopback else None
    process = _process_check(params)
    if params["wait"]:
        return wait_until_ready(options, timeout=params["timeout"], process=process, gpu=gpu, progress=module.log)
    verdict = probe(options, timeout=params["timeout"], process=process, gpu=gpu)
    module.log(verdict.summary)
    return verdict


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "default": "http://127.0.0.1:8000"},
            "model": {"type": "str"},
            "kind": {"type": "str", "choices": list(KINDS), "default": "auto"},
            "checks": {"type": "list", "elements": "str", "choices": list(CHECKS)},
            "question": {"type": "str", "choices": ["arithmetic", "echo"], "default": "arithmetic"},
            "answer_severity": {"type": "str", "choices": ["auto", "error", "warning", "info"], "default": "auto"},
            "scripts": {"type": "list", "elements": "str", "default": []},
            "max_tokens": {"type": "int", "default": 4096, "no_log": False},
            "api_key": {"type": "str", "no_log": True},
            "api_key_file": {"type": "path", "no_log": False},
            "timeout": {"type": "float", "default": 60},
            "request_timeout": {"type": "float", "default": 120},
            "wait": {"type": "bool", "default": False},
            "unit": {"type": "str"},
            "container": {"type": "str"},
            "validate_certs": {"type": "bool", "default": True},
            "fail_on_not_ready": {"type": "bool", "default": True},
        },
        mutually_exclusive=[("api_key", "api_key_file"), ("unit", "container")],
        supports_check_mode=True,
    )
    try:
        verdict = _verdict(module)
    except InputError as error:
        module.fail_json(msg=str(error))
    result = verdict.as_dict() | {"changed": False, "msg": verdict.summary}
    if not verdict.ready and module.params["fail_on_not_ready"]:
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
