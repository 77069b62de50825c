# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A deploy is a transaction: what fails its proof goes back, what is interrupted anywhere ends as the old or the new.

The lab's scripted engine stands in where no model takes part; the first test goes back to a real vLLM.
"""

from __future__ import annotations

import collections.abc as c
import json
import os
import pathlib
import signal
import time
import typing as t

import pytest

from tests.lab import kit

BOX, OTHER = "spark-1", "spark-2"
STATE = "/var/lib/gb10-fleet"
# What a way back may take beyond the boot of the old engine.
GRACE_S = 30
KEY = "a-key-for-clients"
# The last play of site.yml, and the task in it that the others are there for.
SWITCH_PLAY = "Switch the boxes"
SWITCH_TASK = "Switch to what the inventory names, prove it, or go back"


def role(name: str, port: int = 8000, *, fault: str = "", boot_s: float = 0.3) -> str:
    """Return an entry of model_roles for the scripted engine."""
    env = {"GB10_LAB_BOOT_S": str(boot_s)} | ({"GB10_LAB_FAULT": fault} if fault else {})
    return json.dumps({"role": "scripted", "name": name, "port": port, "env": env})


def inventory(folder: pathlib.Path, *roles: str, extra: str = "", box: str = BOX) -> pathlib.Path:
    """Return an inventory in which the box serves these."""
    folder.mkdir(parents=True, exist_ok=True)
    return kit.edited_inventory(folder, {f"host_vars/{box}.yml": f"model_roles: [{', '.join(roles)}]\n{extra}"})


def deployment(box: str = BOX) -> dict[str, t.Any]:
    """Return what the box says of its deployment."""
    found: dict[str, t.Any] = json.loads(kit.on_box(box, f"cat {STATE}/deployment.json"))
    return found


def containers(box: str = BOX) -> dict[str, str]:
    """Return the engines that run, and when each was started."""
    shown = kit.on_box(box, "docker ps --all --no-trunc --format '{{.Names}} {{.ID}}'")
    return dict(line.split() for line in shown.splitlines())


def assert_whole(*names: str) -> None:
    """Exactly these are served: they answer, they start at boot, and nothing is left of others or of the switch."""
    assert set(containers()) == {f"vllm-{name}" for name in names}
    units = kit.on_box(BOX, "ls /etc/systemd/system | grep '^vllm-.*service$' || true").split()
    assert set(units) == {f"vllm-{name}.service" for name in names}
    settings = kit.on_box(BOX, "ls /etc/gb10-fleet/instances").split()
    assert {one for one in settings if one.endswith(".json")} == {f"{name}.json" for name in names}
    assert kit.on_box(BOX, f"ls {STATE}/switch.json 2>/dev/null || true") == ""
    for name in names:
        unit = kit.unit(BOX, name)
        assert (unit["ActiveState"], unit["UnitFileState"], unit["NeedDaemonReload"]) == ("active", "enabled", "no")


class Watch:
    """What Docker Engine says of the engines from now on."""

    def __init__(self) -> None:
        self._since = kit.on_box(BOX, "date +%s.%N").strip()
        self._before = set(containers())

    def events(self) -> list[str]:
        """Return which engine has started and which has ended, in their order: "die vllm-one", "start vllm-two"."""
        form = "{{.Action}} {{.Actor.Attributes.name}}"
        filters = "--filter type=container --filter event=start --filter event=die"
        shown = kit.on_box(BOX, f"docker events --since {self._since} --until $(date +%s) {filters} --format '{form}'")
        return [line for line in shown.splitlines() if line.partition(" ")[2].startswith("vllm-")]

    def most_at_once(self) -> int:
        """Return how many engines ran at the same time at most."""
        running, most = set(self._before), len(self._before)
        for line in self.events():
            action, _, name = line.partition(" ")
            running = running | {name} if action == "start" else running - {name}
            most = max(most, len(running))
        return most


def settled(seconds: float = 120) -> None:
    """Wait until no switch is under way."""
    done = f"test ! -e {STATE}/switch.json && echo done"
    kit.wait_for(lambda: "done" in kit.on_box(BOX, done, check=False), seconds=seconds, what="the end of the switch")


def test_a_real_engine_is_back_soon_after_a_deploy_that_failed(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = deployment()["serving"]
    run = kit.play(limit=BOX, inventory=inventory(tmp_path, role("other", fault="garbage_nul")))
    assert run.status == "failed"
    message = run.failures[-1]
    assert "vllm-other.service" in message
    assert f"Generation {before} was restored and serves again" in message
    assert "vllm-coordinator (model role coordinator, port 8000)" in message
    assert kit.answers(BOX, model="coordinator")
    assert_whole("coordinator")
    shown = kit.on_box(BOX, "journalctl --unit vllm-coordinator --boot --output cat | grep ': ready: ' | tail -1")
    boot_s, took_s = float(shown.split()[0]), float(deployment()["last"]["restored_s"])
    with capsys.disabled():
        print(f"\nRestored {took_s:.0f} s after the failure, {boot_s:.0f} s of that the boot of the old engine")
    # Both are times of this very machine in this very moment.
    assert took_s < boot_s + GRACE_S


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The box serves a scripted engine, another one beside it, and clients need a key."""
    made = inventory(
        tmp_path_factory.mktemp("old"), role("scripted"), role("beside", 8001), extra=f"vllm_server_api_key: {KEY}\n"
    )
    run = kit.play(limit=BOX, inventory=made)
    assert run.status == "successful", run.failures
    return made


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("exit_0_at_boot", "vllm-scripted.service did not come up"),
        ("garbage_nul", "vllm-scripted.service did not come up"),
        ("pool_is_half", "The KV pool holds 1088 tokens, -50.0% of the 2176 that were planned."),
    ],
)
def test_what_fails_its_proof_goes_back_and_its_neighbour_runs_on(
    old: pathlib.Path, tmp_path: pathlib.Path, fault: str, says: str
) -> None:
    del old
    before, serving = containers(), deployment()["serving"]
    extra = f"vllm_server_api_key: {KEY}\n"
    bad = inventory(tmp_path, role("scripted", fault=fault), role("beside", 8001), extra=extra)
    run = kit.play(limit=BOX, inventory=bad)
    assert run.status == "failed"
    assert says in run.failures[-1]
    assert f"Generation {serving} was restored and serves again" in run.failures[-1]
    assert_whole("scripted", "beside")
    after = containers()
    assert after["vllm-beside"] == before["vllm-beside"]
    assert after["vllm-scripted"] != before["vllm-scripted"]
    assert kit.answers(BOX, model="scripted", key=KEY)
    assert deployment()["serving"] == serving
    assert not any("try again what failed the last time" in line for line in run.messages)
    if fault == "exit_0_at_boot":  # the inventory still asks for it
        again = kit.play(limit=BOX, inventory=bad)
        assert again.status == "failed"
        assert any("try again what failed the last time" in line for line in again.messages)
        assert_whole("scripted", "beside")


