# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gb10.fleet.plugins.module_utils import _fabric_load
from ansible_collections.gb10.fleet.plugins.modules import fabric_probe

WAYS = [
    {"interface": name, "source": f"192.168.{number}.11", "target": f"192.168.{number}.12", "peer": "spark-2"}
    for name, number in (("enp1s0f0np0", 100), ("enP2p1s0f0np0", 101))
]


@pytest.mark.parametrize(
    ("received", "rtt_ms", "seconds", "loaded", "verdict", "expected"),
    [
        pytest.param(3, 0.05, 5, True, "proven", [], id="healthy"),
        pytest.param(3, 1.2, 5, True, "degraded", ["FABRIC_SLOW_ANSWERS"] * 2, id="slow"),
        pytest.param(3, 1.2, 0, False, "degraded", ["FABRIC_SLOW_ANSWERS"] * 2, id="slow, and no load is asked for"),
        pytest.param(0, 0.0, 5, False, "failed", ["TWIN_UNREACHABLE"] * 2, id="dead"),
    ],
)
def test_a_warning_is_no_reason_not_to_load(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    received: int,
    rtt_ms: float,
    seconds: int,
    loaded: bool,
    verdict: str,
    expected: list[str],
) -> None:
    text = f"3 packets transmitted, {received} received, 0% packet loss, time 402ms\n"
    text += f"rtt min/avg/max/mdev = 0.01/{rtt_ms}/2.1/0.1 ms\n" if received else ""

    def run(_module: t.Any, _argv: list[str], **_options: t.Any) -> tuple[int, str, str]:
        return (0 if received else 1), text, ""

    def load(paths: list[_fabric_load.Path], _seconds: float) -> tuple[_fabric_load.Carried, ...]:
        return tuple(_fabric_load.Carried(path, 40.0) for path in paths)

    monkeypatch.setattr(fabric_probe.AnsibleModule, "run_command", run)
    monkeypatch.setattr(fabric_probe._fabric_load, "load", load)
    monkeypatch.setattr(fabric_probe._fabric_ping, "who_has", lambda _interface, _target: "")
    with patch_module_args({"ways": WAYS, "load_seconds": seconds}), pytest.raises(SystemExit):
        fabric_probe.main()
    result = json.loads(capsys.readouterr().out)

    assert [one["gbps"] for one in result["carried"]] == ([40.0, 40.0] if loaded else [])
    assert (result["verdict"], [one["id"] for one in result["findings"]]) == (verdict, expected)
