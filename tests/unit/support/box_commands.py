# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A folder that a playbook can take for a box: its ``systemctl`` and ``docker`` ask the Box of the test's own process.

What is behind them is the real program of the box, so a switch is one.
"""

from __future__ import annotations

import json
import pathlib
import socketserver
import sys
import threading

from tests.unit.support.switch_box import Box

# Isolated and without site-packages: a playbook asks a box a hundred times.
_COMMAND = """#!{python} -IS
import json, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as link, link.makefile("rw") as text:
    text.write(json.dumps([{name!r}, *sys.argv[1:]]) + "\\n")
    text.flush()
    code, out, err = json.loads(text.readline())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""
# Modules find the commands of their own box.
_INTERPRETER = """#!/bin/sh
PATH={folder}:$PATH exec {python} "$@"
"""


class CommandedBox(Box):
    """A box that answers the commands of other processes until it is closed."""

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        box = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                answer = box.answer(json.loads(self.rfile.readline()))
                self.wfile.write(json.dumps(answer).encode() + b"\n")

        self._server = socketserver.TCPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        folder = root / "bin"
        folder.mkdir()
        for name in ("systemctl", "docker"):
            port = self._server.server_address[1]
            _executable(folder / name, _COMMAND.format(python=sys.executable, port=port, name=name))
        self.interpreter = folder / "python"
        _executable(self.interpreter, _INTERPRETER.format(folder=folder, python=sys.executable))

    def answer(self, argv: list[str]) -> tuple[int, str, str]:
        """Answer a command; the program that it starts has ended before it does."""
        if argv[:2] == ["docker", "info"]:
            return 0, json.dumps({"ServerVersion": "28.3.3"}), ""
        said = self.run(argv)
        self.sleep(1)
        return said

    def close(self) -> None:
        """Answer nothing any more."""
        self._server.shutdown()
        self._server.server_close()


def _executable(path: pathlib.Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