def test_going_back_on_request(old: pathlib.Path, tmp_path: pathlib.Path) -> None:
    first = deployment()["serving"]
    other = "another-key"
    new = inventory(tmp_path, role("scripted", boot_s=0.4), extra=f"vllm_server_api_key: {other}\n")
    assert kit.play(limit=BOX, inventory=new).status == "successful"
    second = deployment()["serving"]
    assert kit.answers(BOX, model="scripted", key=other)

    check = kit.play(limit=BOX, inventory=new, playbook="playbooks/rollback.yml", check=True)
    assert check.status == "successful", check.failures
    said = next(line for line in check.messages if f"go back from generation {second}, vllm-" in line)
    assert f", to {first}, vllm-" in said
    assert deployment()["serving"] == second

    nowhere = {"rollback_to": "0123456789ab"}
    refused = kit.play(limit=BOX, inventory=new, playbook="playbooks/rollback.yml", extra=nowhere)
    assert refused.status == "failed"
    assert f"cannot go back to 0123456789ab: the good ones that it has are {second}, {first}" in refused.failures[0]

    back = kit.play(limit=BOX, inventory=new, playbook="playbooks/rollback.yml", verbosity=3)
    assert back.status == "successful", back.failures
    assert any(f"generation {first} serves and has answered" in line for line in back.messages)
    assert_whole("scripted", "beside")
    # With the key that it had: secrets go back, too, and are shown to nobody.
    assert kit.answers(BOX, model="scripted", key=KEY)
    assert not kit.answers(BOX, model="scripted", key=other)
    assert KEY not in back.output
    assert other not in back.output
    assert kit.on_box(BOX, f"stat -c %a%U {STATE}/secrets").strip() == "700root"
    assert set(kit.on_box(BOX, f"stat -c %a%U {STATE}/secrets/*").split()) == {"600root"}
    records = kit.on_box(BOX, f"cat {STATE}/records/*.json {STATE}/generations/*/*.json {STATE}/*.json")
    assert KEY not in records

    forth = kit.play(limit=BOX, inventory=new, playbook="playbooks/rollback.yml", extra={"rollback_to": second})
    assert forth.status == "successful", forth.failures
    assert deployment()["serving"] == second
    assert kit.play(limit=BOX, inventory=old).status == "successful"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path]:
    """Two inventories that differ in what the box serves: one engine, one port, two names."""
    folder = tmp_path_factory.mktemp("pair")
    return (
        inventory(folder / "one", role("one", boot_s=3)),
        inventory(folder / "two", role("two", boot_s=3)),
    )


