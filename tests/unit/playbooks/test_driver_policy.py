# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the role nvidia_driver refuses by what is known of a version, before anything is installed."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import typing as t

import ansible_runner
import pytest
import yaml

CHECKOUT = pathlib.Path(__file__).parents[3]
SCRIPTS = pathlib.Path(sys.executable).parent
ROLE = CHECKOUT / "roles" / "nvidia_driver"


CASES: dict[str, tuple[str, str, dict[str, t.Any], list[str]]] = {
    "good": ("580.173.02", "6.17.0-1029-nvidia", {}, []),
    # Disputed, or of a branch that NVIDIA does not support: said, and not refused.
    "disputed": ("580.142", "6.17.0-1026-nvidia", {}, []),
    "unsupported": ("595.84", "6.17.0-1029-nvidia", {}, []),
    "bad": ("590.48.01", "6.17.0-1029-nvidia", {}, ["DRIVER_590_48_LEAKS"]),
    "accepted": (
        "590.48.01",
        "6.17.0-1029-nvidia",
        {"nvidia_driver_known_limits": ["DRIVER_590_48_LEAKS"]},
        [],
    ),
    "one-box": ("580.173.02", "7.0.0-1019-nvidia", {}, []),
    "two-boxes": ("580.173.02", "7.0.0-1019-nvidia", {"nvidia_driver_nodes": 2}, ["KERNEL_7_0_0_1019_TWO_NODES"]),
}


@pytest.fixture(scope="module")
def denied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Evaluate what the role evaluates, with one host for each case, and return what it refuses."""
    folder = tmp_path_factory.mktemp("policy")
    (folder / "runner").mkdir()
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text(encoding="utf-8"))
    hosts = {
        name: {
            **defaults,
            **settings,
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "__nvidia_driver_planned": {"plan": {"driver_version": version, "next_kernel": kernel}, "findings": []},
        }
        for name, (version, kernel, settings, _expected) in CASES.items()
    }
    play = {
        "name": "Evaluate what the role evaluates",
        "hosts": "all",
        "gather_facts": False,
        "vars_files": [str(ROLE / "vars" / "main.yml")],
        "tasks": [
            {
                "name": "Write it down",
                "ansible.builtin.copy": {
                    "content": "{{ __nvidia_driver_denied | map(attribute='id') | to_json }}",
                    "dest": f"{folder}/{{{{ inventory_hostname }}}}.json",
                    "mode": "0600",
                },
            }
        ],
    }
    (folder / "play.yml").write_text(json.dumps([play]), encoding="utf-8")
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}), encoding="utf-8")
    runner = ansible_runner.run(
        private_data_dir=str(folder / "runner"),
        playbook=str(folder / "play.yml"),
        inventory=str(folder / "hosts.json"),
        envvars={"ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"), "PATH": f"{SCRIPTS}:{os.environ['PATH']}"},
        quiet=True,
    )
    assert runner.status == "successful", runner.stdout.read()
    return {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in CASES}


@pytest.mark.parametrize("case", CASES)
def test_a_version_is_refused_by_what_is_known_of_it(denied: dict[str, list[str]], case: str) -> None:
    assert denied[case] == CASES[case][3]
