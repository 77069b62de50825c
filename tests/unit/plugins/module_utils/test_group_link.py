# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ranks ask each other over real sockets of this machine."""

from __future__ import annotations

import collections.abc as c
import http.client
import http.server
import json
import socket
import threading
import time
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _group_link, _group_rules

STATE = _group_rules.RankState(
    instance="writer",
    spec="s",
    rank=1,
    token="b",
    stage="open",
    round="",
    sees={0: "a"},
    said="",
    ended=None,
    now=0.0,
)
LOOPBACK = _group_rules.Member(1, "spark-2", "127.0.0.1")


@pytest.fixture
def serve() -> c.Iterator[c.Callable[[dict[str, t.Any]], int]]:
    """Return how to publish a state; it answers with the port."""
    servers: list[_group_link.StateServer] = []

    def start(state: dict[str, t.Any]) -> int:
        server = _group_link.StateServer("127.0.0.1", 0, lambda: state)
        server.run()
        servers.append(server)
        return int(server.server_address[1])

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_rank_hears_what_another_one_publishes(serve: c.Callable[[dict[str, t.Any]], int]) -> None:
    link = _group_link.Link(LOOPBACK, "writer", serve(STATE.as_dict()))
    assert link.seen().state is None
    link.ask()
    seen = link.seen()
    assert seen.state == STATE
    assert seen.token == "b"
    assert seen.error == ""
    # The other box's clock stands at 0 here.
    assert link.offset_s < -1_000_000


