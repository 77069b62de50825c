# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An HTTP client for servers with OpenAI's API, made for servers that may be sick.

What ``urllib`` does not give, and a probe needs: one deadline for a whole exchange (name look-up, connect, headers and
body together, however slowly the bytes drip), a cap on the size of an answer, no proxies, no redirects, and errors that
say what happened on the wire. Server-sent events come with the time at which each arrived.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import http.client
import io
import ipaddress
import json
import re
import socket
import ssl
import threading
import typing as t
import urllib.parse

Clock = t.Callable[[], float]
ErrorKind = t.Literal[
    "refused",  # nobody listens
    "unresolved",  # the host name has no address
    "unreachable",  # no route, network down, ...
    "silent",  # no answer to the attempt to connect: a host that is down, or a listener whose queue is full
    "timeout",  # the time of this exchange ran out
    "disconnected",  # closed or reset before the answer was complete
    "not_http",  # something answered, but not with HTTP
    "tls",  # no TLS there, or a certificate that is not trusted
    "too_large",  # more bytes than any honest answer has
]

MAX_BODY = 4 * 1024 * 1024
# One address of several may be a black hole; the others still deserve a try.
CONNECT_TIMEOUT_S = 5.0


class InputError(ValueError):
    """An option that cannot be used; the message says which, and what to do, and never holds a secret."""


