# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import socket
import threading
import time
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _openai_api as api
from tests.unit.support import openai_server as fake

if t.TYPE_CHECKING:
    import collections.abc


@pytest.fixture
def server() -> collections.abc.Iterator[fake.OpenAIServer]:
    with fake.OpenAIServer() as running:
        yield running


def client_of(server: fake.OpenAIServer, **options: t.Any) -> api.Client:
    return api.Client(api.Endpoint.from_url(server.url), clock=time.monotonic, **options)


def soon(seconds: float = 5.0) -> api.Deadline:
    return api.Deadline.after(seconds, time.monotonic)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# URLs


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        (" http://spark-1:8000/v1/ ", "http://spark-1:8000"),
        ("http://spark-1", "http://spark-1:80"),
        ("https://spark-1/llm/v1", "https://spark-1:443/llm"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("http://[fe80::1%25eth0]:8000", "http://[fe80::1%eth0]:8000"),
        ("HTTP://Spark-1:8000/A/b", "http://spark-1:8000/A/b"),
    ],
)
def test_a_base_url_is_understood(url: str, shown: str) -> None:
    assert str(api.Endpoint.from_url(url)) == shown


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("spark-1:8000", "does not start with http"),
        ("ftp://spark-1", "does not start with http"),
        ("http://", "no host"),
        ("http://:8000", "no host"),
        ("http://spark-1:port", "cannot be understood"),
        ("http://spark-1:99999", "cannot be understood"),
        ("http://[::1", "cannot be understood"),
        ("http://spark 1:8000", "odd characters"),
        ("http://spark-1/a b", "odd characters"),
        ("http://sp\u00e4rk/", "odd characters"),
        ("http://spark-1/v1?key=1", "query"),
        ("http://spark-1/v1#x", "fragment"),
    ],
)
def test_a_useless_url_is_refused_with_a_reason(url: str, words: str) -> None:
    with pytest.raises(api.InputError, match=words):
        api.Endpoint.from_url(url)


@pytest.mark.parametrize("url", ["http://joe:hunter2@spark-1", "http://hunter2@spark-1:8000/v1"])
def test_a_password_in_a_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(api.InputError, match="api_key") as refused:
        api.Endpoint.from_url(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.2:1", True),
        ("http://[::1]:1", True),
        ("http://localhost:1", True),
        ("http://10.0.0.1:1", False),
        ("http://spark-1:1", False),
    ],
)
def test_loopback_is_recognised(url: str, local: bool) -> None:
    assert api.Endpoint.from_url(url).is_loopback is local


# keys


@pytest.mark.parametrize("key", ["sk-1\n", "sk 1", "s\u00e9cret", "sk-1\r\nX-Evil: 1", "\x00"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    endpoint = api.Endpoint.from_url("http://127.0.0.1:1")
    with pytest.raises(api.InputError, match="api_key") as refused:
        api.Client(endpoint, clock=time.monotonic, api_key=key)
    assert key not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("sk-1", "sk-1"),
        ("sk-1\n", "sk-1"),
        ("\n# the key\nsk-1\r\nsk-2\n", "sk-1"),
        ("HF_TOKEN=hf_x\nVLLM_API_KEY=sk-1\n", "sk-1"),
        ("VLLM_API_KEY='sk-1'\n", "sk-1"),
        ("\n# nothing\n", ""),
        ("", ""),
    ],
)
def test_a_key_is_read_from_a_file(text: str, key: str) -> None:
    assert api.read_api_key(text) == key


def test_the_key_is_sent_only_where_it_is_asked_for(server: fake.OpenAIServer) -> None:
    client = client_of(server, api_key="sk-1")
    client.get(fake.HEALTH, soon())
    client.get(fake.MODELS, soon(), with_key=True)
    sent = [request.headers.get("authorization") for request in server.requests]
    assert sent == [None, "Bearer sk-1"]


# exchanges


