# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A scriptable server with vLLM's HTTP API: healthy unless told otherwise, and able to fail in every way that was seen.

In a test::

    with OpenAIServer() as server:
        server.script("POST", CHAT, say("!!!!!!!!"), answer)   # garbage once, then honest answers
        probe(Options(server.url), timeout=5)

The answers of the healthy server are honest: it adds the numbers that it is asked to add, repeats the word that it is
told to repeat, calls the tool that fits and fills in the schema that it is given. Bodies and messages have the shape of
vLLM 0.32.0's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.server
import json
import re
import socket
import socketserver
import struct
import threading
import time
import typing as t

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
POOLING = "/pooling"
MODELS = "/v1/models"
HEALTH = "/health"
VERSION = "/version"
METRICS = "/metrics"

Json = dict[str, t.Any]


@dataclasses.dataclass(frozen=True)
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> t.Any:
        return json.loads(self.body) if self.body else None

    @property
    def streamed(self) -> bool:
        return bool(self.json and self.json.get("stream"))

    @property
    def prompt(self) -> str:
        data = self.json or {}
        return str(data["messages"][-1]["content"] if "messages" in data else data.get("prompt", ""))


class Exchange:
    """One request and the ways to answer it, polite and otherwise."""

    def __init__(self, server: OpenAIServer, request: Request, connection: socket.socket) -> None:
        self.server = server
        self.request = request
        self._connection = connection

    def raw(self, data: bytes) -> None:
        """Put bytes on the wire, whatever they mean."""
        self._connection.sendall(data)

    def send(self, status: int, body: bytes, content_type: str = "application/json", **headers: str) -> None:
        """Send a whole answer. Underscores in header names stand for dashes."""
        fields = {"server": "uvicorn", "content-type": content_type, "content-length": str(len(body))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.raw(f"HTTP/1.1 {status} X\r\n{head}connection: close\r\n\r\n".encode() + body)

    def send_json(self, status: int, data: t.Any) -> None:
        self.send(status, json.dumps(data).encode())

    def send_error(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        """Send an error in vLLM's shape."""
        self.send_json(status, {"error": {"message": message, "type": kind, "param": param, "code": status}})

    def start_stream(self) -> None:
        """Send the head of an event stream, in chunks as uvicorn does."""
        head = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        self.raw(f"{head}transfer-encoding: chunked\r\nconnection: close\r\n\r\n".encode())

    def chunk(self, data: bytes) -> None:
        """Send one chunk of a chunked body; an empty one ends it."""
        self.raw(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def event(self, data: t.Any) -> None:
        self.chunk(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode())

    def end_stream(self) -> None:
        self.event("[DONE]")
        self.chunk(b"")

    def sleep(self, seconds: float) -> None:
        """Wait, but no longer than the server lives or the client listens."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.server.closing.wait(min(left, 0.02)):
            if self._client_left():
                return

    def reset(self) -> None:
        """Cut the connection the hard way."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._connection.close()

    def _client_left(self) -> bool:
        try:
            return self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


Action = t.Callable[[Exchange], None]


@dataclasses.dataclass
class Metrics:
    """What /metrics shows. ``per_read`` tokens are added at every reading: somebody else's requests.

    So is ``kv_per_read`` of the KV cache: somebody's long prompt, which gives no token before its end.
    """

    generation_tokens: int = 1000
    running: int = 0
    waiting: int = 0
    per_read: int = 0
    kv_usage: float = 0.0
    kv_per_read: float = 0.0

    def text(self) -> str:
        self.generation_tokens += self.per_read
        self.kv_usage += self.kv_per_read
        label = '{engine="0",model_name="lab/tiny"}'
        return (
            "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{label} {float(self.running)}\n"
            f"vllm:num_requests_waiting{label} {float(self.waiting)}\n"
            f"vllm:kv_cache_usage_perc{label} {self.kv_usage}\n"
            f"vllm:generation_tokens_total{label} {float(self.generation_tokens)}\n"
            f"vllm:generation_tokens_created{label} 1.7e+09\n"
            f"vllm:iteration_tokens_total_count{label} {float(self.generation_tokens // 2)}\n"
        )


class OpenAIServer:
    """The server: a context manager, or ``start()`` and ``stop()``."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.models: list[str] = ["lab/tiny"]
        self.max_model_len: int | None = 512
        self.api_key = ""
        self.kind: t.Literal["chat", "base", "embedding", "pooling"] = "chat"
        self.base_path = ""
        self.metrics = Metrics()
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self.dead = False
        self._scripts: dict[tuple[str, str], list[Action]] = {}
        self._lock = threading.Lock()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, self.rfile.read(length))
                self.close_connection = True
                # The client may have left, which is what some tests are about.
                with contextlib.suppress(OSError):
                    owner.handle(Exchange(owner, request, self.connection))

            def do_GET(self) -> None:
                self.answer()

            def do_POST(self) -> None:
                self.answer()

            def log_message(self, *args: t.Any) -> None:
                pass

        class Listener(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            block_on_close = False
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def handle_error(self, request: t.Any, client_address: t.Any) -> None:
                pass

        self._listener = Listener((host, port), Handler)
        self.port: int = self._listener.server_address[1]
        self._host = f"[{host}]" if ":" in host else host
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}{self.base_path}"

    def start(self) -> t.Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop listening and let go of every request under way. From now on connections are refused."""
        if not self.closing.is_set():
            self.closing.set()
            self._listener.shutdown()
            self._listener.server_close()

    __enter__ = start

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def script(self, method: str, path: str, *actions: Action) -> None:
        """Have requests answered by these actions, one after the other; the last one stays."""
        self._scripts[method, path] = list(actions)

    def asked(self, path: str) -> list[Request]:
        """Return the requests for a path."""
        return [request for request in self.requests if request.path == self.base_path + path]

    def handle(self, exchange: Exchange) -> None:
        request = exchange.request
        path = request.path.removeprefix(self.base_path)
        with self._lock:
            self.requests.append(request)
            actions = self._scripts.get((request.method, path), [])
            action = actions.pop(0) if len(actions) > 1 else actions[0] if actions else healthy
        action(exchange)


# Healthy behaviour


def healthy(exchange: Exchange) -> None:
    """Answer as vLLM does whose engine is well, or, once the server is ``dead``, as one whose engine is gone."""
    server, request = exchange.server, exchange.request
    path = request.path.removeprefix(server.base_path)
    if path.startswith("/v1") and server.api_key and request.headers.get("authorization") != f"Bearer {server.api_key}":
        exchange.send_json(401, {"error": "Unauthorized"})
    elif (request.method, path) in _PLAIN:
        _PLAIN[request.method, path](exchange)
    elif request.method == "POST" and path in _ENDPOINTS[server.kind]:
        _engine(exchange, path)
    else:
        exchange.send_error(404, "Not Found", "Not Found")


def _engine(exchange: Exchange, path: str) -> None:
    server, data = exchange.server, exchange.request.json
    if data["model"] not in server.models:
        message = f"The model `{data['model']}` does not exist. Valid aliases: {', '.join(server.models)}"
        exchange.send_error(404, message, "NotFoundError", "model")
    elif server.max_model_len and data.get("max_tokens", 0) > server.max_model_len:
        message = f"max_tokens={data['max_tokens']} cannot be greater than max_model_len={server.max_model_len}."
        exchange.send_error(400, message, param="max_tokens")
    elif server.dead:
        message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
        exchange.send_error(500, message, "InternalServerError")
    elif path in {EMBEDDINGS, POOLING}:
        embed(exchange)
    else:
        answer(exchange)


def _health(exchange: Exchange) -> None:
    exchange.send(503 if exchange.server.dead else 200, b"")


def _models(exchange: Exchange) -> None:
    server = exchange.server
    cards = [
        {"id": name, "object": "model", "owned_by": "vllm", "root": "/model", "max_model_len": server.max_model_len}
        for name in server.models
    ]
    exchange.send_json(200, {"object": "list", "data": cards})


_PLAIN: dict[tuple[str, str], Action] = {
    ("GET", HEALTH): _health,
    ("GET", VERSION): lambda exchange: exchange.send_json(200, {"version": "0.32.0"}),
    ("GET", METRICS): lambda exchange: exchange.send(200, exchange.server.metrics.text().encode(), "text/plain"),
    ("GET", MODELS): _models,
}
_ENDPOINTS = {
    "chat": {CHAT, COMPLETIONS},
    "base": {CHAT, COMPLETIONS},
    "embedding": {EMBEDDINGS, POOLING},
    "pooling": {POOLING},
}
NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the "
    "tokenizer does not define one."
)


def honest_text(prompt: str) -> str:
    """Return the right answer to one of the questions that a probe or a soak asks."""
    if sum_asked := re.search(r"What is (\d+) plus (\d+)", prompt):
        total = int(sum_asked[1]) + int(sum_asked[2])
        return json.dumps({"sum": total, "is_even": total % 2 == 0}) if "JSON" in prompt else str(total)
    if echo := re.search(r"say nothing else: (\w+)", prompt):
        return echo[1]
    if topic := re.search(r"Write one sentence about ([\w ]+)\.", prompt):
        return f"There is much to say about {topic[1]}."
    if limits := re.search(r"Count from (\d+) to (\d+)\.", prompt):
        return ", ".join(map(str, range(int(limits[1]), int(limits[2]) + 1)))
    return "I am well."


def answer(exchange: Exchange) -> None:
    """Complete honestly; call a tool where tools are offered."""
    data = exchange.request.json
    if exchange.server.kind == "base" and "messages" in data:
        exchange.send_error(400, NO_TEMPLATE)
    elif data.get("tools"):
        call("get_weather", '{"city": "Kansas City"}')(exchange)
    else:
        say(honest_text(exchange.request.prompt))(exchange)


def embed(exchange: Exchange) -> None:
    """Turn texts into vectors that depend on them and on nothing else."""

    def vector(text: str) -> list[float]:
        return [byte / 255 - 0.5 for byte in hashlib.sha256(text.encode()).digest()]

    field = "embedding" if exchange.request.path.endswith(EMBEDDINGS) else "data"
    rows = [{"index": i, field: vector(text)} for i, text in enumerate(exchange.request.json["input"])]
    exchange.send_json(200, {"object": "list", "data": rows, "usage": {"prompt_tokens": 24, "total_tokens": 24}})


# Answers of every kind


def say(text: str | None, finish_reason: str = "stop", *, tokens: int | None = None, **message: t.Any) -> Action:
    """Answer with this text (and further fields of the message), streamed or not, chat or raw, as it was asked."""

    def action(exchange: Exchange) -> None:
        server = exchange.server
        server.metrics.generation_tokens += 4
        count = tokens if tokens is not None else max(1, len((text or "").split()))
        usage = {"prompt_tokens": 20, "completion_tokens": count, "total_tokens": 20 + count}
        base = {"id": "cmpl-1", "object": "chat.completion", "created": 1, "model": server.models[0]}
        raw = exchange.request.path.endswith(COMPLETIONS) and not exchange.request.path.endswith(CHAT)
        if not exchange.request.streamed:
            body = {"text": text or ""} if raw else {"message": {"role": "assistant", "content": text} | message}
            choice = {"index": 0, "finish_reason": finish_reason} | body
            exchange.send_json(200, base | {"choices": [choice], "usage": usage})
            return
        exchange.start_stream()
        deltas: list[Json] = [{"role": "assistant", "content": ""}]
        deltas += [{name: value} for name, value in message.items()]
        deltas += [{"content": piece} for piece in re.findall(r"\s*\S+\s*", text or "")]
        for delta in deltas:
            part = {"text": delta.get("content", "")} if raw else {"delta": delta}
            exchange.event(base | {"choices": [{"index": 0, "finish_reason": None} | part]})
        last: Json = {"text": ""} if raw else {"delta": {}}
        exchange.event(base | {"choices": [{"index": 0, "finish_reason": finish_reason} | last]})
        exchange.event(base | {"choices": [], "usage": usage})
        exchange.end_stream()

    return action


def think(reasoning: str, text: str | None = "", finish_reason: str = "stop", field: str = "reasoning") -> Action:
    """Answer with reasoning in its own field."""
    message: Json = {field: reasoning}
    return say(text, finish_reason, **message)


def call(name: str, arguments: str) -> Action:
    """Answer with a tool call; streamed arguments come in two parts, as they do."""

    def action(exchange: Exchange) -> None:
        function = {"name": name, "arguments": arguments}
        whole = {"id": "chatcmpl-tool-0123456789abcdef", "type": "function", "index": 0, "function": function}
        if not exchange.request.streamed:
            say(None, "tool_calls", tool_calls=[whole])(exchange)
            return
        half = len(arguments) // 2
        exchange.start_stream()
        parts = [
            whole | {"function": {"name": name, "arguments": arguments[:half]}},
            {"index": 0, "function": {"arguments": arguments[half:]}},
        ]
        for part in parts:
            exchange.event({"choices": [{"index": 0, "delta": {"tool_calls": [part]}, "finish_reason": None}]})
        exchange.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
        exchange.event({"choices": [], "usage": {"prompt_tokens": 200, "completion_tokens": 20}})
        exchange.end_stream()

    return action


# Faults


def status(code: int, message: str = "", kind: str = "BadRequestError") -> Action:
    return lambda exchange: exchange.send_error(code, message, kind)


def body(data: bytes, code: int = 200, content_type: str = "application/json") -> Action:
    """Answer with any bytes as a body."""
    return lambda exchange: exchange.send(code, data, content_type)


def raw(data: bytes) -> Action:
    """Answer with any bytes at all."""
    return lambda exchange: exchange.raw(data)


def redirect(target: str) -> Action:
    return lambda exchange: exchange.send(307, b"", location=target)


def reset(exchange: Exchange) -> None:
    exchange.reset()


def close(exchange: Exchange) -> None:
    """Close without a word."""


def hang(exchange: Exchange) -> None:
    """Accept the request and never answer, as an engine does that is stopped or waits for its peer.

    The gauge stays up after the client has left: a wedged engine sends no new figures.
    """
    exchange.server.metrics.running += 1
    exchange.sleep(3600)


def queue(exchange: Exchange) -> None:
    """Leave the request waiting forever while none runs."""
    exchange.server.metrics.waiting += 1
    exchange.sleep(3600)


def slow(seconds: float, then: Action = answer) -> Action:
    """Answer late."""

    def action(exchange: Exchange) -> None:
        exchange.sleep(seconds)
        then(exchange)

    return action


def begin_stream(then: Action, text: str = "7", events: int = 2) -> Action:
    """Stream a little (whatever was asked for), then do something else."""

    def action(exchange: Exchange) -> None:
        exchange.start_stream()
        exchange.server.metrics.generation_tokens += events
        for _ in range(events):
            exchange.event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})
        then(exchange)

    return action