class ApiError(Exception):
    """An exchange that gave no complete HTTP answer. ``kind`` says why; ``detail`` is for people."""

    def __init__(self, kind: ErrorKind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: ErrorKind = kind
        self.detail = detail


@dataclasses.dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on a monotonic clock by which something has to be over."""

    clock: Clock
    at: float

    @classmethod
    def after(cls, seconds: float, clock: Clock) -> Deadline:
        """Return the deadline that lies ``seconds`` ahead."""
        return cls(clock, clock() + seconds)

    def left(self) -> float:
        """Return the seconds that remain, never less than zero."""
        return max(0.0, self.at - self.clock())

    def within(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and the one ``seconds`` ahead."""
        return Deadline(self.clock, min(self.at, self.clock() + seconds))


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens: what is left of a URL once it has been understood."""

    scheme: str
    host: str
    port: int
    base_path: str = ""

    @classmethod
    def from_url(cls, url: str) -> Endpoint:
        """Understand a base URL, with or without ``/v1`` at its end; raise InputError where it cannot be used."""
        hint = "write it as http://127.0.0.1:8000"
        try:
            parts = urllib.parse.urlsplit(url.strip())
            # In a URL the percent sign before an IPv6 zone is itself escaped.
            host, port = (parts.hostname or "").replace("%25", "%"), parts.port
        except ValueError:
            raise InputError(f"url cannot be understood; {hint}.") from None
        if parts.username is not None or parts.password is not None:
            raise InputError("url holds a user name or a password; remove it and give the key as api_key instead.")
        if parts.query or parts.fragment:
            raise InputError("url has a query or a fragment after its path; give the base URL only.")
        if parts.scheme not in {"http", "https"}:
            raise InputError(f"url {printable(url)!r} does not start with http:// or https://; {hint}.")
        sane = re.fullmatch(r"[0-9A-Za-z._:%-]+", host) and re.fullmatch(r"[\x21-\x7e]*", parts.path)
        if not sane:
            raise InputError(f"url {printable(url)!r} has no host, or odd characters in it; {hint}.")
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return cls(parts.scheme, host, port or {"http": 80, "https": 443}[parts.scheme], path)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.base_path}"

    @property
    def is_loopback(self) -> bool:
        """Whether the server is, by its address, on this very machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """A complete HTTP answer."""

    status: int
    headers: t.Mapping[str, str]
    body: bytes
    elapsed_s: float

    def json(self) -> t.Any:
        """Return the body as JSON, or None where it is none (a body of ``null`` is no use to anyone either)."""
        return parse_json(self.body)

    @property
    def error_message(self) -> str:
        """The server's own words for what went wrong, in each of the shapes that vLLM and others use."""
        data = self.json()
        for path in (("error", "message"), ("message",), ("error",), ("detail",)):
            found = pick(data, *path)
            if isinstance(found, str) and found:
                return found
        if found := pick(data, "detail"):
            return json.dumps(found)
        return self.body[:400].decode("utf-8", "replace").strip()


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """The data of one server-sent event and when it was complete."""

    at: float
    data: str


@dataclasses.dataclass(frozen=True, slots=True)
class Stream:
    """What a streamed exchange brought. ``reply`` holds status and headers, and the body where no events came."""

    reply: Reply
    events: tuple[Event, ...] = ()
    started_at: float = 0.0
    done: bool = False  # the server said [DONE]
    failure: ApiError | None = None  # how the stream broke off, where it did


def parse_json(raw: bytes | str) -> t.Any:
    """Return the parsed JSON, or None where the text is none."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def pick(data: t.Any, *path: str | int) -> t.Any:
    """Follow a path of keys and indexes into JSON that may have any shape at all; None where it ends early."""
    for step in path:
        if isinstance(step, str) and isinstance(data, dict):
            data = data.get(step)
        elif isinstance(step, int) and isinstance(data, list) and -len(data) <= step < len(data):
            data = data[step]
        else:
            return None
    return data


def whole_number(data: t.Any, *path: str | int) -> int | None:
    """Return the whole number at the end of a path through JSON; true and 1.0 are none."""
    value = pick(data, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def printable(text: str, limit: int = 200) -> str:
    """Return the text fit for a log line or a terminal: one line, no control characters, not longer than the limit."""
    cut = text[: limit + 1]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut[:limit])
    return shown + "..." if len(cut) > limit else shown


def read_api_key(text: str) -> str:
    """Return the API key that a file's text holds: its first line, bare or as ``VLLM_API_KEY=...``."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    for line in lines:
        if line.startswith("VLLM_API_KEY="):
            return line.removeprefix("VLLM_API_KEY=").strip("\"'")
    return lines[0] if lines else ""


def key_fault(api_key: str) -> str:
    """Return why a key cannot be sent, as what it does, and never the key; empty where it can, or is none."""
    sendable = re.fullmatch(r"[\x21-\x7e]*", api_key)
    return "" if sendable else "holds spaces, control or non-ASCII characters, which no HTTP header can carry"


class Client:
    """Talks to one server. Every method either returns a complete answer or raises ApiError."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        clock: Clock,
        api_key: str = "",
        validate_certs: bool = True,
        max_body: int = MAX_BODY,
    ) -> None:
        # http.client would name the value in its own complaint.
        if fault := key_fault(api_key):
            raise InputError(f"api_key {fault}.")
        self.endpoint = endpoint
        self._clock = clock
        self._api_key = api_key
        self._max_body = max_body
        self._tls: ssl.SSLContext | None = None
        if endpoint.scheme == "https":
            self._tls = ssl.create_default_context()
            if not validate_certs:
                self._tls.check_hostname = False
                self._tls.verify_mode = ssl.CERT_NONE

    def get(self, path: str, deadline: Deadline, *, with_key: bool = False) -> Reply:
        """Ask for a path below the base path."""
        return self._exchange("GET", path, None, deadline, with_key=with_key).reply

    def post(self, path: str, payload: t.Mapping[str, t.Any], deadline: Deadline, *, with_key: bool = False) -> Reply:
        """Send JSON to a path below the base path and return the whole answer."""
        return self._exchange("POST", path, payload, deadline, with_key=with_key).reply

    def stream(
        self, path: str, payload: t.Mapping[str, t.Any], deadline: Deadline, *, with_key: bool = False
    ) -> Stream:
        """Send JSON and collect the server-sent events of the answer. A stream that breaks off is no ApiError."""
        return self._exchange("POST", path, payload, deadline, with_key=with_key, events=True)

    def _exchange(
        self,
        method: str,
        path: str,
        payload: t.Mapping[str, t.Any] | None,
        deadline: Deadline,
        *,
        with_key: bool,
        events: bool = False,
    ) -> Stream:
        headers = {"Accept-Encoding": "identity", "Connection": "close"}
        headers["Accept"] = "text/event-stream, application/json" if events else "*/*"
        body = None
        if payload is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(payload).encode("ascii")
        if with_key and self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        started = self._clock()
        connection = _Connection(self.endpoint, self._tls, deadline, self._max_body)
        try:
            connection.request(method, self.endpoint.base_path + path, body, headers)
            response = connection.getresponse()
            lowered = {name.lower(): value for name, value in response.getheaders()}
            streamed = events and response.status == 200 and "text/event-stream" in lowered.get("content-type", "")
            if streamed:
                collected, done, failure = self._collect(response)
                reply = Reply(response.status, lowered, b"", self._clock() - started)
                return Stream(reply, collected, started, done, failure)
            content = b"".join(_pieces(response))
            return Stream(Reply(response.status, lowered, content, self._clock() - started), started_at=started)
        except (OSError, http.client.HTTPException) as error:
            raise _understood(error) from None
        finally:
            connection.release()

    def _collect(self, response: http.client.HTTPResponse) -> tuple[tuple[Event, ...], bool, ApiError | None]:
        decoder = SseDecoder()
        events: list[Event] = []
        try:
            for piece in _pieces(response):
                now = self._clock()
                for data in decoder.feed(piece):
                    if data.strip() == "[DONE]":
                        return tuple(events), True, None
                    events.append(Event(now, data))
        except (OSError, http.client.HTTPException) as error:
            return tuple(events), False, _understood(error)
        return tuple(events), False, None


class SseDecoder:
    """Turns the bytes of an event stream, however they were cut, into the data of its events."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._data: list[str] = []

    def feed(self, piece: bytes) -> t.Iterator[str]:
        """Take some more bytes; yield the data of every event that they complete."""
        self._pending += piece
        if b"\n" not in piece and b"\r" not in piece:
            return  # spares a server that sends one endless line byte by byte a new scan for each
        # A CR at the very end may be the first half of CR LF: it waits for the next piece.
        *lines, rest = re.split(rb"\r\n|\n|\r(?!\Z)", bytes(self._pending))
        self._pending = bytearray(rest)
        for line in lines:
            if not line:
                if self._data:
                    yield "\n".join(self._data)
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" ").decode("utf-8", "replace"))
            # Comments (vLLM's keep-alives), event names, ids and retry times say nothing to us.