def test_a_whole_answer_comes_with_status_headers_and_body(server: fake.OpenAIServer) -> None:
    reply = client_of(server).get(fake.VERSION, soon())
    assert (reply.status, reply.headers["server"], reply.json()) == (200, "uvicorn", {"version": "0.32.0"})


def test_an_error_status_is_an_answer_like_any_other(server: fake.OpenAIServer) -> None:
    reply = client_of(server).get("/nowhere", soon())
    assert (reply.status, reply.error_message) == (404, "Not Found")


@pytest.mark.parametrize("url_path", ["/llm", "/a/b/v1"])
def test_a_base_path_comes_before_every_path(server: fake.OpenAIServer, url_path: str) -> None:
    server.base_path = url_path.removesuffix("/v1")
    endpoint = api.Endpoint.from_url(f"http://127.0.0.1:{server.port}{url_path}")
    assert api.Client(endpoint, clock=time.monotonic).get(fake.MODELS, soon()).status == 200


def test_ipv6_literals_work() -> None:
    with fake.OpenAIServer("::1") as server:
        assert client_of(server).get(fake.HEALTH, soon()).status == 200
        assert server.requests[0].headers["host"] == f"[::1]:{server.port}"


def test_a_host_name_is_looked_up(server: fake.OpenAIServer) -> None:
    endpoint = api.Endpoint.from_url(f"http://localhost:{server.port}")
    assert api.Client(endpoint, clock=time.monotonic).get(fake.HEALTH, soon()).status == 200


def test_proxies_of_the_environment_are_not_used(server: fake.OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    assert client_of(server).get(fake.HEALTH, soon()).status == 200


def test_redirects_are_not_followed(server: fake.OpenAIServer) -> None:
    server.script("GET", fake.HEALTH, fake.redirect(f"{server.url}/version"))
    reply = client_of(server).get(fake.HEALTH, soon())
    assert (reply.status, [request.path for request in server.requests]) == (307, ["/health"])


def test_odd_chunks_are_put_together(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, fake.odd_chunks)
    reply = client_of(server).post(fake.CHAT, {"messages": [{"content": "What is 2 plus 3?"}]}, soon())
    assert api.pick(reply.json(), "choices", 0, "message", "content") == "5"


# what goes wrong on the wire


def kind_of(client: api.Client, path: str = fake.HEALTH, seconds: float = 5.0) -> str:
    with pytest.raises(api.ApiError) as failed:
        client.get(path, soon(seconds))
    assert failed.value.detail
    assert "\n" not in failed.value.detail
    return failed.value.kind


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (fake.reset, "disconnected"),
        (fake.close, "disconnected"),
        (fake.cut_body, "disconnected"),
        (fake.raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "not_http"),
        (fake.raw(b"\x15\x03\x01\x00\x02\x02\x50"), "not_http"),
        (fake.raw(b"HTTP/1.1 twohundred OK\r\n\r\n"), "not_http"),
        (fake.raw(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 500 + b"\r\n"), "not_http"),
        (fake.raw(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000), "not_http"),
        (fake.raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"), "disconnected"),
        (fake.raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc"), "disconnected"),
        (fake.body(b"x" * (api.MAX_BODY + 300_000)), "too_large"),
        (fake.endless, "too_large"),
    ],
)
def test_each_way_to_fail_has_its_name(server: fake.OpenAIServer, action: fake.Action, kind: str) -> None:
    server.script("GET", fake.HEALTH, action)
    assert kind_of(client_of(server)) == kind


@pytest.mark.parametrize("action", [fake.hang, fake.drip, fake.begin_stream(fake.hang)])
def test_the_deadline_holds_however_slowly_bytes_drip(server: fake.OpenAIServer, action: fake.Action) -> None:
    server.script("GET", fake.HEALTH, action)
    assert kind_of(client_of(server), seconds=0.2) == "timeout"


def test_headers_that_drip_are_under_the_deadline_too(server: fake.OpenAIServer) -> None:
    def drip_headers(exchange: fake.Exchange) -> None:
        exchange.raw(b"HTTP/1.1 200 OK\r\n")
        while not exchange.server.closing.is_set():
            exchange.raw(b"a: b\r\n")
            exchange.sleep(0.02)

    server.script("GET", fake.HEALTH, drip_headers)
    assert kind_of(client_of(server), seconds=0.2) == "timeout"


def test_no_time_left_is_a_timeout(server: fake.OpenAIServer) -> None:
    assert kind_of(client_of(server), seconds=0) == "timeout"


def test_a_closed_port_is_refused() -> None:
    client = api.Client(api.Endpoint.from_url(f"http://127.0.0.1:{free_port()}"), clock=time.monotonic)
    assert kind_of(client) == "refused"


def test_a_name_without_address_is_unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_args: t.Any, **_kwargs: t.Any) -> t.NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    client = api.Client(api.Endpoint.from_url("http://nowhere.invalid:8000"), clock=time.monotonic)
    assert kind_of(client) == "unresolved"


