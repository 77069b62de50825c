# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A lab box with one engine on it, and what one does to the two: the bench that faults are tried on."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import fcntl
import http.client
import json
import os
import pathlib
import tempfile
import typing as t
import uuid

from tests.lab import kit

FAULT_FILE = "lab-fault"
CONFIG = "/etc/gb10-fleet/instances"
CACHE = "/var/lib/gb10-fleet/cache"
HUB = "/var/lib/gb10-fleet/huggingface/hub"
RECORDS = "/var/lib/gb10-fleet/records"
_MARK = "====="
# The same for all workers of a run of the tests, and no other run's.
_THIS_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
# One look at everything on a box that a fault must not cost: a command each, in the order of State's fields.
_LOOK = (
    # Where other benches are on the same box, what is there of them is theirs.
    "docker ps --all --format '{{.Names}} {{.State}}' | awk -v own=vllm-$NAME '$1 == own || ENVIRON[\"ALONE\"]' | sort",
    "docker inspect --format '{{.Id}}' vllm-$NAME 2>/dev/null || true",
    "docker inspect --format '{{index .Config.Labels \"gb10.fleet.spec\"}}' vllm-$NAME 2>/dev/null || true",
    f"sha256sum {CONFIG}/$NAME.* /etc/systemd/system/vllm-$NAME.* /etc/systemd/system/gb10-fleet-* 2>/dev/null || true",
    f"cat {RECORDS}/$NAME.json 2>/dev/null || true",
    f"find {HUB}/models--gb10-lab--$MODEL -type f -exec sha256sum {{}} + | sort",
    "docker images --no-trunc --quiet | sort --unique",
    f"find {CONFIG} {RECORDS} /etc/systemd/system /run/gb10-fleet -name \"*$NAME*\" | grep -E 'new$|ansible' || true",
)


@dataclasses.dataclass(frozen=True)
class State:
    """What is on a box."""

    containers: str
    container: str
    spec: str
    files: str
    record: str
    weights: str
    images: frozenset[str]
    halves: str
    """Files that somebody began to write and did not finish."""

    @property
    def recorded_spec(self) -> str:
        return str(json.loads(self.record)["spec"]) if self.record else ""