def tasks_of(run: kit.Run) -> list[tuple[str, str]]:
    """Return the tasks of a run in their order, each with its play."""
    found, play = [], ""
    for line in run.output.splitlines():
        if line.startswith("PLAY ["):
            play = line.partition("[")[2].rpartition("]")[0]
        if line.startswith("TASK ["):
            found.append((play, line.partition("[")[2].rpartition("]")[0]))
    return found


def killed(after: int, made: pathlib.Path) -> kit.Run:
    """Deploy, and be killed when so many tasks have ended."""
    env = {
        "GB10_TEST_KILL_AFTER": str(after),
        "ANSIBLE_CALLBACK_PLUGINS": str(pathlib.Path(__file__).parents[1] / "callbacks"),
        "ANSIBLE_CALLBACKS_ENABLED": "kill_after",
    }
    return kit.play(limit=BOX, inventory=made, env=env)


def test_killed_between_any_two_tasks_the_next_run_finishes_the_job(
    pair: tuple[pathlib.Path, pathlib.Path], every_task: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("one", "two")
    run = kit.play(limit=BOX, inventory=pair[0])
    assert run.status == "successful", run.failures
    tasks = tasks_of(run)
    first = next(number for number, (play, _name) in enumerate(tasks, 1) if play == SWITCH_PLAY)
    switch = next(number for number, (_play, name) in enumerate(tasks, 1) if SWITCH_TASK in name)
    # Up to the switch nothing is touched, and after it nothing is left to do: what is left out here is no different.
    boundaries = range(1, len(tasks) + 1) if every_task else [first - 1, switch - 1, switch]
    now = 0
    for after in boundaries:
        goal = 1 - now
        watch = Watch()
        run = killed(after, pair[goal])
        assert run.status == ("successful" if after == len(tasks) else "failed"), run.output
        settled()
        serving = [name for name in names if kit.answers(BOX, model=name)]
        assert len(serving) == 1, (after, serving)
        assert_whole(*serving)
        run = kit.play(limit=BOX, inventory=pair[goal])
        assert run.status == "successful", run.failures
        assert_whole(names[goal])
        assert watch.most_at_once() == 1
        now = goal
    with capsys.disabled():
        print(f"\nKilled after each of {len(boundaries)} of {len(tasks)} tasks: never two engines, never none")


def begin(made: pathlib.Path) -> c.Callable[[], int]:
    """Start a deployment in the background, wait until its switch starts the new engine, and return how to kill it."""
    process = kit.start_play(limit=BOX, inventory=made)
    starting = f"grep -q '\"step\": \"starting\"' {STATE}/switch.json && docker ps --format '{{{{.Names}}}}'"
    kit.wait_for(lambda: bool(kit.on_box(BOX, starting, check=False).strip()), seconds=180, what="a starting engine")

    def kill() -> int:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    return kill


class Way(t.NamedTuple):
    """A deployment that takes its time to boot: what serves now, what is to, and the inventory that says so."""

    old: str
    new: str
    inventory: pathlib.Path


@pytest.fixture
def slow(pair: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path) -> Way:
    """The box serves the one of two; the inventory wants the other."""
    if set(containers()) not in ({"vllm-one"}, {"vllm-two"}):
        assert kit.play(limit=BOX, inventory=pair[0]).status == "successful"
    old, new = ("one", "two") if "vllm-one" in containers() else ("two", "one")
    return Way(old, new, inventory(tmp_path, role(new, boot_s=12)))


def test_a_run_that_is_killed_in_the_middle_of_the_switch_is_joined(slow: Way) -> None:
    watch = Watch()
    begin(slow.inventory)()
    run = kit.play(limit=BOX, inventory=slow.inventory)
    assert run.status == "successful", run.failures
    assert_whole(slow.new)
    # The first run began it, and the second found nothing left to do but to wait for it.
    assert watch.events() == [f"die vllm-{slow.old}", f"start vllm-{slow.new}"]


def test_a_program_that_is_killed_in_the_middle_of_the_switch_goes_on(slow: Way) -> None:
    watch = Watch()
    kill = begin(slow.inventory)
    kit.on_box(BOX, "systemctl kill --signal=KILL gb10-fleet-switch.service")
    settled()
    kill()
    assert_whole(slow.new)
    assert watch.most_at_once() == 1
    assert deployment()["last"]["outcome"] == "served"


def test_a_reboot_while_the_new_engine_starts_ends_with_the_old_and_the_next_run_finishes(slow: Way) -> None:
    before = kit.on_box(BOX, "cat /proc/sys/kernel/random/boot_id")
    kill = begin(slow.inventory)
    kit.on_box(BOX, "systemctl reboot --force", check=False)
    kill()
    kit.wait_for(
        lambda: kit.on_box(BOX, "cat /proc/sys/kernel/random/boot_id", check=False) not in {"", before},
        seconds=300,
        what="another boot",
    )
    settled()
    assert_whole(slow.old)
    last = deployment()["last"]
    assert last["outcome"] == "restored"
    assert "the box restarted while it was starting" in last["message"]
    run = kit.play(limit=BOX, inventory=slow.inventory)
    assert run.status == "successful", run.failures
    assert_whole(slow.new)


def test_the_first_proof_that_fails_stops_the_other_boxes(tmp_path: pathlib.Path) -> None:
    before = containers(OTHER)
    bad = inventory(tmp_path, role("other", fault="exit_0_at_boot"))
    (bad / "host_vars" / f"{OTHER}.yml").write_text((bad / "host_vars" / f"{BOX}.yml").read_text())
    run = kit.play(limit="sparks", inventory=bad)
    assert run.status == "failed"
    assert (run.count("failures", BOX), run.count("failures", OTHER)) == (1, 0)
    assert containers(OTHER) == before
    assert kit.answers(OTHER, model="extractor")
    assert len(containers()) == 1


def test_the_inventory_of_the_lab_brings_it_back() -> None:
    started = time.monotonic()
    run = kit.play(limit=BOX)
    assert run.status == "successful", run.failures
    assert_whole("coordinator")
    assert kit.answers(BOX, model="coordinator"), f"{time.monotonic() - started:.0f} s"
