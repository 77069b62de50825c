# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import typing as t

import pytest
import yaml
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gb10.fleet.plugins.module_utils._probe_findings import STAGES
from ansible_collections.gb10.fleet.plugins.modules import vllm_probe
from tests.unit.support import openai_server as fake
from tests.unit.support.faults import FAULTS, post_all
from tests.unit.support.probing import free_port

if t.TYPE_CHECKING:
    import collections.abc
    import pathlib

KEY = "sk-lab-0123456789"


@pytest.fixture
def server() -> collections.abc.Iterator[fake.OpenAIServer]:
    with fake.OpenAIServer() as running:
        yield running


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []

    def log(_self: AnsibleModule, msg: str, log_args: t.Any = None) -> None:
        if not msg.startswith("Invoked with"):  # which AnsibleModule says of every module
            lines.append(msg)

    monkeypatch.setattr(AnsibleModule, "log", log)
    return lines


class Runner:
    """Runs the module as Ansible does."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.output = ""

    def __call__(self, **args: t.Any) -> dict[str, t.Any]:
        with patch_module_args(args), pytest.raises(SystemExit):
            vllm_probe.main()
        captured = self._capsys.readouterr()
        self.output = captured.out + captured.err
        return t.cast("dict[str, t.Any]", json.loads(captured.out))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], logged: list[str]) -> Runner:
    return Runner(capsys)


@pytest.fixture
def programs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> t.Callable[[str, str], None]:
    """Put a program of that name, which prints that text, before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def add(name: str, text: str) -> None:
        program = folder / name
        program.write_text(f"#!/bin/sh\necho \"$@\" >> {folder}/{name}.args\ncat <<'END'\n{text}\nEND\n")
        program.chmod(0o755)

    return add


def test_a_ready_server_succeeds_and_changes_nothing(server: fake.OpenAIServer, run: Runner, logged: list[str]) -> None:
    result = run(url=server.url, model="lab/tiny")
    assert (result["changed"], result.get("failed"), result["ready"], result["stage"], result["rung"]) == (
        False,
        None,
        True,
        "ready",
        "end",
    )
    assert result["ttft_ms"] >= 0
    assert result["evidence"]["version"] == "0.32.0"
    assert result["findings"] == []
    assert logged == [result["msg"]]


def test_check_mode_is_the_same(server: fake.OpenAIServer, run: Runner) -> None:
    result = run(url=server.url, _ansible_check_mode=True)
    assert (result["stage"], len(server.asked(fake.CHAT))) == ("ready", 2)


def test_a_server_that_is_not_ready_fails_with_the_whole_verdict(server: fake.OpenAIServer, run: Runner) -> None:
    FAULTS["garbage_symbols"].set_up(server)
    result = run(url=server.url)
    assert (result["failed"], result["ready"], result["stage"], result["rung"]) == (True, False, "garbage", "text")
    assert result["msg"].startswith("garbage: ")
    assert [found["id"] for found in result["findings"]] == ["TEXT_SYMBOL_RUN"]
    assert result["evidence"]["chat"]["text"] == "!!!!!!!!!!!!!!!!"


def test_the_verdict_may_be_had_without_failing(server: fake.OpenAIServer, run: Runner) -> None:
    FAULTS["garbage_symbols"].set_up(server)
    result = run(url=server.url, fail_on_not_ready=False)
    assert (result.get("failed"), result["changed"], result["stage"]) == (None, False, "garbage")


def test_a_degraded_server_is_ready(server: fake.OpenAIServer, run: Runner) -> None:
    FAULTS["reasoning_leaks"].set_up(server)
    result = run(url=server.url)
    assert (result.get("failed"), result["ready"], result["stage"]) == (None, True, "degraded")


def test_all_options_reach_the_probe(server: fake.OpenAIServer, run: Runner) -> None:
    server.models = ["one", "two"]
    result = run(
        url=server.url + "/v1",
        model="two",
        kind="chat",
        checks=["chat", "tools", "answer"],
        question="echo",
        answer_severity="warning",
        scripts=["cjk"],
        max_tokens=128,
        timeout=90,
        request_timeout=80,
        validate_certs=False,
    )
    assert (result["stage"], result["evidence"]["checks"]) == ("ready", {"chat": "ok", "tools": "ok"})
    asked = server.asked(fake.CHAT)[0].json
    assert (asked["model"], asked["max_tokens"], asked["messages"][0]["content"][:6]) == ("two", 128, "Repeat")


def test_a_wrong_answer_may_be_a_warning(server: fake.OpenAIServer, run: Runner) -> None:
    post_all(fake.say("I would say 999"))(server)
    assert run(url=server.url, answer_severity="warning")["stage"] == "degraded"
    assert run(url=server.url)["stage"] == "wrong_answer"


# keys


@pytest.mark.parametrize("text", [f"{KEY}\n", f"# key\nVLLM_API_KEY={KEY}\n"])
def test_a_key_may_come_from_a_file(server: fake.OpenAIServer, run: Runner, tmp_path: pathlib.Path, text: str) -> None:
    server.api_key = KEY
    (tmp_path / "key").write_text(text)
    assert run(url=server.url, api_key_file=str(tmp_path / "key"))["stage"] == "ready"
    assert KEY not in run.output