def test_time_given_up_counts_without_a_break_and_from_the_start_of_this_rank_on(
    serve: c.Callable[[dict[str, t.Any]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(_group_link.time, "monotonic", lambda: now[0])
    state = {**STATE.as_dict(), "stage": "given-up"}
    link = _group_link.Link(LOOPBACK, "writer", serve(state))
    for moment, stage, expected in (
        (100.0, "given-up", 0.0),
        (140.0, "given-up", 40.0),
        (150.0, "gating", 0.0),
        (160.0, "given-up", 0.0),
        (165.0, "given-up", 5.0),
    ):
        now[0], state["stage"] = moment, stage
        link.ask()
        assert link.seen().given_up_s == expected
    link.forgive()
    assert link.seen().given_up_s == 0.0


def test_a_rank_that_did_not_run_counts_that_time_as_its_own(
    serve: c.Callable[[dict[str, t.Any]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(_group_link.time, "monotonic", lambda: now[0])
    link = _group_link.Link(LOOPBACK, "writer", serve(STATE.as_dict()))
    link.ask()
    for moment, silent_s, stalled_s in ((104.0, 4.0, 0.0), (130.0, 30.0, 26.0), (134.0, 34.0, 26.0)):
        now[0] = moment
        seen = link.seen()
        assert (seen.silent_s, seen.stalled_s) == (silent_s, stalled_s)
    link.ask()
    assert (link.seen().silent_s, link.seen().stalled_s) == (0.0, 0.0)
    assert link.stalled_s == 26.0


def test_a_rank_that_asks_and_is_not_answered_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(_group_link.time, "monotonic", lambda: now[0])

    def wait_in_vain(*_arguments: object) -> object:
        now[0] += 3
        raise TimeoutError

    monkeypatch.setattr(_group_link, "fetch", wait_in_vain)
    link = _group_link.Link(LOOPBACK, "writer", 1)
    for _ask in range(6):
        link.ask()
        now[0] += 1
    assert (link.seen().silent_s, link.seen().stalled_s) == (24.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"instance": "reader"}, "what answers there is not rank 1 of writer"),
        ({"stage": "new in the next release"}, "speaks another language"),
        ({"said": "x" * 70000}, "its answer is too long"),
    ],
)
def test_what_is_not_the_other_rank_is_not_heard(
    serve: c.Callable[[dict[str, t.Any]], int], changes: dict[str, t.Any], says: str
) -> None:
    link = _group_link.Link(LOOPBACK, "writer", serve({**STATE.as_dict(), **changes}))
    link.ask()
    assert link.seen().state is None
    assert says in link.seen().error


@pytest.mark.parametrize("answer", ["[" * 60000, '{"stage": ' + "[" * 60000, "9" * 5000, "\x00", ""])
def test_no_answer_ends_the_asking(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(_group_link, "fetch", lambda *_arguments: json.loads(answer))
    link = _group_link.Link(LOOPBACK, "writer", 1)
    link.ask()
    assert link.seen().error == "what answers there is not another rank"
    monkeypatch.setattr(_group_link, "fetch", lambda *_arguments: STATE.as_dict())
    link.ask()
    assert link.seen().state == STATE
    assert link.seen().error == ""


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread"), TypeError("x")])
def test_no_fault_of_this_box_ends_the_asking(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_arguments: object) -> object:
        raise error

    monkeypatch.setattr(_group_link, "fetch", fail)
    link = _group_link.Link(LOOPBACK, "writer", 1)
    link.ask()
    assert link.seen().state is None
    assert link.seen().error


def test_a_daemon_that_does_not_look_any_more_is_not_heard() -> None:
    with _group_link.StateServer("127.0.0.1", 0, lambda: None) as server:
        server.run()
        link = _group_link.Link(LOOPBACK, "writer", server.server_address[1])
        link.ask()
        server.shutdown()
    assert link.seen().state is None
    assert link.seen().error == "its daemon hangs"
    assert not link.seen().refused


def connect(server: _group_link.StateServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=30)


def test_who_takes_too_long_is_cut_off_and_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_group_link, "_MAX_CLIENTS", 2)
    monkeypatch.setattr(_group_link, "_CLIENT_S", 1000.0)
    with _group_link.StateServer("127.0.0.1", 0, STATE.as_dict) as server:
        slow = [connect(server), connect(server)]
        for _one in slow:
            server.handle_request()
        with connect(server) as refused:
            server.handle_request()
            assert refused.recv(1) == b""
        assert len(server._clients) == 2
        for one in slow:
            one.sendall(b"GET / HT")
        later = time.monotonic() + 1001
        monkeypatch.setattr(_group_link.time, "monotonic", lambda: later)
        server.service_actions()
        for one in slow:
            with one:
                assert one.recv(1) == b""
        while server._clients:
            time.sleep(0.01)
        server.run()
        link = _group_link.Link(LOOPBACK, "writer", server.server_port)
        link.ask()
        server.shutdown()
    assert link.seen().state == STATE


def test_nobody_there_is_said_in_words() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    link = _group_link.Link(LOOPBACK, "writer", port)
    link.ask()
    assert link.seen().error == "connection refused"
    assert link.seen().refused


def test_a_rank_asks_from_its_own_address_only(serve: c.Callable[[dict[str, t.Any]], int]) -> None:
    port = serve(STATE.as_dict())
    link = _group_link.Link(LOOPBACK, "writer", port, "127.0.0.1")
    link.ask()
    assert link.seen().state == STATE
    elsewhere = _group_link.Link(LOOPBACK, "writer", port, "192.0.2.77")
    elsewhere.ask()
    assert elsewhere.seen().state is None
    assert elsewhere.seen().error == "cannot assign requested address"


def test_a_server_that_is_no_rank_is_not_heard() -> None:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_arguments: t.Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.handle_request).start()
        link = _group_link.Link(LOOPBACK, "writer", server.server_address[1])
        link.ask()
    assert link.seen().error == "what answers there is not another rank"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_ordered_over_it(serve: c.Callable[[dict[str, t.Any]], int], method: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", serve(STATE.as_dict()), timeout=5)
    connection.request(method, "/stop", json.dumps({"stage": "stopped"}))
    assert connection.getresponse().status == 501
    connection.close()


def test_a_rank_listens_at_an_address_that_its_box_does_not_have_yet() -> None:
    with _group_link.StateServer("192.0.2.77", 0, dict) as server:
        assert server.server_address[0] == "192.0.2.77"
