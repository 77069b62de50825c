# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The watch on a box: a real HTTP server with faults behind it, and a table in place of systemd and Docker."""

from __future__ import annotations

import collections.abc as c
import fcntl
import json
import pathlib
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _group_files, _liveness, _watch
from tests.unit.support import openai_server as fake
from tests.unit.support.faults import FAULTS, post_all
from tests.unit.support.probing import SkipClock, free_port

SMI = "utilization.gpu [%], clocks.sm [MHz], clocks.applications.gr [MHz], power.draw [W]\n"


class Box:
    """A box with one instance, whose unit and container say what the test wants them to."""

    def __init__(self, folder: pathlib.Path, url: str) -> None:
        self.folder = folder
        self.clock = SkipClock()
        self.settings: dict[str, t.Any] = {
            "name": "writer",
            "url": url,
            "models": ["lab/tiny"],
            "kind": "chat",
            "secrets_file": "",
            "spec": "s1",
            "liveness": {
                "period_s": 60,
                "answer_s": 0.4,
                "restarts": 3,
                "window_s": 21600,
                "restart_after_hours": 0,
            },
        }
        self.shown: c.Iterator[str] | None = None
        self.unit = "ActiveState=active\nSubState=running\nInvocationID=a\nMainPID=7\nActiveEnterTimestampMonotonic=0\n"
        self.spec = "s1"
        self.smi = ""
        self.ran: list[str] = []
        self.warned: list[str] = []
        self.failed: list[str] = []
        self.refused = ""
        self.silent = False
        self.switch = "active"

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        self.ran.append(" ".join(argv))
        if argv[:2] == ["systemctl", "show"] and self.silent:
            return 1, "", "Failed to connect to bus: Connection timed out"
        if argv[:2] == ["systemctl", "show"] and argv[-1] == "gb10-fleet-switch.service":
            return 0, f"ActiveState={self.switch}\n", ""
        if argv[:2] == ["systemctl", "show"]:
            return 0, next(self.shown) if self.shown else self.unit, ""
        if argv[0] == "docker":
            state = {"Running": True, "Pid": 7, "ExitCode": 0}
            labels = {"gb10.fleet.spec": self.spec}
            found = {"Id": "c", "Name": "/vllm-writer", "State": state, "Config": {"Image": "x", "Labels": labels}}
            return 0, json.dumps([found]), ""
        if argv[0] == "nvidia-smi":
            return (0, self.smi, "") if self.smi else (127, "", "nvidia-smi: not found")
        return (1, "", self.refused) if self.refused else (0, "", "")

    @property
    def deeds(self) -> list[str]:
        """What was done to the unit."""
        return [command for command in self.ran if command.startswith("systemctl") and " show " not in command]

    def sleep(self, seconds: float) -> None:
        """Pass time: the pauses between strikes are as long as if an answer were waited for a minute."""
        self.clock.sleep(seconds if seconds > 5 else 150 * seconds)

    def watch(self, times: int = 1) -> None:
        eyes = _watch.Box(
            run=self.run,
            clock=self.clock,
            sleep=self.sleep,
            warn=lambda unit, line: self.warned.append(f"{unit}|{line}"),
            fail=lambda unit, line: self.failed.append(f"{unit}|{line}"),
            folder=self.folder,
            switch=self.folder / "switch",
            groups=self.folder / "groups",
        )
        for _time in range(times):
            assert _watch.watch("writer", self.settings, box=eyes) == 0

    def state(self) -> _liveness.State:
        return _watch.StateFile("writer", self.folder).read()


@pytest.fixture
def server() -> c.Iterator[fake.OpenAIServer]:
    with fake.OpenAIServer() as running:
        yield running


@pytest.fixture
def box(tmp_path: pathlib.Path, server: fake.OpenAIServer) -> Box:
    return Box(tmp_path, server.url)


RESTART = [
    "systemctl reset-failed vllm-writer.service",
    # A stop that somebody has asked for in the same moment is in systemd's queue already, and wins.
    "systemctl --no-block --job-mode=fail try-restart vllm-writer.service",
]


