# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pulls an image through Docker Engine's own interface, so that the bytes that have arrived can be counted.

The command line hides its progress where no person is looking. The requests and the stream of answers are those of
the Docker Engine API, "POST /images/create" (https://docs.docker.com/reference/api/engine/, read 2026-11-29).

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import base64
import collections.abc as c
import dataclasses
import http.client
import json
import pathlib
import socket
import typing as t
import urllib.parse

from ansible_collections.gb10.fleet.plugins.module_utils import _command

SOCKET: t.Final = "/var/run/docker.sock"
_CONNECT_TIMEOUT_S: t.Final = 30.0
# A registry may be silent while a large layer is unpacked.
_READ_TIMEOUT_S: t.Final = 1800.0


class PullError(Exception):
    """The image could not be pulled. The text is the registry's or the engine's own reason."""


@dataclasses.dataclass(slots=True)
class Progress:
    """How much of a pull has arrived: bytes per layer, as far as the engine has named the layers."""

    done: dict[str, int] = dataclasses.field(default_factory=dict)
    total: dict[str, int] = dataclasses.field(default_factory=dict)
    finished: set[str] = dataclasses.field(default_factory=set)
    seen: set[str] = dataclasses.field(default_factory=set)

    def take(self, event: c.Mapping[str, t.Any]) -> None:
        """Account for one line of the engine's stream; raise PullError where it reports a failure."""
        if "error" in event:
            raise PullError(str(event["error"]).strip())
        layer, status = str(event.get("id") or ""), str(event.get("status") or "")
        if not layer or status.startswith("Pulling from"):
            return
        self.seen.add(layer)
        detail = event.get("progressDetail") or {}
        if status == "Downloading" and "current" in detail:
            self.done[layer] = int(detail["current"])
            self.total[layer] = max(int(detail.get("total") or 0), self.done[layer])
        elif status in {"Download complete", "Verifying Checksum", "Extracting"}:
            self.done[layer] = self.total.get(layer, 0)
        if status in {"Pull complete", "Already exists"}:
            self.done[layer] = self.total.get(layer, 0)
            self.finished.add(layer)

    def line(self) -> str:
        """Return the state in a few words: 3 of 7 layers, 1.2 of 9.4 GB."""
        layers = f"{len(self.finished)} of {len(self.seen)} layers"
        expected = sum(self.total.values())
        if not expected:
            return layers
        return f"{layers}, {sum(self.done.values()) / 1e9:.2f} of {expected / 1e9:.2f} GB"


class _EngineConnection(http.client.HTTPConnection):
    """HTTP over the engine's socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_READ_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_CONNECT_TIMEOUT_S)
        self.sock.connect(self._path)
        self.sock.settimeout(_READ_TIMEOUT_S)


def pull(reference: str, on_progress: c.Callable[[Progress], None], socket_path: str = SOCKET) -> None:
    """Pull ``name@sha256:...``; raise PullError with the reason where it fails."""
    name, digest = reference.split("@", 1)
    query = urllib.parse.urlencode({"fromImage": name, "tag": digest})
    connection = _EngineConnection(socket_path)
    progress = Progress()
    try:
        connection.request("POST", f"/images/create?{query}", headers=_registry_header(name))
        answer = connection.getresponse()
        if answer.status != 200:
            raise PullError(_message(answer.read(65536)))
        for line in answer:
            if line.strip():
                progress.take(json.loads(line))
                on_progress(progress)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise PullError(f"Docker Engine's socket {socket_path}: {error}") from error
    finally:
        connection.close()


def _message(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip()


def registry_of(name: str) -> str:
    """Return the registry that an image's name begins with, empty where it names none and the engine's own is meant."""
    first, slash = name.partition("/")[:2]
    return first if slash and ("." in first or ":" in first or first == "localhost") else ""


def _registry_header(name: str) -> dict[str, str]:
    registry = registry_of(name)
    if not registry:
        code, out, _err = _command.run(["docker", "info", "--format", "{{.IndexServerAddress}}"])
        registry = out.strip() if code == 0 else ""
    found = account(registry, pathlib.Path("~/.docker/config.json").expanduser())
    if not found:
        return {}
    return {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(found).encode()).decode()}


def account(registry: str, config: pathlib.Path) -> dict[str, str]:
    """Return the account for a registry from "docker login" on the box: in the file, or by its credential helper."""
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    helper = (settings.get("credHelpers") or {}).get(registry) or settings.get("credsStore")
    if helper:
        code, out, _err = _command.run([f"docker-credential-{helper}", "get"], stdin=registry)
        if code == 0:
            found = json.loads(out)
            return {"username": found["Username"], "password": found["Secret"], "serveraddress": registry}
    encoded = ((settings.get("auths") or {}).get(registry) or {}).get("auth", "")
    username, colon, password = base64.b64decode(encoded).decode().partition(":")
    return {"username": username, "password": password, "serveraddress": registry} if colon else {}
