# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A serving group over both boxes of the lab: its inventory, its cable, and how it is looked at."""

from __future__ import annotations

import collections.abc as c
import json
import pathlib
import time
import typing as t

from tests.lab import kit, twins

HEAD, FOLLOWER = "spark-1", "spark-2"
BOXES = (HEAD, FOLLOWER)
NAME = "coordinator"
UNIT = f"vllm-{NAME}.service"
ADDRESSES = {HEAD: "192.168.100.11", FOLLOWER: "192.168.100.12"}
CABLE = twins.TWINS[0]
SILENCE_S, HEARTBEAT_S = 20, 15
PEER_PORT = 29511
# Every process of an engine, from the first on; the brackets keep the pattern from matching itself.
ENGINE = "bin/[v]llm serve|^VLLM::"
# A box that has noted nothing for so long is off, or boots.
OFF_S = 5
# From a death to an answer; both engines boot at the same time on what may be a busy machine of two cores.
BACK_S = 1800
# How long a rank may hold an engine while the other one holds none: silence, a heartbeat that is not answered three
# times (15 + 3 * 22 + 2 * 5 s), and then the end of the engine, whichever of the first two it is.
ALONE_S = 15 + 3 * 22 + 2 * 5 + 35

# The fabric gives the ranks their addresses and the interfaces that they talk over. The boxes of the lab have no RDMA,
# so NCCL_NET and the devices are told, as somebody would who does without.
FABRIC = f"""\
fabric:
  members: [{HEAD}, {FOLLOWER}]
fabric_sysroot: {twins.TREE}
fabric_confirm_timeout: 20
fabric_verify_timeout: 20
"""
# These take the place of the single instances that the boxes of the lab have.
HOST_VARS = "serving_env: {NCCL_NET: Socket}\nserving_devices: []\n"


def inventory(folder: pathlib.Path, more: str = "") -> pathlib.Path:
    """Return an inventory in which both boxes of the lab are one serving group, pair; ``more`` is said of it, too."""
    text = (
        f"serving_group:\n  model_role: {NAME}\n  tensor_parallel_size: 2\n{more}"
        f"  silence_seconds: {SILENCE_S}\n  heartbeat_seconds: {HEARTBEAT_S}\n"
        f"vllm_server_boot_timeout: {BACK_S}\n{FABRIC}"
    )
    edits = {
        "hosts.yml": "sparks:\n  children:\n    pair:\n      hosts:\n        spark-1:\n        spark-2:\n",
        "group_vars/pair.yml": text,
        **{f"host_vars/{box}.yml": HOST_VARS for box in BOXES},
    }
    return kit.edited_inventory(folder, edits)


def plug_in() -> None:
    """Give each box a ConnectX-7 with a cable in its inner cage, and nothing on it set up."""
    for box in BOXES:
        twins.wipe(box)
        twins.put_tree(box, twins.cards())


def unplug() -> None:
    """Take the fabric away again."""
    for box in BOXES:
        twins.wipe(box)


def active(box: str) -> bool:
    """Return whether the rank of a box is up."""
    shown = kit.on_box(box, f"systemctl show --property=ActiveState --value {UNIT}", check=False)
    return shown.strip() == "active"


def served() -> bool:
    """Return whether the group answers, and both units say so."""
    return all(active(box) for box in BOXES) and kit.answers(HEAD, model=NAME)


def engines(box: str) -> list[str]:
    """Return the process ids of the engine that a box holds."""
    return kit.on_box(box, f"pgrep --full '{ENGINE}' || true", check=False).split()


def told(box: str) -> list[str]:
    """Return the lines that say why a round has ended."""
    lines = kit.on_box(box, f"journalctl --unit {UNIT} --boot --priority err --output cat").splitlines()
    return [line for line in lines if line.startswith("serving group ") and " has stopped " in line]


def given_up(box: str) -> list[str]:
    """Return the lines that say why the unit stays down."""
    lines = kit.on_box(box, f"journalctl --unit {UNIT} --boot --priority err --output cat").splitlines()
    return [line for line in lines if "stays down after" in line]


def state(box: str) -> dict[str, t.Any]:
    """Return what a rank publishes, asked from its own box."""
    program = f"import urllib.request as r; print(r.urlopen('http://{ADDRESSES[box]}:{PEER_PORT}/').read().decode())"
    found: dict[str, t.Any] = json.loads(kit.on_box(box, f'python3 -c "{program}"'))
    return found


WATCH = f"""\
[Unit]
Description=Note twice a second whether this box holds an engine
[Service]
ExecStart=/bin/sh -c 'while sleep 0.5; do echo $(date +%%s.%%N) $(pgrep --full --count "{ENGINE}"); done'
StandardOutput=append:/var/tmp/pair-watch
[Install]
WantedBy=multi-user.target
"""


class Watcher:
    """Has each box note when it holds an engine, and finds out for how long one of them alone did."""

    def __init__(self) -> None:
        self.longest_alone_s = 0.0
        self.alone = ""

    def __enter__(self) -> t.Self:
        for box in BOXES:
            unit = f"cat >/etc/systemd/system/pair-watch.service <<'EOF'\n{WATCH}EOF\n"
            kit.on_box(box, f"rm -f /var/tmp/pair-watch\n{unit}systemctl daemon-reload")
            kit.on_box(box, "systemctl --quiet enable pair-watch.service && systemctl restart pair-watch.service")
        return self

    def __exit__(self, *_exception: object) -> None:
        notes = {}
        for box in BOXES:
            kit.on_box(
                box, "systemctl --quiet disable --now pair-watch.service; rm /etc/systemd/system/pair-watch.service"
            )
            lines = kit.on_box(box, "cat /var/tmp/pair-watch").splitlines()
            # A machine whose power is cut may leave half a line.
            notes[box] = [(float(one[0]), int(one[1])) for line in lines if len(one := line.split()) == 2]
        self.judge(notes)

    def judge(self, notes: dict[str, list[tuple[float, int]]]) -> None:
        """Go through the notes of all boxes in the order of their times; a box that is off holds no engine."""
        holds = dict.fromkeys(BOXES, True)
        heard = {box: times[0][0] for box, times in notes.items()}
        since: float | None = None
        for at, box, engines_there in sorted((at, box, count) for box, some in notes.items() for at, count in some):
            heard[box] = at
            holds[box] = engines_there > 0
            holding = [one for one in BOXES if holds[one] and at - heard[one] < OFF_S]
            if len(holding) != 1:
                since = None
                continue
            since = at if since is None else since
            if at - since > self.longest_alone_s:
                self.longest_alone_s, self.alone = at - since, holding[0]


def wait_served(*, unlike: c.Mapping[str, str], what: str) -> None:
    """Wait until the group answers, in a round that is not the one before."""

    def again() -> bool:
        # Each look costs both boxes something, and they are busy booting.
        time.sleep(3)
        # An engine that hangs is not asked: with requests it would be given more time.
        return all(state(box)["round"] not in {"", unlike.get(box, "")} for box in BOXES) and served()

    kit.wait_for(again, seconds=BACK_S, what=what)