def test_a_living_engine_is_asked_for_a_few_tokens_and_nothing_is_said(box: Box, server: fake.OpenAIServer) -> None:
    box.watch(3)
    assert (box.deeds, box.warned, box.failed) == ([], [], [])
    asked = server.asked(fake.CHAT)
    assert [request.json["max_tokens"] for request in asked] == [10, 10, 10]
    assert len({request.prompt for request in asked}) > 1
    assert box.state().counts == {"looks": 3, "alive": 3}


# Each fault of the readiness suite, met by an engine that has answered before: what the watch has to do in one run.
VERDICTS: dict[str, str] = {
    "health_lies_500": "hang",
    "dies_at_first_message": "dead",
    "engine_dead_health_503": "dead",
    "finish_reason_error": "hang",
    "reset_at_completion": "hang",
    "closed_at_completion": "hang",
    "hang": "hang",
    "hang_in_queue": "hang",
    "hang_mid_body": "hang",
    "busy": "busy",
    "long_prompt": "busy",
    "too_many_requests": "busy",
    "health_hangs_only": "alive",
    "slow_first_token": "alive",
    "auth_required": "person",
    "wrong_model": "person",
    "squatter_html": "person",
    "squatter_redirect": "person",
    "garbage_symbols": "text",
    "garbage_words": "text",
    "garbage_nul": "text",
    "garbage_scripts": "text",
    "garbage_when_streamed": "alive",
    "empty": "text",
    "empty_budget": "alive",
    "answer_in_reasoning": "text",
    "not_json": "hang",
    "reasoning_leaks": "alive",
    "refuses": "person",
}


@pytest.mark.parametrize(("fault", "sign"), VERDICTS.items())
def test_every_fault_gets_its_due(box: Box, server: fake.OpenAIServer, fault: str, sign: str) -> None:
    FAULTS[fault].set_up(server)
    box.watch()
    counts = box.state().counts
    assert set(counts) - {"looks", "strikes", "restarts"} == {sign}, counts
    if sign == "hang":
        # The figures of a wedged engine still show the watch's own request: it gets the time of one with requests.
        shows_load = server.metrics.running + server.metrics.waiting > 0
        assert counts["hang"] > 3 if shows_load else counts["hang"] == 3
    restarted = box.deeds == RESTART
    assert restarted == (sign in {"dead", "hang", "text"})
    if restarted:
        assert len(box.failed) == 1
        assert box.failed[0].startswith(
            "vllm-writer.service|liveness: vllm-writer.service: restarting it (restart 1 of 3 within 6 h): "
        )


def test_nothing_that_listens_is_dead_once_the_unit_was_active(box: Box) -> None:
    box.settings["url"] = f"http://127.0.0.1:{free_port()}"
    box.watch()
    assert box.deeds == RESTART
    assert box.clock.sleeps == [pytest.approx(10, abs=0.5)]
    assert "ENGINE_STARTING" not in box.failed[0]


def test_an_engine_that_ends_by_itself_is_left_to_systemd(box: Box, server: fake.OpenAIServer) -> None:
    server.dead = True
    gone = "ActiveState=activating\nSubState=auto-restart\n"
    box.shown = iter([box.unit, box.unit, box.unit, gone])
    box.watch()
    assert box.deeds == []
    assert box.state().counts == {"looks": 2, "dead": 1, "strikes": 1, "away": 1}


@pytest.mark.parametrize(
    "unit",
    [
        "ActiveState=inactive\nSubState=dead\n",
        "ActiveState=activating\nSubState=start-post\n",
        "ActiveState=deactivating\nSubState=stop-sigterm\n",
        "ActiveState=failed\nSubState=failed\n",
        "ActiveState=active\nSubState=running\nInvocationID=a\nJob=4711\n",
    ],
)
def test_a_unit_that_is_down_boots_or_is_being_stopped_is_not_even_asked(
    box: Box, server: fake.OpenAIServer, unit: str
) -> None:
    server.dead = True
    box.unit = unit
    box.watch(4)
    assert (server.requests, box.deeds, box.warned, box.failed) == ([], [], [], [])


