#!/usr/bin/env python3
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write the table of docs/faults.md from the fault suite.

tools/faults_table.py           writes it
tools/faults_table.py --check   says with exit status 1 that it is out of date
"""

from __future__ import annotations

import argparse
import collections.abc as c
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab.faults.entry import Fault, When
from tests.lab.faults.suite import CORE, SUITE

PAGE = ROOT / "docs/faults.md"
BEGIN, END = "<!-- table: tools/faults_table.py -->", "<!-- end of table -->"
_HEAD = "| fault | what is done | noticed by | in words such as | in the end |\n|---|---|---|---|---|\n"


def cell(text: str) -> str:
    """Return a text as it may stand in a cell."""
    return text.replace("|", "\\|")


def row(fault: Fault) -> str:
    """Return the row of a fault."""
    said = " … ".join(words.strip().rstrip(":") for words in fault.says)
    star = " \\*" if fault.id in CORE else ""
    cells = (f"`{fault.id}`{star}", fault.what, fault.by.value, said, fault.end.value)
    return f"| {' | '.join(cell(one) for one in cells)} |\n"


def table(suite: c.Sequence[Fault] = SUITE) -> str:
    """Return all faults as Markdown, by what is going on when they come."""
    parts = []
    for when in When:
        rows = [row(fault) for fault in suite if fault.when is when]
        if rows:
            parts.append(f"### {when.value.capitalize()}\n\n{_HEAD}{''.join(rows)}")
    core = sum(fault.id in CORE for fault in suite)
    return "\n".join((f"{len(suite)} faults; the {core} with a star are tried in every change.\n", *parts))


def page(old: str) -> str:
    """Return the page with its table renewed."""
    head, _begin, rest = old.partition(BEGIN)
    _table, _end, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{table()}\n{END}{tail}"


def main() -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if parser.parse_args().check:
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
