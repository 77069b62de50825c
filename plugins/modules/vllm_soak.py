#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_soak
short_description: Prove that a vLLM instance answers rightly under load
version_added: 0.1.0
description:
  - Sends many requests at a time, reads every answer, and watches the engine, its counters and the kernel meanwhile.
    What corrupts answers or kills an engine under load passes every test that asks one question at a time.
  - Two of three requests ask for a sum of two random numbers, the third for a sentence or for a count of 31 numbers,
    where the model can do it when it is asked alone. What was wrong is asked again after the load, one at a time, and
    only what is right then is blamed on the load. Of each of the three a share may be.
  - Each request has a C(cache_salt) of its own, so that no prefix cache answers for the engine, unless O(shared_prefix)
    is what is to be tested.
  - The verdict is written into the deploy record of the instance (C(/var/lib/gb10-fleet/records/<instance>.json)). A
    model role with speculation is not called proven before, and by a soak that is large enough only - at least 100
    answers that could be judged, from 8 requests at a time, or from C(max_num_seqs) of the instance where that is less.
    RV(not_proven) says what was missing.
  - A soak that was V(inconclusive) changes no V(passed) or V(failed) of the same engine. One that V(passed) and was too
    small replaces another one that was too small, and nothing else. RV(not_recorded) says so.
  - An engine that ends by itself fails its soak. One that a deployment, a planned restart or a person takes away makes
    it V(inconclusive). A soak does not begin while a switch of the box is under way.
  - Pooling models (those of the kind V(embedding)) are refused. They answer with vectors, and a soak judges text.
  - So is a rank of a serving group that is not its head. A soak of the head is one of all ranks, but sees the unit and
    the kernel log of its own box only.
  - It runs on the box, in a transient systemd unit, next to the engine and without a network in between. A killed
    playbook does not end it, the verdict is recorded all the same, and a run that comes while it is under way waits for
    that one.
  - It is a load, and clients of the instance will notice it.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._progress
attributes:
  check_mode:
    support: full
    details: Nothing is asked in check mode.
  diff_mode:
    support: none
  idempotent:
    support: none
    details: Every run is a new soak.
options:
  instance:
    description:
      - The name of the instance on the box. What it serves, where, and with which key is known there.
      - Exactly one of O(instance) and O(url) is needed.
    type: str
  url:
    description: Base URL of a server that is no instance of the box. Its verdict goes into no record.
    type: str
  model:
    description: With O(url), the model id to ask for. Without it the first one that the server lists is asked.
    type: str
  kind:
    description: >-
      With O(url), what the model is for. Of the raw completion of a base model, the first line is judged as its
      answer, and the rest for broken characters and runs of symbols alone.
    type: str
    choices: [chat, base]
    default: chat
  api_key:
    description: With O(url), the API key of the server.
    type: str
  concurrency:
    description: How many requests are under way at a time, 4096 at most.
    type: int
    default: 8
  requests:
    description: How many requests are sent in all.
    type: int
    default: 400
  max_tokens:
    description:
      - The token budget of a request. Where the context of the model holds less beside the question, it is less.
      - Answers that are cut before they begin are asked for again after the load, one at a time. Those that are not cut
        then count against the engine, the others neither for nor against it, but half of them or more make the verdict
        V(inconclusive).
    type: int
    default: 256
  request_timeout:
    description: Seconds that one request may take, the time in the queue included.
    type: float
    default: 300
  timeout:
    description:
      - Seconds that the soak may take, with the questions before the load. What is not answered by then makes the
        verdict V(inconclusive). What was wrong is asked again all the same, for two minutes at most.
    type: float
    default: 3600
  shared_prefix:
    description:
      - Put about so many tokens of the same text before every question, which the prefix cache then answers for.
      - With V(0), nothing is shared. A prefix that leaves no room for an answer in the model's context is refused.
    type: int
    default: 0
  scripts:
    description: Scripts besides Latin and Greek in which the model may honestly write, as in M(gb10.fleet.vllm_probe).
    type: list
    elements: str
    default: []
  fail_on_verdict:
    description: Whether the task fails where the verdict is not V(passed).
    type: bool
    default: true
  program:
    description: Where the collection's program lies on the box, see M(gb10.fleet.box_program).
    type: path
    default: /usr/local/lib/gb10-fleet/fleet.pyz