@pytest.mark.parametrize("from_file", [False, True])
def test_a_key_is_nowhere_in_what_comes_out(
    server: fake.OpenAIServer, run: Runner, logged: list[str], tmp_path: pathlib.Path, from_file: bool
) -> None:
    (tmp_path / "key").write_text(KEY)
    given = {"api_key_file": str(tmp_path / "key")} if from_file else {"api_key": KEY}
    post_all(fake.status(500, f"wrong key {KEY}"))(server)
    assert run(url=server.url, wait=True, timeout=4.9, **given)["stage"] == "engine_dead"
    assert logged
    assert KEY not in run.output + "".join(logged)


@pytest.mark.parametrize("key", [KEY + "\n", KEY + " x", KEY + "\u00e9"])
def test_a_key_that_cannot_be_sent_is_refused_unseen(run: Runner, key: str) -> None:
    result = run(url=f"http://127.0.0.1:{free_port()}", api_key=key)
    assert result["failed"]
    assert "api_key" in result["msg"]
    assert KEY not in run.output


# bad input


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"url": "spark-1:8000"}, "does not start with http"),
        ({"url": f"http://joe:{KEY}@spark-1"}, "user name or a password"),
        ({"scripts": ["klingon"]}, "scripts does not know 'klingon'"),
        ({"kind": "embedding", "checks": ["tools"]}, "kind embedding has not"),
        ({"timeout": 0}, "timeout has to be more than zero"),
        ({"timeout": "nan"}, "timeout has to be more than zero"),
        ({"request_timeout": -1}, "request_timeout has to be more than zero"),
        ({"api_key_file": "/nowhere/key"}, "/nowhere/key cannot be read (No such file or directory)"),
        ({"api_key_file": "EMPTY"}, "holds no key"),
        ({"api_key_file": "BINARY"}, "is no text file"),
        ({"checks": ["chats"]}, "value of checks must be one or more of"),
        ({"api_key": KEY, "api_key_file": "b"}, "mutually exclusive"),
        ({"unit": "a", "container": "b"}, "mutually exclusive"),
    ],
)
def test_bad_input_is_one_sentence(run: Runner, tmp_path: pathlib.Path, args: dict[str, t.Any], words: str) -> None:
    (tmp_path / "EMPTY").write_text("\n# nothing\n")
    (tmp_path / "BINARY").write_bytes(b"\xff\xfe\x00")
    if args.get("api_key_file", "").isupper():
        args = args | {"api_key_file": str(tmp_path / args["api_key_file"])}
    result = run(**args)
    assert result["failed"]
    assert words in result["msg"]
    assert "\n" not in result["msg"]
    assert KEY not in run.output
    assert "ready" not in result


# process, waiting, GPU

UNIT = "LoadState=loaded\nActiveState={}\nSubState={}\nMainPID={}\nResult=success\nExecMainStatus=0\nNRestarts=0"


@pytest.mark.parametrize(
    ("shown", "stage"),
    [
        (UNIT.format("activating", "start-post", 4711), "starting"),
        (UNIT.format("failed", "failed", 0), "dead"),
        ("", "unreachable"),
    ],
)
def test_a_unit_tells_starting_from_dead(
    run: Runner, programs: t.Callable[[str, str], None], tmp_path: pathlib.Path, shown: str, stage: str
) -> None:
    programs("systemctl", shown)
    result = run(url=f"http://127.0.0.1:{free_port()}", unit="vllm-a.service")
    assert (result["failed"], result["stage"]) == (True, stage)
    assert (tmp_path / "bin" / "systemctl.args").read_text().endswith("-- vllm-a.service\n")


def test_a_container_does_so_too(run: Runner, programs: t.Callable[[str, str], None]) -> None:
    programs("docker", "vllm-b")
    assert run(url=f"http://127.0.0.1:{free_port()}", container="vllm-a")["stage"] == "dead"
    assert run(url=f"http://127.0.0.1:{free_port()}", container="vllm-b")["stage"] == "unreachable"


def test_waiting_logs_each_change(run: Runner, logged: list[str], programs: t.Callable[[str, str], None]) -> None:
    programs("systemctl", UNIT.format("failed", "failed", 0))
    result = run(url=f"http://127.0.0.1:{free_port()}", unit="vllm-a.service", wait=True, timeout=600)
    assert (result["stage"], result["evidence"]["attempts"]) == ("dead", 1)
    assert [line.split(": ")[1] for line in logged] == ["dead"]


def test_the_gpu_of_this_machine_is_looked_at(
    server: fake.OpenAIServer, run: Runner, programs: t.Callable[[str, str], None]
) -> None:
    programs("nvidia-smi", "utilization.gpu [%], clocks.sm [MHz], power.draw [W]\n96 %, 799 MHz, 19.5 W")
    FAULTS["hang"].set_up(server)
    result = run(url=server.url, request_timeout=0.3, timeout=180)
    assert "GB10_LOW_POWER_STATE" in [found["id"] for found in result["findings"]]


# documentation


def test_the_documentation_knows_every_stage_and_rung() -> None:
    returned = yaml.safe_load(vllm_probe.RETURN)
    for name in STAGES:
        assert name in returned["stage"]["description"]
    for stage in STAGES.values():
        assert stage.rung in returned["rung"]["description"]


def test_every_result_is_documented(server: fake.OpenAIServer, run: Runner) -> None:
    result = run(url=server.url)
    assert set(result) - {"changed", "invocation"} == set(yaml.safe_load(vllm_probe.RETURN))
