# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All faults, and the benches that they are tried on."""

from __future__ import annotations

from tests.lab.faults.bench import Bench
from tests.lab.faults.box import BOX
from tests.lab.faults.deploying import DEPLOYING
from tests.lab.faults.real import REAL
from tests.lab.faults.serving import SERVING
from tests.lab.faults.starting import STARTING
from tests.lab.faults.switching import SWITCHING
from tests.lab.faults.watching import WATCHING

# Nothing is waited for longer than it has to be. The watch may restart as often as there are faults for it; with this
# period it waits 10 s for an answer, and the faults have it look at once rather than wait for its timer.
_QUICK = """\
vllm_server_restart_delay: 1
vllm_server_liveness_period: 50
vllm_server_liveness_restarts: 100
"""
# The engine of this box starts in half a second.
_QUICKER = f"""\
{_QUICK}vllm_server_boot_timeout: 40
vllm_server_gate_timeout: 20
vllm_server_stop_timeout: 5
"""
# The second box has several engines, because most faults are waited for rather than computed.
_SEVERAL = """\
model_roles:
  - {role: extractor, port: 8000}
  - {role: scripted, name: scripted-a, port: 8001}
  - {role: scripted, name: scripted-b, port: 8002}
  - {role: scripted, name: scripted-c, port: 8003}
"""

BENCHES = {
    "one": Bench("spark-1", "scripted", "model_roles: [scripted]\n", _QUICKER, alone=True),
    "a": Bench("spark-2", "scripted-a", _SEVERAL, _QUICK, 8001),
    "b": Bench("spark-2", "scripted-b", _SEVERAL, _QUICK, 8002),
    "c": Bench("spark-2", "scripted-c", _SEVERAL, _QUICK, 8003),
    "vllm": Bench("spark-2", "extractor", _SEVERAL, _QUICK, 8000, "extractor"),
}

SUITE = (
    *DEPLOYING.faults,
    *SWITCHING.faults,
    *STARTING.faults,
    *SERVING.faults,
    *WATCHING.faults,
    *REAL.faults,
    *BOX.faults,
)