def cut_body(exchange: Exchange) -> None:
    """Promise a long body, send a short one and close."""
    exchange.raw(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5000\r\n\r\n{"choices": [')


def drip(exchange: Exchange) -> None:
    """Send a byte now and then, so that no single read ever times out."""
    exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n")
    while not exchange.server.closing.is_set():
        exchange.raw(b" ")
        exchange.sleep(0.02)


def endless(exchange: Exchange) -> None:
    """Send a body that never ends, as fast as it is taken."""
    exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    while not exchange.server.closing.is_set():
        exchange.raw(b"x" * 65536)


def die(exchange: Exchange) -> None:
    """Die at this message: HTTP 500 now, /health 503 afterwards."""
    exchange.server.dead = True
    healthy(exchange)


def stream_error(exchange: Exchange) -> None:
    """Fail inside of a stream, when HTTP 200 has long been said."""
    exchange.server.dead = True
    exchange.start_stream()
    error = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": None, "code": 500}
    exchange.event({"error": error})
    exchange.end_stream()


def answer_body(exchange: Exchange) -> bytes:
    """Return the JSON of an honest answer, for those who send it in an odd way."""
    message = {"role": "assistant", "content": honest_text(exchange.request.prompt)}
    choice = {"index": 0, "message": message, "text": message["content"], "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 20, "completion_tokens": 2}}).encode()


def odd_chunks(exchange: Exchange) -> None:
    """Send an honest answer in chunks of one byte, with extensions and a trailer."""
    if exchange.request.streamed:
        answer(exchange)
        return
    exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
    for byte in answer_body(exchange):
        exchange.raw(b"1;name=value\r\n" + bytes([byte]) + b"\r\n")
    exchange.raw(b"0\r\nx-trailer: yes\r\n\r\n")