def test_a_resolver_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(*_args: t.Any, **_kwargs: t.Any) -> list[t.Any]:
        released.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    client = api.Client(api.Endpoint.from_url("http://spark-1:8000"), clock=time.monotonic)
    assert kind_of(client, seconds=0.1) == "unresolved"
    released.set()


def test_every_address_of_a_name_is_tried(server: fake.OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def addresses(*_args: t.Any, **_kwargs: t.Any) -> list[t.Any]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("127.0.0.1", free_port())), (*kind, ("127.0.0.1", server.port))]

    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    client = api.Client(api.Endpoint.from_url("http://spark-1:8000"), clock=time.monotonic)
    assert client.get(fake.HEALTH, soon()).status == 200


def test_a_host_that_does_not_answer_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    # A listener whose queue is full answers no further attempt to connect.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fill = [socket.socket() for _ in range(4)]
        for sock in fill:
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        monkeypatch.setattr(api, "CONNECT_TIMEOUT_S", 0.2)
        client = api.Client(
            api.Endpoint.from_url(f"http://127.0.0.1:{listener.getsockname()[1]}"), clock=time.monotonic
        )
        assert kind_of(client) == "silent"
        for sock in fill:
            sock.close()


def test_https_to_a_plain_server_is_a_tls_failure(server: fake.OpenAIServer) -> None:
    endpoint = api.Endpoint.from_url(f"https://127.0.0.1:{server.port}")
    assert kind_of(api.Client(endpoint, clock=time.monotonic)) == "tls"


@pytest.mark.parametrize("reads", [False, True])
def test_a_listener_that_closes_during_the_handshake_is_no_tls_failure(reads: bool) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def close() -> None:
            sock, _address = listener.accept()
            with sock:
                if reads:
                    sock.recv(65536)

        thread = threading.Thread(target=close, daemon=True)
        thread.start()
        endpoint = api.Endpoint.from_url(f"https://127.0.0.1:{listener.getsockname()[1]}")
        assert kind_of(api.Client(endpoint, clock=time.monotonic, validate_certs=False)) == "disconnected"
        thread.join()


# streams


def stream_of(server: fake.OpenAIServer, action: fake.Action, seconds: float = 5.0) -> api.Stream:
    server.script("POST", fake.CHAT, action)
    return client_of(server).stream(fake.CHAT, {"stream": True}, soon(seconds))


def send_sse(data: bytes) -> fake.Action:
    def action(exchange: fake.Exchange) -> None:
        exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + data)

    return action


def test_events_come_with_their_times_until_done(server: fake.OpenAIServer) -> None:
    stream = stream_of(server, send_sse(b'data: {"a": 1}\n\ndata: {"b": 2}\n\ndata: [DONE]\n\ndata: late\n\n'))
    assert [event.data for event in stream.events] == ['{"a": 1}', '{"b": 2}']
    assert stream.done
    assert stream.started_at <= stream.events[0].at <= stream.events[1].at


