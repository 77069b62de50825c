#!/usr/bin/env python3
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

r"""Keep a healthy engine busy and count the false alarms of its liveness watch: strikes, restarts and stops.

    benchmarks/liveness_false_alarms.py --box spark-1 --url http://ADDRESS:8000 --name coordinator \
        [--ssh-config .lab/ssh_config] [--minutes 30] [--clients 2] [--max-tokens 300]

The box is reached over SSH with sudo, the engine over HTTP. Nothing is set up: deploy with the period that is to be
tried, such as ``-e vllm_server_liveness_period=22``. Exits 1 on an alarm, or where the watch did not look at all.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import threading
import time
import typing as t
import urllib.request

ALARMS: t.Final = ("strikes", "restarts", "stops")
OPENER: t.Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Box:
    """The box, over SSH."""

    def __init__(self, name: str, config: str) -> None:
        self._ssh = ["ssh", *(["-F", config] if config else []), name]

    def run(self, command: str) -> str:
        """Run a command and return what it printed."""
        return subprocess.run([*self._ssh, command], capture_output=True, text=True, check=True).stdout

    def counts(self, name: str) -> dict[str, int]:
        """Return what the watch has counted since the box was booted."""
        text = self.run(f"sudo cat /run/gb10-fleet/watch/{name}.json || true")
        return dict(json.loads(text).get("counts", {})) if text else {}


class Client(threading.Thread):
    """One client that asks without a pause."""

    def __init__(self, url: str, model: str, max_tokens: int, until: float) -> None:
        super().__init__(daemon=True)
        self._url, self._until = f"{url}/v1/completions", until
        self._body = {"model": model, "max_tokens": max_tokens, "ignore_eos": True}
        self.requests = self.tokens = self.errors = 0

    def run(self) -> None:
        """Ask until the time is over."""
        while time.monotonic() < self._until:
            body = json.dumps({**self._body, "prompt": f"{time.monotonic_ns()}: tell a long story."}).encode()
            request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
            try:
                with OPENER.open(request, timeout=600) as reply:
                    self.tokens += json.load(reply)["usage"]["completion_tokens"]
                self.requests += 1
            except OSError:
                self.errors += 1
                time.sleep(1)


def generated(url: str) -> float:
    """Return how many tokens the engine has generated since its start."""
    with OPENER.open(f"{url}/metrics", timeout=60) as reply:
        text = reply.read().decode()
    return sum(float(value) for value in re.findall(r"^vllm:generation_tokens_total\S* (\S+)", text, re.MULTILINE))


def main() -> int:
    """Run, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--box", required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--ssh-config", default="")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=300)
    options = parser.parse_args()
    url, box = options.url.rstrip("/"), Box(options.box, options.ssh_config)
    before, tokens_before = box.counts(options.name), generated(url)
    until = time.monotonic() + 60 * options.minutes
    clients = [Client(url, options.name, options.max_tokens, until) for _client in range(options.clients)]
    for client in clients:
        client.start()
    while any(client.is_alive() for client in clients):
        time.sleep(5)
        left = max(0.0, until - time.monotonic())
        print(f"\r{left:5.0f} s left, {sum(one.requests for one in clients)} requests ", end="", file=sys.stderr)
    print(file=sys.stderr)
    after, tokens = box.counts(options.name), generated(url) - tokens_before
    seen = {key: after.get(key, 0) - before.get(key, 0) for key in sorted({*after, *ALARMS})}
    served = sum(one.tokens for one in clients)
    looks = seen.get("looks", 0)
    alarms = sum(seen[key] for key in ALARMS)
    print(f"{sum(one.requests for one in clients)} requests, {sum(one.errors for one in clients)} errors")
    print(f"{tokens:.0f} tokens generated, {served} of them for the clients, {tokens - served:.0f} for others")
    print(f"{looks} looks: {json.dumps(seen)}; {alarms} false alarms")
    return int(alarms > 0 or looks <= 0)


if __name__ == "__main__":
    sys.exit(main())