class _TimedReader(io.RawIOBase):
    """Reads a socket so that neither time nor size can run away, whatever the layers above ask for."""

    def __init__(self, sock: socket.socket, deadline: Deadline, limit: int) -> None:
        super().__init__()
        self._sock = sock
        self._deadline = deadline
        self._limit = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: t.Any) -> int:
        left = self._deadline.left()
        if left <= 0:
            raise TimeoutError("the deadline passed")
        self._sock.settimeout(left)
        count = self._sock.recv_into(buffer)
        self._limit -= count
        if self._limit < 0:
            raise _TooLargeError
        return count


class _TooLargeError(OSError):
    pass


class _TimedSocket:
    """The part of a socket that http.client uses, under one deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline, limit: int) -> None:
        self._sock = sock
        self._deadline = deadline
        self._limit = limit

    def sendall(self, data: bytes) -> None:
        left = self._deadline.left()
        if left <= 0:
            raise TimeoutError("the deadline passed")
        self._sock.settimeout(left)
        self._sock.sendall(data)

    def makefile(self, *_args: t.Any, **_kwargs: t.Any) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._sock, self._deadline, self._limit))

    def close(self) -> None:
        """Stay open: http.client closes its connection before it has read the body, and relies on makefile()."""

    def release(self) -> None:
        self._sock.close()


class _Connection(http.client.HTTPConnection):
    """An HTTP connection that goes straight to the server: no proxy from the environment, no tunnel."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, deadline: Deadline, max_body: int) -> None:
        super().__init__(endpoint.host, endpoint.port)
        self._tls = tls
        self._deadline = deadline
        self._timed: _TimedSocket | None = None
        # Status line and headers count, too, but never against an answer that just fits.
        self._limit = max_body + 256 * 1024

    def connect(self) -> None:
        sock = _dial(self.host, self.port, self._deadline)
        if self._tls is not None:
            try:
                sock.settimeout(max(self._deadline.left(), 0.001))
                sock = self._tls.wrap_socket(sock, server_hostname=self.host)
            except BaseException:
                sock.close()
                raise
        self.sock = self._timed = _TimedSocket(sock, self._deadline, self._limit)

    def release(self) -> None:
        """Close the socket, whatever state the exchange is in."""
        if self._timed is not None:
            self._timed.release()


