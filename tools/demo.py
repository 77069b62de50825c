#!/usr/bin/env python3
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shows what a box of the lab serves: its plan, the state of its units, and one answer.

tools/demo.py spark-1
"""

from __future__ import annotations

import json
import pathlib
import shlex
import subprocess
import sys
import typing as t
import urllib.request

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]
QUESTION = "What is 7 plus 5? Answer with the number only."


def main() -> int:
    """Ask the box over SSH for its records, then ask each engine over HTTP."""
    box = sys.argv[1] if len(sys.argv) > 1 else "spark-1"
    address = json.loads((CHECKOUT / ".lab" / "vars.json").read_text(encoding="utf-8"))["lab_hosts"][box]["address"]
    names = on_box(box, "ls /var/lib/gb10-fleet/records").split()
    for name in (pathlib.PurePath(file).stem for file in names):
        record = json.loads(on_box(box, f"cat /var/lib/gb10-fleet/records/{name}.json"))
        settings = json.loads(on_box(box, f"sudo cat /etc/gb10-fleet/instances/{name}.json"))
        print(f"\n== the plan of {name} on {box}")
        for key, number in record["plan"]["numbers"].items():
            print(f"  {key:16} {number['value']:>14,} {number['unit']:9} {number['reason']}")
        print(f"  {shlex.join(record['plan']['flags'])}")
        print(f"\n== the unit of {name} on {box}")
        print(on_box(box, f"systemctl show -p Id,ActiveState,SubState,NRestarts vllm-{name}.service"))
        url = f"http://{address}:{settings['port']}/v1/chat/completions"
        body = {
            "model": settings["models"][0],
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 32,
            "temperature": 0,
        }
        print(f"== {QUESTION}")
        curl = ["curl", "-s", url, "-H", "Content-Type: application/json", "-d", json.dumps(body)]
        print(f"  {shlex.join(curl)}\n")
        print(f"{name} on {box} answers: {answer(url, body)}")
    return 0


def on_box(box: str, command: str) -> str:
    """Run a command on the box."""
    ssh = ["ssh", "-F", str(CHECKOUT / ".lab" / "ssh_config"), box, command]
    return subprocess.run(ssh, check=True, capture_output=True, text=True).stdout


def answer(url: str, body: dict[str, t.Any]) -> str:
    """Return the text of one chat completion."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])


if __name__ == "__main__":
    sys.exit(main())
