# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the plays that go through the fleet in batches do when a box is not heard of any more."""

from __future__ import annotations

import pathlib
import sys
import typing as t

import ansible_runner
import pytest
import yaml

CHECKOUT = pathlib.Path(__file__).parents[3]
# Port 1 of the machine itself: nobody listens there.
LOST = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


def play_of(playbook: str) -> dict[str, t.Any]:
    """Return the play that goes through the boxes: of what it does to them, only what it begins with."""
    plays = yaml.safe_load((CHECKOUT / playbook).read_text(encoding="utf-8"))
    play: dict[str, t.Any] = next(one for one in plays if one.get("max_fail_percentage") == 0 and one["serial"] != 1)
    work = {"name": "Work", "ansible.builtin.command": {"argv": ["true"]}}
    return {**play, "hosts": "sparks", "become": False, "serial": [1, 2, 2], "tasks": [play["tasks"][0], work]}


@pytest.mark.parametrize("playbook", ["playbooks/site.yml", "playbooks/rollback.yml"])
def test_a_box_that_is_not_heard_of_any_more_stops_the_batches_after_it(tmp_path: pathlib.Path, playbook: str) -> None:
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    hosts = {f"spark-{number}": LOST if number == 2 else here for number in range(1, 6)}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play_of(playbook)]))
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": hosts}}))
    runner = ansible_runner.run(
        private_data_dir=str(tmp_path),
        playbook=str(tmp_path / "play.yml"),
        inventory=str(tmp_path / "hosts.yml"),
        envvars={"ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"), "ANSIBLE_HOST_KEY_CHECKING": "False"},
        quiet=True,
    )
    done = {
        e["event_data"]["host"]
        for e in runner.events
        if e["event"] == "runner_on_ok" and e["event_data"]["task"] == "Work"
    }
    output = runner.stdout.read()
    # Its own batch has begun by then, and is finished; the boxes of the next one keep what they serve.
    assert done == {"spark-1", "spark-3"}, output
    assert runner.status == "failed"
    assert "spark-2 could not be reached while it was its turn" in " ".join(output.split())