def test_reading_ends_at_done_though_the_server_keeps_the_connection(server: fake.OpenAIServer) -> None:
    def keep_open(exchange: fake.Exchange) -> None:
        send_sse(b"data: [DONE]\n\n")(exchange)
        exchange.sleep(30)

    assert stream_of(server, keep_open).done


def test_a_stream_that_breaks_off_keeps_what_came(server: fake.OpenAIServer) -> None:
    stream = stream_of(server, fake.begin_stream(fake.reset, events=3))
    assert stream.failure is not None
    assert (len(stream.events), stream.done, stream.failure.kind) == (3, False, "disconnected")


def test_a_stream_of_keep_alives_alone_ends_at_the_deadline(server: fake.OpenAIServer) -> None:
    def keep_alive(exchange: fake.Exchange) -> None:
        exchange.start_stream()
        while not exchange.server.closing.is_set():
            exchange.chunk(b": keep-alive\n\n")
            exchange.sleep(0.02)

    stream = stream_of(server, keep_alive, seconds=0.2)
    assert stream.failure is not None
    assert (stream.events, stream.failure.kind) == ((), "timeout")


def test_an_endless_stream_is_cut_off(server: fake.OpenAIServer) -> None:
    def babble(exchange: fake.Exchange) -> None:
        exchange.start_stream()
        while not exchange.server.closing.is_set():
            exchange.event("x" * 60_000)

    stream = stream_of(server, babble)
    assert stream.failure is not None
    assert stream.failure.kind == "too_large"


def test_a_refusal_instead_of_a_stream_has_its_body(server: fake.OpenAIServer) -> None:
    stream = stream_of(server, fake.status(400, "no"))
    assert (stream.reply.status, stream.reply.error_message) == (400, "no")


SSE = b": hi\r\ndata: one\r\n\r\nevent: x\nid: 7\ndata:two\ndata: more\n\ndata: \xc3\xa9\r\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_an_event_stream_may_be_cut_anywhere(size: int) -> None:
    decoder = api.SseDecoder()
    pieces = [SSE[i : i + size] for i in range(0, len(SSE), size)]
    found = [data for piece in pieces for data in decoder.feed(piece)]
    assert found == ["one", "two\nmore", "\u00e9"]


# small things


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "a", "code": 400}}', "a"),
        (b'{"object": "error", "message": "b", "code": 400}', "b"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"detail": [{"loc": 1}]}', '[{"loc": 1}]'),
        (b"<html>oops", "<html>oops"),
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_the_servers_own_words_are_found(body: bytes, message: str) -> None:
    assert api.Reply(400, {}, body, 0.0).error_message == message


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (("a", 0, "b"), 1),
        (("a", -1, "b"), 2),
        (("a", 2), None),
        (("a", "b"), None),
        ((0,), None),
        (("x", 0, "y"), None),
        ((), {"a": [{"b": 1}, {"b": 2}]}),
    ],
)
def test_a_path_through_json_ends_in_none_where_it_leads_nowhere(path: tuple[str | int, ...], found: t.Any) -> None:
    assert api.pick({"a": [{"b": 1}, {"b": 2}]}, *path) == found


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\nb\tc\0d\x1b[2J", "a\\nb\\tc\\x00d\\x1b[2J"),
        ("\ud800", "\\ud800"),
        ("\u202e", "\\u202e"),
        ("x" * 300, "x" * 200 + "..."),
        ("\u4f60", "\u4f60"),
    ],
)
def test_text_for_people_is_one_harmless_line(text: str, shown: str) -> None:
    assert api.printable(text) == shown


def test_a_deadline_counts_down_and_stays_at_zero() -> None:
    now = [100.0]
    deadline = api.Deadline.after(10, lambda: now[0])
    assert (deadline.left(), deadline.within(3).left(), deadline.within(30).left()) == (10, 3, 10)
    now[0] = 200.0
    assert deadline.left() == 0
