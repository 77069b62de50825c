# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The probe runs on a box from a zipapp, with the standard library and nothing else beside it."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import zipapp

from tests.unit.support import openai_server as fake

ROOT = pathlib.Path(__file__).parents[4]
MAIN = """\
import sys
from ansible_collections.gb10.fleet.plugins.module_utils._probe import Options, wait_until_ready
from ansible_collections.gb10.fleet.plugins.module_utils._process_state import container_check, pid_check, unit_check
verdict = wait_until_ready(Options(sys.argv[1]), timeout=180, progress=lambda line: print(line, flush=True))
print(sorted(name for name in sys.modules if name.startswith("ansible.")))
sys.exit(not verdict.ready)
"""


def test_the_probe_runs_from_a_zipapp(tmp_path: pathlib.Path) -> None:
    package = tmp_path / "app" / "ansible_collections" / "gb10" / "fleet" / "plugins" / "module_utils"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:4]):
        (folder / "__init__.py").touch()
    for source in (ROOT / "plugins" / "module_utils").glob("_*.py"):
        (package / source.name).write_bytes(source.read_bytes())
    (tmp_path / "app" / "__main__.py").write_text(MAIN)
    zipapp.create_archive(tmp_path / "app", tmp_path / "probe.pyz")
    with fake.OpenAIServer() as server:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(tmp_path / "probe.pyz"), server.url],
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    progress, imported = done.stdout.splitlines()
    assert re.match(r"\d+ s of 180 s: ready: it answered ", progress)
    assert imported == "[]"
