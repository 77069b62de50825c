# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the README says to those who have installed the collection: names of playbooks, an inventory, settings."""

from __future__ import annotations

import configparser
import os
import pathlib
import re
import subprocess
import sys

CHECKOUT = pathlib.Path(__file__).parents[3]
SCRIPTS = pathlib.Path(sys.executable).parent
# Each playbook begins with it; nobody runs it alone.
PART = "boxes"


def section() -> str:
    """Return what the README says of an installed collection."""
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    return readme.partition("## As an installed collection")[2].partition("\n## ")[0]


def block(language: str) -> str:
    """Return the one code block of a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", section(), re.DOTALL)
    return str(found)


def test_every_playbook_is_named() -> None:
    there = {path.stem for path in (CHECKOUT / "playbooks").glob("*.yml")}
    assert set(re.findall(r"`gb10\.fleet\.([a-z]+)`", section())) == there - {PART}


def test_the_inventory_is_right_once_it_is_filled_in(tmp_path: pathlib.Path) -> None:
    text = block("yaml").replace("<40 hex digits>", "01" * 20).replace("<64 hex digits>", "ab" * 32)
    (tmp_path / "fleet.yml").write_text(text, encoding="utf-8")
    (tmp_path / "ansible.cfg").write_text(block("ini"), encoding="utf-8")
    env = {
        "ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / "collections"),
        "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
        "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
    }
    command = [str(SCRIPTS / "ansible-playbook"), "gb10.fleet.validate", "-i", "fleet.yml"]
    done = subprocess.run(command, env={**os.environ, **env}, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "spark-1 is to serve qwen3-coder-next-int4" in done.stdout


def test_the_settings_are_those_of_the_checkout() -> None:
    own, ours = configparser.ConfigParser(), configparser.ConfigParser()
    own.read_string(block("ini"))
    ours.read(CHECKOUT / "ansible.cfg", encoding="utf-8")
    for name in own.sections():
        assert set(own.items(name)) <= set(ours.items(name))
