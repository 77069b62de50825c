# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How ranks of a serving group hear of each other: each answers one HTTP request with its state, and asks the others.

Nothing can be ordered over this: the answer is the same whatever the request says. It is given at the address that the
engine itself talks over, so that a link that is down for the one is down for the other.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import contextlib
import http
import http.client
import http.server
import json
import socket
import threading
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _group_rules as rules

_ASK_EVERY_S: t.Final = 1.0
_ANSWER_S: t.Final = 3.0
_MAX_ANSWER: t.Final = 65536
# How long neither a question nor a look at what is known may leave off before this process counts as not having run: a
# question to a box that does not answer takes less, and so do two looks.
_STALL_S: t.Final = 5.0
# A rank has few others, and each asks once a second; nobody else may take the daemon's threads and files from it.
_MAX_CLIENTS: t.Final = 32
_CLIENT_S: t.Final = 5.0
# From the kernel's headers; Python's socket module does not name it everywhere. It lets a server listen at an address
# that the box does not have yet, because its cable is not plugged in.
_IP_FREEBIND: t.Final = 15
_IPV6_FREEBIND: t.Final = 78

State = c.Callable[[], "c.Mapping[str, t.Any] | None"]


class StateServer(http.server.ThreadingHTTPServer):
    """Answers every GET with the state of this rank."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: str, port: int, state: State) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.state = state
        self._clients: dict[socket.socket, float] = {}
        self._clients_lock = threading.Lock()
        super().__init__((address, port), _Handler)

    def server_bind(self) -> None:
        """Bind, at an address that need not be there yet."""
        six = self.address_family == socket.AF_INET6
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.IPPROTO_IPV6 if six else socket.IPPROTO_IP, _freebind(six), 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        # What http.server does here asks the name service, which a box may not reach.
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: t.Any, client_address: t.Any) -> None:
        """Answer in a thread, of which there are only so many."""
        with self._clients_lock:
            accepted = len(self._clients) < _MAX_CLIENTS
            if accepted:
                self._clients[request] = time.monotonic() + _CLIENT_S
        if accepted:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: t.Any) -> None:
        """Close a connection, which makes room for another one."""
        with self._clients_lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off who takes too long over all: http.server bounds only each single read."""
        now = time.monotonic()
        with self._clients_lock:
            for request in [one for one, until in self._clients.items() if now > until]:
                # Its thread then reads the end of the request, and closes it.
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: t.Any, client_address: t.Any) -> None:
        """Say nothing of a client that went away."""

    def run(self) -> None:
        """Answer in a thread of its own, until the process ends."""
        threading.Thread(target=self.serve_forever, daemon=True, name="state").start()


def _freebind(six: bool) -> int:
    return _IPV6_FREEBIND if six else _IP_FREEBIND


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = 5
    server: StateServer

    def do_GET(self) -> None:
        state = self.server.state()
        if state is None:
            self.send_error(503, "the daemon of this rank hangs")
            return
        body = json.dumps(state).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: t.Any) -> None:  # noqa: A002 - the name is http.server's
        """Log nothing: every rank asks every second."""


class Link:
    """What is known of another rank, asked for every second in a thread of its own."""

    def __init__(self, member: rules.Member, instance: str, port: int, source: str = "") -> None:
        """Remember whom to ask, and from which of the own addresses: never by way of another network."""
        self.member = member
        self._source = source
        self._instance = instance
        self._port = port
        self._lock = threading.Lock()
        self._state: rules.RankState | None = None
        self._offset_s = 0.0
        self._heard_at = self._ran_at = time.monotonic()
        self._stalled_s = self._stalled_before_s = 0.0
        self._given_up_at: float | None = None
        self._error = "not asked yet"
        self._refused = False
        self._stopped = threading.Event()

    def run(self) -> None:
        """Ask in a thread of its own."""
        threading.Thread(target=self._ask_on, daemon=True, name=f"rank {self.member.rank}").start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()

    def seen(self) -> rules.Seen:
        """Return what is known now."""
        now = time.monotonic()
        with self._lock:
            self._note_stall(now)
            given_up_s = 0.0 if self._given_up_at is None else now - self._given_up_at
            return rules.Seen(
                member=self.member,
                state=self._state,
                silent_s=now - self._heard_at,
                error=self._error,
                given_up_s=given_up_s,
                refused=self._refused,
                stalled_s=self._stalled_s - self._stalled_before_s,
            )

    @property
    def stalled_s(self) -> float:
        """For how long this process has not run so far, as far as that was noticed."""
        with self._lock:
            return self._stalled_s

    def _note_stall(self, now: float) -> None:
        """Count the time in which this process did not run: whom it did not hear meanwhile was not silent.

        Whichever thread runs first afterwards calls this, so that none takes that time for the other rank's.
        """
        gap_s, self._ran_at = now - self._ran_at, now
        if gap_s > _STALL_S:
            self._stalled_s += gap_s

    @property
    def offset_s(self) -> float:
        """How far the other box's clock is ahead of this one's, in seconds."""
        return self._offset_s

    def _ask_on(self) -> None:
        while not self._stopped.wait(_ASK_EVERY_S):
            self.ask()

    def ask(self) -> None:
        """Ask once."""
        asked_at = time.time()
        with self._lock:
            self._note_stall(time.monotonic())
        try:
            state = rules.RankState.read(
                fetch(self.member.address, self._port, self._source), self._instance, self.member.rank
            )
        except Exception as error:  # noqa: BLE001 - nothing that is answered may end the asking, for nobody begins it anew
            with self._lock:
                self._note_stall(time.monotonic())
                self._error = _in_words(error)
                self._refused = isinstance(error, ConnectionRefusedError)
            return
        with self._lock:
            # A heard rank that has not been heard before starts the clock of its silence anew.
            self._state, self._heard_at, self._error = state, time.monotonic(), ""
            self._note_stall(self._heard_at)
            self._stalled_before_s = self._stalled_s
            self._offset_s = state.now - (asked_at + time.time()) / 2
            if state.stage != "given-up":
                self._given_up_at = None
            elif self._given_up_at is None:
                self._given_up_at = time.monotonic()

    def forgive(self) -> None:
        """Count the time that it is seen to have given up from now on: a new start of this rank has begun."""
        with self._lock:
            self._given_up_at = None


def fetch(address: str, port: int, source: str = "", timeout_s: float = _ANSWER_S) -> object:
    """Return what another rank publishes; raise OSError, HTTPException or ValueError where it does not."""
    own = (source, 0) if source else None
    connection = http.client.HTTPConnection(address, port, timeout=timeout_s, source_address=own)
    try:
        connection.request("GET", "/")
        response = connection.getresponse()
        answer = response.read(_MAX_ANSWER + 1)
    finally:
        connection.close()
    if response.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        raise rules.StateError("its daemon hangs")
    if len(answer) > _MAX_ANSWER:
        raise rules.StateError("its answer is too long")
    return json.loads(answer)


def _in_words(error: Exception) -> str:
    if isinstance(error, rules.StateError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    if isinstance(error, MemoryError):
        return "this box has no memory left to hear it"
    return "what answers there is not another rank"