@dataclasses.dataclass(frozen=True)
class Bench:
    """A box and the instance on it; what is asked of them goes over SSH, as root."""

    box: str
    name: str
    model_roles: str
    settings: str
    port: int = 8000
    checkpoint: str = "coordinator"
    alone: bool = False
    """Whether no other bench is on the box."""
    patience_s: float = 300
    """How long an engine may take to serve again: generous, for a busy machine."""

    @property
    def host_vars(self) -> str:
        """What the box has in the inventory."""
        return f"{self.model_roles}{self.settings}"

    @property
    def unit(self) -> str:
        return f"vllm-{self.name}.service"

    def run(self, command: str, *, check: bool = True) -> str:
        """Run a command on the box."""
        names = f"export NAME={self.name} MODEL={self.checkpoint} ALONE={'yes' if self.alone else ''}"
        return kit.on_box(self.box, f"{names}; {command}", check=check)

    # What is there

    def state(self) -> State:
        """Look at everything that a fault must not cost."""
        said = self.run(f"; echo {_MARK}; ".join(_LOOK)).split(f"{_MARK}\n")
        names = [field.name for field in dataclasses.fields(State)]
        seen = {name: part.strip() for name, part in zip(names, said, strict=True)}
        return State(**{**seen, "images": frozenset(seen["images"].split())})  # type: ignore[arg-type]

    def systemd(self) -> dict[str, str]:
        """Return the properties of the unit, none where the box cannot be asked."""
        shown = self.run(f"systemctl show {self.unit}", check=False)
        return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)

    def serves(self) -> bool:
        """Return whether the unit is active and its engine answers rightly."""
        return self.systemd().get("ActiveState") == "active" and self.answer() == "12"

    def answer(self) -> str:
        """Ask the engine for a sum; empty where it does not answer."""
        question = "What is 7 plus 5? Answer with the number only."
        try:
            return kit.chat(self.box, question, model=self.name, port=self.port, timeout_s=15).strip()
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return ""

    def now(self) -> str:
        """Return the time on the box, as the journal takes it."""
        return self.run("date +%s.%N").strip()

    def journal(self, since: str) -> str:
        """Return what was said of the instance since then, by whomever; nothing of the other benches of the box."""
        units = f"--unit={self.unit} --unit=gb10-fleet-\\*@{self.name}.\\* --unit=gb10-fleet-switch.service"
        return self.run(f"journalctl {units} --since=@{since} --output=cat --no-pager", check=False)

    # What is done to it

    def fault(self, text: str) -> None:
        """Tell the scripted engine what to do wrong; nothing ends it."""
        path = f"{CACHE}/{self.name}/{FAULT_FILE}"
        self.run(f"printf '%s\\n' '{text}' > {path}" if text else f"rm -f {path}")

    def restart(self) -> None:
        """Restart the unit and wait until the start has come to something, good or bad."""
        self.run(f"systemctl restart {self.unit}", check=False)

    def forgive(self) -> None:
        """Have systemd forget the starts so far: one fault is not held against the next."""
        self.run(f"systemctl reset-failed {self.unit} 2>/dev/null || true")

    def wait(self, condition: c.Callable[[], bool], what: str, seconds: float | None = None) -> float:
        """Wait for something, and return how long it took."""
        return kit.wait_for(condition, seconds=self.patience_s if seconds is None else seconds, what=what)

    def wait_until_it_serves(self, *, other_than: str = "") -> None:
        """Wait until the engine answers; with ``other_than``, until another container does."""

        def served() -> bool:
            # Asked only where it may be right: to the watch, a request that hangs is work, and has it wait.
            asked = f"systemctl is-active {self.unit}; docker inspect --format '{{{{.Id}}}}' vllm-$NAME 2>/dev/null"
            state, _, container = self.run(asked, check=False).strip().partition("\n")
            return state == "active" and container not in {"", other_than} and self.answer() == "12"

        self.wait(served, f"{self.box}: an answer of {self.name}")

    def container(self) -> str:
        """Return the id of the instance's container, empty where there is none."""
        return self.run("docker inspect --format '{{.Id}}' vllm-$NAME 2>/dev/null || true", check=False).strip()

    def deploy(self, host_vars: str = "", **options: t.Any) -> kit.Run:
        """Run site.yml for the box, with its own variables or with others."""
        with tempfile.TemporaryDirectory(prefix="gb10-fleet-faults-") as folder:
            edits = {f"host_vars/{self.box}.yml": host_vars or self.host_vars}
            inventory = kit.edited_inventory(pathlib.Path(folder), edits)
            return kit.play(limit=self.box, inventory=inventory, **options)

    def make_good(self) -> None:
        """Bring the box into the state that every fault starts from; cheap where it is there already."""
        self.fault("")
        self.forgive()
        # Benches on one box share it: only one of them deploys, and it may have been for all of them. The first one of
        # a run always does: what serves there rightly may be another scenario's, with other settings.
        with (kit.LAB / f"faults-{self.box}.lock").open("a+", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.seek(0)
            if lock.read() == _THIS_RUN and self.is_good():
                return
            run = self.deploy()
            if run.status != "successful" or not self.is_good():
                raise AssertionError(f"{self.box} cannot be made good: {run.failures or run.output[-2000:]}")
            lock.truncate(0)
            lock.write(_THIS_RUN)

    def is_good(self) -> bool:
        """Return whether the box serves what was last deployed and proven, and nothing else."""
        if not self.serves():
            return False
        state = self.state()
        return (
            state.containers == f"vllm-{self.name} running" and bool(state.spec) and state.spec == state.recorded_spec
        )


def text_of(run: kit.Run) -> str:
    """Return what a run of a playbook told its user."""
    return "\n".join((*run.messages, *run.failures))


def until(condition: c.Callable[[], bool], seconds: float) -> bool:
    """Wait for something that may or may not come."""
    try:
        kit.wait_for(condition, seconds=seconds, what="")
    except AssertionError:
        return False
    return True
