# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What tests on lab boxes share: run a playbook as a user would, ask a box, ask an engine."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import http.client
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import typing as t
import urllib.request

import ansible_runner

CHECKOUT = pathlib.Path(__file__).parents[2]
LAB = CHECKOUT / ".lab"
SCRIPTS = pathlib.Path(sys.executable).parent
# The line in which ansible-core says, at this verbosity, that it runs something on a box.
_REMOTE = re.compile(r"^<(?P<box>[^>]+)> SSH: EXEC ", re.MULTILINE)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run of a playbook came to."""

    status: str
    stats: dict[str, dict[str, int]]
    output: str
    messages: tuple[str, ...]
    failures: tuple[str, ...]

    def count(self, kind: str, box: str) -> int:
        """Return how many tasks of a kind (ok, changed, failures, dark) a box had."""
        return self.stats.get(kind, {}).get(box, 0)

    def remote_executions(self, box: str) -> int:
        """Return how often something was run on a box over SSH; the run needs ``verbosity=3``."""
        address = lab_facts()["lab_hosts"][box]["address"]
        return sum(1 for match in _REMOTE.finditer(self.output) if match["box"] == address)


def play(
    *,
    limit: str,
    inventory: pathlib.Path = CHECKOUT / "inventories" / "lab",
    playbook: str = "site.yml",
    check: bool = False,
    tags: c.Sequence[str] = (),
    verbosity: int = 0,
    extra: c.Mapping[str, t.Any] | None = None,
    env: c.Mapping[str, str] | None = None,
) -> Run:
    """Run a playbook through ansible-runner, as the command line would."""
    words = (["--check", "--diff"] if check else []) + (["--tags", ",".join(tags)] if tags else [])
    with tempfile.TemporaryDirectory(prefix="gb10-fleet-run-") as folder:
        runner = ansible_runner.run(
            private_data_dir=folder,
            playbook=str(CHECKOUT / playbook),
            inventory=str(inventory),
            limit=limit,
            cmdline=" ".join(words) or None,
            extravars=dict(extra or {}),
            verbosity=verbosity or None,
            envvars={
                "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"),
                "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
                **(env or {}),
            },
            quiet=True,
        )
        # Everything that the runner knows lies in the folder, and is read only when it is asked for.
        events = list(runner.events)
        output = _COLOR.sub("", runner.stdout.read())
        stats = dict(runner.stats or {})
    results = [event["event_data"].get("res", {}) for event in events if event["event"].startswith("runner_on_")]
    bad = {"runner_on_failed", "runner_item_on_failed"}
    failed = [event["event_data"]["res"] for event in events if event["event"] in bad]
    return Run(
        status=str(runner.status),
        stats=stats,
        output=output,
        messages=tuple(str(result["msg"]) for result in results if result.get("msg")),
        failures=tuple(str(result.get("msg", result)) for result in failed),
    )


def start_play(*, limit: str, inventory: pathlib.Path, playbook: str = "site.yml") -> subprocess.Popen[bytes]:
    """Start a playbook in the background, with a process group of its own, and return the process."""
    return subprocess.Popen(
        [SCRIPTS / "ansible-playbook", "--inventory", inventory, "--limit", limit, CHECKOUT / playbook],
        env={**os.environ, "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def edited_inventory(folder: pathlib.Path, edits: c.Mapping[str, str]) -> pathlib.Path:
    """Copy the lab's inventory into a folder, replace some of its files, and return the copy."""
    copy = folder / "inventories" / "lab"
    shutil.copytree(CHECKOUT / "inventories" / "lab", copy)
    (folder / ".lab").symlink_to(LAB)
    for path, text in edits.items():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_text(text, encoding="utf-8")
    return copy


def on_box(box: str, command: str, *, check: bool = True) -> str:
    """Run a command on a box as root, and return what it printed."""
    ssh = ["ssh", "-F", str(LAB / "ssh_config"), box, f"sudo sh -c {shlex.quote(command)}"]
    done = subprocess.run(ssh, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"{box}: {command}: {done.stderr}")
    return done.stdout


def lab_facts() -> dict[str, t.Any]:
    """Return what the lab says of itself."""
    facts: dict[str, t.Any] = json.loads((LAB / "vars.json").read_text(encoding="utf-8"))
    return facts


def chat(box: str, question: str, *, model: str, port: int = 8000, timeout_s: float = 60, key: str = "") -> str:
    """Ask an engine from outside of its box, and return its answer."""
    url = f"http://{lab_facts()['lab_hosts'][box]['address']}:{port}/v1/chat/completions"
    body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 16, "temperature": 0}
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout_s) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])


def answers(box: str, *, model: str, port: int = 8000, key: str = "") -> bool:
    """Return whether an engine answers at all."""
    question = "What is 7 plus 5? Answer with the number only."
    try:
        return bool(chat(box, question, model=model, port=port, timeout_s=20, key=key))
    except (OSError, http.client.HTTPException):
        return False


def wait_for(condition: c.Callable[[], bool], *, seconds: float, what: str) -> float:
    """Wait until a condition holds, and return how long it took.

    A look at a box costs both ends more the busier they are, so it is paused for longer than the look took.
    """
    started = time.monotonic()
    while True:
        looked = time.monotonic()
        if condition():
            return time.monotonic() - started
        if time.monotonic() - started > seconds:
            raise AssertionError(f"{what}: not within {seconds:.0f} s")
        time.sleep(min(max(0.5, 2 * (time.monotonic() - looked)), 5))


def unit(box: str, name: str) -> dict[str, str]:
    """Return the properties of an instance's unit."""
    shown = on_box(box, f"systemctl show vllm-{name}.service")
    return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