def _dial(host: str, port: int, deadline: Deadline) -> socket.socket:
    problem: OSError | ApiError = TimeoutError("the deadline passed")
    for family, kind, proto, _name, address in _resolve(host, port, deadline):
        left = min(deadline.left(), CONNECT_TIMEOUT_S)
        if left <= 0:
            break
        sock = socket.socket(family, kind, proto)
        try:
            sock.settimeout(left)
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            sock.close()
            # "Refused" says more than what another address of the same name met.
            if not isinstance(problem, ConnectionRefusedError):
                silent = ApiError("silent", "no answer to the attempt to connect")
                problem = silent if isinstance(error, TimeoutError) else error
        else:
            return sock
    raise problem


def _resolve(host: str, port: int, deadline: Deadline) -> list[t.Any]:
    """Look the host up; a resolver that hangs is left behind in its own thread, since nothing can interrupt it."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    answer: list[t.Any] = []
    problem: list[OSError] = []

    def look_up() -> None:
        try:
            answer.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            problem.append(error)
        except UnicodeError:
            problem.append(socket.gaierror(socket.EAI_NONAME, "not a host name"))

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(deadline.left())
    if problem:
        raise problem[0]
    if not answer:
        raise socket.gaierror(socket.EAI_AGAIN, "the look-up did not end in time")
    return list(answer)


def _pieces(response: http.client.HTTPResponse) -> t.Iterator[bytes]:
    """Yield the body as it arrives; raise where it ends before it should."""
    # read1() of Python 3.11 does not count down what Content-Length promised, so it is counted here.
    left = response.length
    while left is None or left > 0:
        piece = response.read1(65536 if left is None else min(left, 65536))
        if not piece:
            if left:
                raise http.client.IncompleteRead(b"", left)
            return
        if left is not None:
            left -= len(piece)
        yield piece


def _understood(error: OSError | http.client.HTTPException) -> ApiError:
    """Put what Python raised into the few words that a probe can act on."""
    kinds: tuple[tuple[type[BaseException], ErrorKind], ...] = (
        (_TooLargeError, "too_large"),
        (TimeoutError, "timeout"),
        (ConnectionRefusedError, "refused"),
        (http.client.RemoteDisconnected, "disconnected"),
        (ConnectionError, "disconnected"),
        (http.client.IncompleteRead, "disconnected"),
        # Closed in the middle of the handshake: a listener whose engine is not up, and no word about TLS.
        (ssl.SSLEOFError, "disconnected"),
        (ssl.SSLZeroReturnError, "disconnected"),
        (ssl.SSLError, "tls"),
        (socket.gaierror, "unresolved"),
        (OSError, "unreachable"),
        (http.client.HTTPException, "not_http"),
    )
    kind = next(kind for cause, kind in kinds if isinstance(error, cause))
    detail = {
        "too_large": "the answer is larger than any honest one",
        "timeout": "no complete answer in the time given",
        "refused": "connection refused",
    }.get(kind)
    if isinstance(error, http.client.IncompleteRead):
        detail = "the answer broke off before its end"
    if detail is None:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        detail = printable(said or type(error).__name__, 120)
    return ApiError(kind, detail)