"""

EXAMPLES = r"""
- name: Soak the coordinator before it is trusted
  gb10.fleet.vllm_soak:
    instance: coordinator

- name: See what the prefix cache does to its answers
  gb10.fleet.vllm_soak:
    instance: coordinator
    shared_prefix: 4000
    concurrency: 16
  register: soak

- name: Show how fast it was
  ansible.builtin.debug:
    var: soak.latency_ms
"""

RETURN = r"""
finished:
  description: Whether the soak is over.
  returned: success
  type: bool
progress:
  description: How far it is, in one line.
  returned: always
  type: str
  sample: 120 of 400 requests, 0 failed, 0 garbage or wrong, first token 85 ms
verdict:
  description: V(passed), V(failed), or V(inconclusive) where too little was seen to tell.
  returned: when it is over
  type: str
  sample: passed
because:
  description: The reason of the verdict in words.
  returned: when it is over
  type: str
requests:
  description: How many requests were answered or failed.
  returned: when it is over
  type: int
failed_requests:
  description: How many of them failed or were cut off.
  returned: when it is over
  type: int
garbage:
  description: How many answers were empty, or written by no language model.
  returned: when it is over
  type: int
wrong:
  description: How many sums, sentences and counts were wrong.
  returned: when it is over
  type: int
asked_again:
  description: How many of the wrong answers were asked for again after the load, one at a time.
  returned: when it is over
  type: int
right_alone:
  description: How many of those were right then.
  returned: when it is over
  type: int
cut:
  description: How many answers were cut at O(max_tokens) before they began.
  returned: when it is over
  type: int
latency_ms:
  description: >-
    Milliseconds to the first token, per further token and for the whole answer, each with p50, p95, p99 and max. Null
    where nothing was measured. Tokens are the server's own count.
  returned: when it is over
  type: dict
  sample:
    first_token: {p50: 85.2, p95: 210.4, p99: 320.0, max: 331.9}
    per_token: {p50: 21.0, p95: 35.2, p99: 41.7, max: 44.0}
    whole: {p50: 160.1, p95: 900.3, p99: 1210.0, max: 1300.5}
tokens_per_second:
  description: Generated tokens a second, over all requests.
  returned: when it is over
  type: float
  sample: 154.2
acceptance:
  description: >-
    What the drafter did meanwhile: drafts, draft_tokens, accepted_tokens, acceptance, mean_length and acceptance_at by
    position. Null where nothing is drafted.
  returned: when it is over
  type: dict
kv_usage_max:
  description: The largest share of the KV cache that was seen in use, from 0 to 1.
  returned: when it is over
  type: float
prefix_hit_rate:
  description: The share of prompt tokens that the prefix cache had.
  returned: when it is over
  type: float
preemptions:
  description: How many requests were preempted for want of cache.
  returned: when it is over
  type: int
engine_restarts:
  description: How often the engine ended or was started anew, whoever did it.
  returned: when it is over
  type: int
kernel:
  description: What the kernel logged of the GPU and of memory; null where its log cannot be read.
  returned: when it is over
  type: list
  elements: str
samples:
  description: The first answers that were bad, with their prompts.
  returned: when it is over
  type: list
  elements: dict
not_recorded:
  description: Why the verdict is not in a deploy record; empty where it is. The message of the task says it, too.
  returned: when it is over, with O(instance)
  type: str
not_proven:
  description: Why the instance is not proven after this soak; empty where it is. The message of the task says it, too.
  returned: when it is over, with O(instance)
  type: str
findings:
  description: Everything that is wrong or worth knowing, as M(gb10.fleet.vllm_probe) returns it.
  returned: when it is over
  type: list
  elements: dict