def test_a_systemd_that_does_not_answer_takes_no_strike_back(box: Box, server: fake.OpenAIServer) -> None:
    FAULTS["health_lies_500"].set_up(server)
    box.settings["liveness"]["period_s"] = 10  # no room for a third look in a run
    box.watch()
    assert box.state().strikes == {"hang": 2}
    box.silent = True
    box.watch(2)
    assert (box.state().strikes, box.deeds) == ({"hang": 2}, [])
    box.silent = False
    box.watch()
    assert box.deeds == RESTART


def test_an_engine_that_is_about_to_be_replaced_is_left_alone(box: Box, server: fake.OpenAIServer) -> None:
    server.dead = True
    box.spec = "s0"
    box.watch(3)
    assert (server.requests, box.deeds) == ([], [])
    assert len(box.warned) == 1
    assert "run site.yml" in box.warned[0]


def test_a_deployment_is_left_alone_with_what_it_starts_and_proves(box: Box, server: fake.OpenAIServer) -> None:
    server.dead = True
    (box.folder / "switch").write_text('{"to": "new", "before": "old", "boot_id": "1"}', encoding="utf-8")
    box.watch(3)
    assert (server.requests, box.deeds, box.warned) == ([], [], [])


@pytest.mark.parametrize("state", ["inactive", "failed", "activating"])
def test_a_switch_that_nobody_is_at_is_taken_up(box: Box, server: fake.OpenAIServer, state: str) -> None:
    box.switch = state
    (box.folder / "switch").write_text('{"to": "new", "before": "old", "boot_id": "1"}', encoding="utf-8")
    box.watch()
    taken_up = state != "activating"  # systemd itself is about to run it again
    assert box.deeds == ["systemctl --no-block start gb10-fleet-switch.service"] * taken_up
    assert [("nobody is at the switch" in line) for line in box.warned] == [True] * taken_up
    assert server.requests == []


@pytest.mark.parametrize("then", ["ActiveState=inactive\n", "ActiveState=active\nInvocationID=b\n"])
def test_what_was_seen_of_a_unit_that_changed_meanwhile_does_not_count(
    box: Box, server: fake.OpenAIServer, then: str
) -> None:
    FAULTS["hang"].set_up(server)
    box.shown = iter([box.unit, box.unit, box.unit, then])
    box.watch()
    assert box.deeds == []
    assert box.state().strikes == {}


def test_under_load_the_counters_are_the_witness_and_every_fourth_look_asks(
    box: Box, server: fake.OpenAIServer
) -> None:
    server.metrics = fake.Metrics(running=2, per_read=40)
    box.watch(9)
    assert box.state().counts == {"looks": 9, "alive": 3, "moving": 6}
    assert len(server.asked(fake.CHAT)) == 3


def test_work_of_before_the_end_of_an_engine_is_no_witness(box: Box, server: fake.OpenAIServer) -> None:
    server.metrics = fake.Metrics(running=2, generation_tokens=1000)
    box.watch()
    # It worked on for a while, and then its core ended. Its requests stay in the figures, and /health says 200.
    server.metrics = fake.Metrics(running=2, generation_tokens=9000)
    FAULTS["hang"].set_up(server)
    box.settings["liveness"]["period_s"] = 10
    box.watch()
    assert box.state().counts["hang"] >= 1
    assert "moving" not in box.state().counts
    assert "strike 1 of 3: hung" in box.warned[0]


def test_tokens_of_the_watch_itself_are_no_progress_of_others(box: Box, server: fake.OpenAIServer) -> None:
    box.watch(2)
    assert server.metrics.generation_tokens > 1000
    assert box.state().work[0] == server.metrics.generation_tokens
    assert box.state().moved_at == 0


def test_a_look_at_a_working_engine_is_over_as_soon_as_a_token_was_seen(box: Box, server: fake.OpenAIServer) -> None:
    server.metrics = fake.Metrics(running=2, per_read=40)
    box.watch()
    box.clock.sleeps.clear()
    box.watch()
    assert box.state().counts["moving"] == 1
    assert len(box.clock.sleeps) == 1
    # An idle one is not waited for at all.
    server.metrics = fake.Metrics()
    box.clock.sleeps.clear()
    box.watch()
    assert box.clock.sleeps == []


