# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pathlib
import subprocess
import sys
import zipfile

from ansible_collections.gb10.fleet.plugins.plugin_utils import _box_program

SOURCES = pathlib.Path(_box_program.__file__).parents[1] / "module_utils"


def test_the_same_sources_give_the_same_bytes() -> None:
    assert _box_program.program() == _box_program.program()


def test_only_what_is_needed_is_packed_and_nothing_of_ansible(tmp_path: pathlib.Path) -> None:
    names = set(_box_program.needed())
    assert {"_box", "_gate", "_instance", "_probe", "_pull"} <= names
    assert "_cubin" not in names
    packed = tmp_path / "fleet.pyz"
    packed.write_bytes(_box_program.program())
    with zipfile.ZipFile(packed) as archive:
        sources = [archive.read(name).decode() for name in archive.namelist()]
    assert not [source for source in sources if "import ansible\n" in source or "from ansible." in source]


def test_the_program_runs_without_the_collection(tmp_path: pathlib.Path) -> None:
    packed = tmp_path / "fleet.pyz"
    packed.write_bytes(_box_program.program())
    # -I: no user site, no environment, nothing of the checkout on the path.
    done = subprocess.run([sys.executable, "-I", packed, "--help"], capture_output=True, text=True, check=True)
    assert "gate" in done.stdout
    unknown = subprocess.run(
        [sys.executable, "-I", packed, "gate", "nobody"], capture_output=True, text=True, check=False
    )
    assert unknown.returncode == 2
    assert "etc/gb10-fleet/instances/nobody.json is missing or not readable" in unknown.stdout
