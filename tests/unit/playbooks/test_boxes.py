# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A run that no box is in: Ansible would do nothing and call that a success, so every playbook refuses it first."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

import pytest

CHECKOUT = pathlib.Path(__file__).parents[3]
SCRIPTS = pathlib.Path(sys.executable).parent
PLAYBOOKS = ["site.yml", *sorted(f"playbooks/{path.name}" for path in (CHECKOUT / "playbooks").glob("*.yml"))]
MIXED = {"sparks": ["spark-1", "spark-2"], "desks": ["desk-1"]}


def play(
    folder: pathlib.Path,
    playbook: str,
    groups: dict[str, list[str]],
    limit: str = "",
    settings: pathlib.Path | None = None,
) -> tuple[int, str]:
    """Return how a run ended, and what it said; whoever would connect leaves a file behind.

    Without ``settings`` those of the checkout do not count, as for those who have installed the collection.
    """
    ssh = folder / "ssh"
    ssh.write_text(f"#!/bin/sh\ntouch {folder}/connected\nexit 255\n", encoding="utf-8")
    ssh.chmod(0o755)
    host = {"ansible_host": "192.0.2.1", "ansible_ssh_executable": str(ssh), "model_roles": []}
    hosts: dict[str, t.Any] = {name: {"hosts": dict.fromkeys(names, host)} for name, names in groups.items()}
    (folder / "hosts.json").write_text(json.dumps(hosts or {"all": {"hosts": {}}}), encoding="utf-8")
    command = [str(SCRIPTS / "ansible-playbook"), str(CHECKOUT / playbook), "-i", str(folder / "hosts.json")]
    command += ["-l", limit] if limit else []
    env = {"ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / "collections"), "ANSIBLE_INVENTORY_ENABLED": "yaml"}
    (folder / "ansible.cfg").write_text("[defaults]\n", encoding="utf-8")
    env |= {
        "ANSIBLE_CONFIG": str(settings or folder / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
    }
    done = subprocess.run(command, env={**os.environ, **env}, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_a_limit_that_names_no_box_is_refused_before_any_connection(tmp_path: pathlib.Path, playbook: str) -> None:
    code, said = play(tmp_path, playbook, MIXED, limit="desk-1")
    assert code != 0, said
    assert (
        "hosts.json: -l desk-1 leaves no host of the group sparks, on which the playbooks run (desk-1: not in it)"
        in said
    )
    assert "name boxes of it with -l (spark-1, spark-2), or put the host into it. Nothing was done." in said
    assert not (tmp_path / "connected").exists()


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_an_inventory_without_the_group_is_refused_before_any_connection(tmp_path: pathlib.Path, playbook: str) -> None:
    code, said = play(tmp_path, playbook, {"spark": ["spark-1"]})
    assert code != 0, said
    assert "hosts.json: no host is in the group sparks, and the playbooks run on that group" in said
    assert "(the groups there are: spark); put every box into it, or name another inventory with -i" in said
    assert not (tmp_path / "connected").exists()


@pytest.mark.parametrize(
    ("groups", "limit", "says"),
    [
        ({}, "", "(the groups there are: none)"),
        ({"sparks": []}, "", "(the groups there are: sparks)"),
        ({"sparks": [], "desks": ["desk-1"]}, "desk-1", "no host is in the group sparks"),
        (MIXED, "spark-9", "leaves us with no hosts to target"),
    ],
)
def test_a_run_on_nothing_fails(tmp_path: pathlib.Path, groups: dict[str, list[str]], limit: str, says: str) -> None:
    code, said = play(tmp_path, "playbooks/boxes.yml", groups, limit)
    assert code != 0, said
    assert says in said


@pytest.mark.parametrize("limit", ["", "sparks", "spark-2", "spark-2,desk-1"])
def test_other_hosts_may_stand_beside_the_boxes(tmp_path: pathlib.Path, limit: str) -> None:
    code, said = play(tmp_path, "playbooks/boxes.yml", MIXED, limit)
    assert code == 0, said


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_a_limit_with_a_name_that_is_nowhere_stops_the_run(tmp_path: pathlib.Path, playbook: str) -> None:
    code, said = play(tmp_path, playbook, MIXED, limit="spark-1,spark-9", settings=CHECKOUT / "ansible.cfg")
    assert code != 0, said
    assert "Could not match supplied host pattern" in said
    assert "spark-9" in said
    assert not (tmp_path / "connected").exists()


@pytest.mark.parametrize("limit", ["", "sparks", "spark-*", "spark-1,desk-1", "sparks:!spark-1"])
def test_a_limit_of_names_that_are_there_runs(tmp_path: pathlib.Path, limit: str) -> None:
    code, said = play(tmp_path, "playbooks/boxes.yml", MIXED, limit, settings=CHECKOUT / "ansible.cfg")
    assert code == 0, said