def test_a_long_prompt_is_computed_in_peace_though_no_token_comes(box: Box, server: fake.OpenAIServer) -> None:
    # Somebody's 260,000 tokens at 690 tokens/s: six minutes in which vLLM counts nothing, and answers nobody else.
    server.metrics = fake.Metrics(running=1, kv_per_read=0.001)
    FAULTS["hang"].set_up(server)
    for _period in range(6):
        box.watch()
        box.clock.sleep(47)
    assert (box.deeds, box.warned, box.failed) == ([], [], [])
    assert box.state().counts["busy"] + box.state().counts.get("moving", 0) == 6
    # It is a hang where the cache does not fill any more.
    server.metrics.kv_per_read = 0
    for _period in range(3):
        box.watch()
        box.clock.sleep(47)
    assert box.deeds[:2] == RESTART


def test_an_engine_that_refuses_the_question_of_the_watch_alone_is_left_alone(
    box: Box, server: fake.OpenAIServer
) -> None:
    server.metrics = fake.Metrics(running=2, per_read=4000)
    FAULTS["health_lies_500"].set_up(server)
    box.watch(9)
    assert (box.deeds, box.failed) == ([], [])
    assert len([line for line in box.warned if "not restarted, since the tokens of others moved" in line]) == 1
    assert "HTTP 500" in box.warned[-1]


def test_a_hang_under_load_that_nobody_can_tell_gets_a_whole_period(box: Box, server: fake.OpenAIServer) -> None:
    box.watch()  # idle
    server.script("GET", fake.METRICS, fake.status(503))
    FAULTS["hang"].set_up(server)
    box.watch()
    assert box.state().counts["hang"] > 3
    assert any("It may have requests" in line for line in box.warned)
    assert box.deeds == RESTART


@pytest.fixture
def head(box: Box) -> Box:
    """The box with the head of a serving group, which has been looked at once."""
    box.settings["group"] = {"name": "pair", "heartbeat_seconds": 300}
    box.watch()
    return box


def beaten(box: Box, *, token: str = "a", before_s: float = 30) -> None:
    """Have the daemon of the group have seen it compute."""
    word = _group_files.Beat(token, box.clock() - before_s)
    _group_files.GroupFiles("writer", box.folder / "groups").write(word)


def test_an_idle_head_that_answers_the_daemon_of_its_group_is_asked_in_every_fourth_look(
    head: Box, server: fake.OpenAIServer
) -> None:
    for _look in range(8):
        beaten(head)
        head.watch()
    assert head.state().counts == {"looks": 9, "alive": 3, "moving": 6}
    assert len(server.asked(fake.CHAT)) == 3


@pytest.mark.parametrize("beat", [{"before_s": 61}, {"token": "an earlier start"}, None])
def test_a_head_that_was_not_seen_to_compute_within_the_period_is_asked(
    head: Box, server: fake.OpenAIServer, beat: dict[str, t.Any] | None
) -> None:
    if beat is not None:
        beaten(head, **beat)
    head.watch()
    assert head.state().counts == {"looks": 2, "alive": 2}


def test_a_head_whose_requests_do_not_move_is_asked_whatever_the_daemon_saw(
    head: Box, server: fake.OpenAIServer
) -> None:
    server.metrics = fake.Metrics(running=2)
    beaten(head)
    head.watch()
    assert head.state().counts == {"looks": 2, "alive": 2}


def test_counters_that_stand_still_under_load_are_no_witness(box: Box, server: fake.OpenAIServer) -> None:
    server.metrics = fake.Metrics(running=2)
    FAULTS["hang"].set_up(server)
    box.watch(2)
    assert len(server.asked(fake.CHAT)) >= 2
    assert "strike 1 of 3: hung" in box.warned[0]


def test_094_the_low_power_wedge_is_named(box: Box, server: fake.OpenAIServer) -> None:
    server.metrics = fake.Metrics(generation_tokens=184223, running=3)
    box.smi = f"{SMI}96 %, 2400 MHz, 2418 MHz, 22.00 W\n"
    FAULTS["hang"].set_up(server)
    box.watch()
    assert (
        "4 requests run and 184223 tokens stay 184223. The GPU is 96 % busy at 2400.0 MHz and 22.0 W."
        in (box.warned[0])
    )
    assert box.deeds == RESTART


