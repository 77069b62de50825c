# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import json
import pathlib
import socket
import threading

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _pull

REFERENCE = "registry.example:5000/vllm/vllm-openai@sha256:" + "ab" * 32


class Engine(threading.Thread):
    """Docker Engine's socket with one scripted answer."""

    def __init__(self, path: pathlib.Path, status: str, lines: list[dict[str, object]]) -> None:
        super().__init__(daemon=True)
        self.request = b""
        self._answer = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n".encode()
        self._answer += b"".join(json.dumps(line).encode() + b"\r\n" for line in lines)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(1)
        self.start()

    def run(self) -> None:
        """Answer one request."""
        connection, _ = self._socket.accept()
        with connection, self._socket:
            while b"\r\n\r\n" not in self.request:
                self.request += connection.recv(65536)
            connection.sendall(self._answer)


STREAM: list[dict[str, object]] = [
    {"status": "Pulling from vllm/vllm-openai", "id": "sha256:abab"},
    {"status": "Pulling fs layer", "id": "aaa", "progressDetail": {}},
    {"status": "Already exists", "id": "bbb", "progressDetail": {}},
    {"status": "Downloading", "id": "aaa", "progressDetail": {"current": 500_000_000, "total": 2_000_000_000}},
    {"status": "Download complete", "id": "aaa", "progressDetail": {}},
    {"status": "Extracting", "id": "aaa", "progressDetail": {"current": 1, "total": 7_000_000_000}},
    {"status": "Pull complete", "id": "aaa", "progressDetail": {}},
]


def test_progress_counts_layers_and_bytes(tmp_path: pathlib.Path) -> None:
    engine = Engine(tmp_path / "docker.sock", "200 OK", STREAM)
    lines: list[str] = []
    _pull.pull(REFERENCE, lambda progress: lines.append(progress.line()), str(tmp_path / "docker.sock"))
    assert lines[3] == "1 of 2 layers, 0.50 of 2.00 GB"
    assert lines[-1] == "2 of 2 layers, 2.00 of 2.00 GB"
    asked = engine.request.decode().splitlines()[0]
    assert "fromImage=registry.example%3A5000%2Fvllm%2Fvllm-openai&tag=sha256%3Aabab" in asked


@pytest.mark.parametrize(
    ("status", "lines", "reason"),
    [
        ("404 Not Found", [{"message": "manifest unknown"}], "manifest unknown"),
        ("200 OK", [*STREAM[:4], {"error": "unexpected EOF", "errorDetail": {}}], "unexpected EOF"),
    ],
)
def test_a_failure_is_the_engine_s_own_words(
    tmp_path: pathlib.Path, status: str, lines: list[dict[str, object]], reason: str
) -> None:
    Engine(tmp_path / "docker.sock", status, lines)
    with pytest.raises(_pull.PullError, match=reason):
        _pull.pull(REFERENCE, lambda _progress: None, str(tmp_path / "docker.sock"))


def test_no_engine_is_said_with_its_socket(tmp_path: pathlib.Path) -> None:
    with pytest.raises(_pull.PullError, match=r"docker\.sock"):
        _pull.pull(REFERENCE, lambda _progress: None, str(tmp_path / "docker.sock"))


@pytest.mark.parametrize(
    ("name", "registry"),
    [
        ("vllm/vllm-openai", ""),
        ("ubuntu", ""),
        ("localhost/x", "localhost"),
        ("registry.example/x/y", "registry.example"),
        ("127.0.0.1:5000/x", "127.0.0.1:5000"),
    ],
)
def test_the_registry_is_the_one_that_docker_would_ask(name: str, registry: str) -> None:
    assert _pull.registry_of(name) == registry


def test_accounts_are_those_of_docker_login(tmp_path: pathlib.Path) -> None:
    config = tmp_path / "config.json"
    encoded = base64.b64encode(b"$oauthtoken:a:b").decode()
    config.write_text(json.dumps({"auths": {"registry.example": {"auth": encoded}}}))
    account = _pull.account("registry.example", config)
    assert account == {"username": "$oauthtoken", "password": "a:b", "serveraddress": "registry.example"}
    assert _pull.account("elsewhere.example", config) == {}
    assert _pull.account("registry.example", tmp_path / "missing.json") == {}
