# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The version of the collection, the same as in galaxy.yml.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import typing as t

VERSION: t.Final = "0.1.0"