def test_a_wrong_sum_is_asked_again_and_one_slip_is_none(box: Box, server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, fake.say("1000"), fake.answer)
    box.watch()
    assert box.state().counts == {"looks": 1, "alive": 1}
    assert len(server.asked(fake.CHAT)) == 3


def test_nine_wrong_sums_in_a_row_are_garbage(box: Box, server: fake.OpenAIServer) -> None:
    post_all(fake.say("1000"))(server)
    box.watch()
    assert box.deeds == RESTART
    assert len(server.asked(fake.CHAT)) == 9
    assert "wrong_answer: three of three answers are wrong: '1000' to 'What is" in box.failed[0]


def test_a_long_answer_that_is_cut_short_is_not_called_wrong(box: Box, server: fake.OpenAIServer) -> None:
    post_all(fake.say("Let us see. The sum of the two numbers", "length", tokens=16))(server)
    box.watch()
    assert box.state().counts == {"looks": 1, "alive": 1}


@pytest.mark.parametrize("kind", ["base", "embedding", "pooling"])
def test_other_kinds_are_asked_in_their_own_way(box: Box, server: fake.OpenAIServer, kind: str) -> None:
    server.kind = t.cast("t.Any", kind)
    box.settings["kind"] = "embedding" if kind == "pooling" else kind
    box.watch()
    assert box.state().counts == {"looks": 1, "alive": 1}
    assert server.asked(fake.CHAT) == []


def test_the_key_is_sent_and_never_said(box: Box, server: fake.OpenAIServer) -> None:
    server.api_key = "sk-secret"
    eyes = _watch.Box(run=box.run, clock=box.clock, sleep=box.clock.sleep, warn=box_warn(box), folder=box.folder)
    _watch.watch("writer", box.settings, api_key="sk-secret", box=eyes)
    assert box.state().counts == {"looks": 1, "alive": 1}
    assert "sk-secret" not in (box.folder / "writer.json").read_text("utf-8")


def box_warn(box: Box) -> c.Callable[[str, str], None]:
    return lambda unit, line: box.warned.append(line)


def test_a_restart_that_systemd_refuses_is_told(box: Box, server: fake.OpenAIServer) -> None:
    server.dead = True
    box.refused = "Access denied"
    box.watch()
    assert "`systemctl try-restart vllm-writer.service` failed: Access denied" in box.failed[-1]


def test_the_bound_holds_and_the_last_line_names_the_cure(box: Box, server: fake.OpenAIServer) -> None:
    server.dead = True
    box.watch(4)
    assert box.deeds == [*RESTART * 3, "systemctl --no-block stop vllm-writer.service"]
    assert ".. " not in box.failed[-1]
    assert ". See `journalctl -u vllm-writer.service`; " in box.failed[-1]
    assert box.failed[-1].endswith("when it is cured: `systemctl start vllm-writer.service`.")
    assert "stays down: it was restarted 3 times within 6 h and fails again: engine_dead" in box.failed[-1]


def test_two_watches_of_one_instance_do_not_meet(box: Box, server: fake.OpenAIServer) -> None:
    with (box.folder / "writer.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        box.watch()
    assert server.requests == []


@pytest.mark.parametrize("left", ["", "{", "[]", '{"strikes": 3, "of": "another version"}'])
def test_a_state_that_cannot_be_read_is_none(box: Box, server: fake.OpenAIServer, left: str) -> None:
    (box.folder / "writer.json").write_text(left, encoding="utf-8")
    box.watch()
    assert box.state().counts == {"looks": 1, "alive": 1}


def test_what_another_version_has_counted_goes_on(box: Box, server: fake.OpenAIServer) -> None:
    left = {"invocation": "a", "loaded": True, "restarts": [1.0], "counts": {"looks": 8, "alive": 8}, "of": "later"}
    (box.folder / "writer.json").write_text(json.dumps(left), encoding="utf-8")
    box.watch()
    assert box.state().counts == {"looks": 9, "alive": 9}
    assert box.state().restarts == (1.0,)


def test_an_instance_that_is_not_to_be_watched_is_not(box: Box, server: fake.OpenAIServer) -> None:
    box.settings["liveness"] = None
    box.watch()
    assert (server.requests, box.ran) == ([], [])
