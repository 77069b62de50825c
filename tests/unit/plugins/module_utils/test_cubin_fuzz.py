# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A few hundred mutations on every run; tools/cubin_fuzz.py runs as many as one likes."""

from __future__ import annotations

import pytest

from tests.unit.plugins.module_utils import cubin_mutations


@pytest.mark.parametrize("name", sorted(cubin_mutations.seeds()))
def test_no_mutation_raises_or_loses_entries_in_silence(name: str) -> None:
    seed = cubin_mutations.seeds()[name]
    for number in range(25):
        trouble = cubin_mutations.check(name, seed, number)
        assert not trouble, f"{name}, mutation {number}: {trouble}"


def test_a_mutation_can_be_made_again() -> None:
    name, seed = next(iter(cubin_mutations.seeds().items()))
    assert cubin_mutations.mutate(seed, name, 7) == cubin_mutations.mutate(seed, name, 7)
    assert cubin_mutations.mutate(seed, name, 7) != cubin_mutations.mutate(seed, name, 8)
