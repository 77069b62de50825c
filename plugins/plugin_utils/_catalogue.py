# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads the shipped catalogue: one YAML file per model role in roles/model_catalogue/files.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import pathlib
import typing as t

from ansible.parsing.dataloader import DataLoader

FOLDER: t.Final = pathlib.Path(__file__).parents[2] / "roles" / "model_catalogue" / "files"


def shipped_catalogue(folder: pathlib.Path = FOLDER) -> dict[str, t.Any]:
    """Return the shipped model roles by name. A file's name is the name of its model role."""
    loader = DataLoader()
    return {path.stem: loader.load_from_file(str(path)) for path in sorted(folder.glob("*.yml"))}
