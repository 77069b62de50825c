# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fault suite: what is done to a box, who has to notice, in which words, and how it has to end.

The scenario ``faults`` tries all of it on the lab; ``tools/faults_table.py`` writes it into docs/faults.md.
"""
