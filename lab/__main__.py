# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Command line of the lab. See docs/lab.md."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
from typing import TYPE_CHECKING

# `needs` and `check` are asked before anything is installed: no third-party package may be imported here.
from lab import needs
from lab.names import DEFAULT_HOSTS, HostSpec, LabError
from lab.state import Lab, find_lab, locked, read_json

if TYPE_CHECKING:
    from types import ModuleType


def parser() -> argparse.ArgumentParser:
    main_parser = argparse.ArgumentParser(
        prog="python -m lab", description="Simulated DGX Spark boxes with a real vLLM."
    )
    subparsers = main_parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = subparsers.add_parser("up", help="build what is missing and start the hosts")
    up.add_argument(
        "--host",
        action="append",
        metavar="NAME[:SUITE]",
        help="start this host only (repeat for more); SUITE is trixie (Python 3.13) or bookworm (Python 3.11)",
    )
    driver = subparsers.add_parser(
        "driver", help="start fresh hosts with a driver repository and a kernel of their own"
    )
    driver.add_argument("hosts", nargs="+", metavar="NAME", help="a host; it is made anew where it exists")
    subparsers.add_parser("down", help="remove the hosts and keep what was built")
    status = subparsers.add_parser("status", help="show hosts, images and models")
    status.add_argument("--json", action="store_true", help="print JSON")
    subparsers.add_parser("facts", help="print what the last up found out, as JSON")
    subparsers.add_parser("clean", help="remove everything that the lab made")
    subparsers.add_parser("needs", help="print the missing packages of Debian or Ubuntu, on one line")
    subparsers.add_parser("check", help="say why this machine cannot run the lab, if so")
    return main_parser


def check(lab: Lab, *, built: bool) -> None:
    """Raise when the machine cannot run the lab."""
    found = needs.refusals(lab.checkout, built=built)
    if found:
        raise LabError("\n".join(found))


def built(lab: Lab) -> bool:
    """Whether a build is there, whole or in parts that are worth most of the space."""
    return lab.cache.is_dir() and any(lab.cache.glob("seed-*"))


def run(arguments: argparse.Namespace) -> None:
    """Carry out one command."""
    lab = find_lab()
    command = arguments.command
    if command == "needs":
        print(" ".join(needs.missing_packages()))
    elif command == "facts":
        print(json.dumps(read_json(lab.facts_file), indent=2, sort_keys=True))
    elif command == "check":
        check(lab, built=built(lab))
        print("This machine can run the lab.")
    elif command == "up":
        specs = [HostSpec.parse(text) for text in arguments.host or DEFAULT_HOSTS]
        check(lab, built=built(lab))
        with locked(lab):
            commands().up(lab, specs)
    elif command == "driver":
        specs = [HostSpec.parse(text) for text in arguments.hosts]
        check(lab, built=built(lab))
        with locked(lab):
            commands().driver(lab, specs)
    elif command == "status":
        commands().show_status(lab, as_json=arguments.json)
    elif command in {"down", "clean"}:
        if not lab.home.exists() and not needs.engine_answers():
            print("There is no lab here.")
            return
        with locked(lab):
            if command == "down":
                commands().down(lab)
            else:
                commands().clean(lab)


def commands() -> ModuleType:
    """The commands that need the Docker SDK."""
    try:
        return importlib.import_module("lab.commands")
    except ModuleNotFoundError as exc:
        msg = f'The Python package "{exc.name}" is missing: use the project\'s environment, ".venv/bin/python -m lab".'
        raise LabError(msg) from None


def main() -> int:
    # "make" and CI end programs with SIGTERM; treat it as Ctrl-C, so that started programs end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(parser().parse_args())
    except LabError as exc:
        print(f"lab: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lab: interrupted; the next up goes on from the last whole step.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