"""

import json
import re
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _docker,
    _instance,
    _job,
    _openai_api,
    _soak,
    _soak_report,
    _status,
    _text_sanity,
)

_MOST = 1_000_000_000
_MOST_CONCURRENT = 4096
_NUMBERS = ("concurrency", "requests", "max_tokens", "request_timeout", "timeout")


def _request(params: dict[str, t.Any]) -> _soak.Request:
    for name in _NUMBERS:
        if not 0 < params[name] < _MOST:
            raise _openai_api.InputError(f"{name} has to be more than zero, and less than {_MOST}.")
    # A thread each; more would measure this program.
    if params["concurrency"] > _MOST_CONCURRENT:
        raise _openai_api.InputError(f"concurrency has to be {_MOST_CONCURRENT} at most.")
    if params["instance"] is not None and not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", params["instance"], re.ASCII):
        raise _openai_api.InputError(
            f"{params['instance']!r} cannot be the name of an instance; vllm-<name> is its unit."
        )
    if params["shared_prefix"] < 0:
        raise _openai_api.InputError("shared_prefix has to be zero or more.")
    known = ("any", *_text_sanity.SCRIPT_NAMES)
    if strange := [name for name in params["scripts"] if name not in known]:
        raise _openai_api.InputError(f"scripts does not know {strange[0]!r}; it knows {', '.join(known)}.")
    if params["url"]:
        _openai_api.Endpoint.from_url(params["url"])
    given: dict[str, t.Any] = {name: params[name] for name in (*_NUMBERS, "kind", "shared_prefix")}
    given |= {name: params[name] or "" for name in ("instance", "url", "model")}
    return _soak.Request(**given, scripts=tuple(params["scripts"]))


def main() -> None:
    """Begin the soak or join it, then wait for a moment."""
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str"},
            "url": {"type": "str"},
            "model": {"type": "str"},
            "kind": {"type": "str", "choices": ["chat", "base"], "default": "chat"},
            "api_key": {"type": "str", "no_log": True},
            "concurrency": {"type": "int", "default": 8},
            "requests": {"type": "int", "default": 400},
            "max_tokens": {"type": "int", "default": 256, "no_log": False},
            "request_timeout": {"type": "float", "default": 300},
            "timeout": {"type": "float", "default": 3600},
            "shared_prefix": {"type": "int", "default": 0},
            "scripts": {"type": "list", "elements": "str", "default": []},
            "fail_on_verdict": {"type": "bool", "default": True},
            "program": {"type": "path", "default": "/usr/local/lib/gb10-fleet/fleet.pyz"},
            "begin": {"type": "bool", "default": True},
            "step": {"type": "int", "default": 8},
        },
        mutually_exclusive=[("instance", "url"), ("instance", "model"), ("instance", "api_key")],
        required_one_of=[("instance", "url")],
        supports_check_mode=True,
    )
    given = module.params
    try:
        request = _request(given)
    except _openai_api.InputError as error:
        module.fail_json(msg=str(error))
    if module.check_mode:
        asked = f"{request.requests} requests would be sent, {request.concurrency} at a time"
        module.exit_json(changed=True, finished=True, progress=asked)
    name = _status.job_name("soak", request.job)
    job = _job.Job(
        name=name,
        description=f"Soak {request.job}",
        argv=("/usr/bin/python3", given["program"], "soak", json.dumps(_soak.as_plain(request))),
        secrets={"VLLM_API_KEY": given["api_key"]} if given["api_key"] else {},
    )
    try:
        outcome = _job.wait(module.run_command, job, begin=given["begin"], step_s=given["step"])
        if outcome.failed:
            module.fail_json(msg=f"{request.job} could not be soaked: {outcome.message}.", progress=outcome.message)
        if not outcome.finished:
            module.exit_json(changed=True, finished=False, progress=outcome.message)
        report = _soak.left(name)
    except (_docker.DockerError, _instance.UnitError, _soak.SoakError) as error:
        module.fail_json(msg=str(error))
    said = _soak_report.summary(report)
    result = {**report, "changed": True, "finished": True, "progress": said, "msg": said}
    if report["verdict"] != "passed" and given["fail_on_verdict"]:
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
