# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The ways in which weights are stored and multiplied that the collection tells apart.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import typing as t

# The public names. int4_gptq is the family of grouped 4-bit integers without activation quantisation that GPTQ made
# common: compressed-tensors "pack-quantized" is stored and multiplied in the same way and carries the same name.
SCHEMES: t.Final = (
    "nvfp4_w4a4",
    "nvfp4_w4a16",
    "mxfp4",
    "mxfp8",
    "fp8",
    "int4_autoround",
    "int4_awq",
    "int4_gptq",
    "bf16",
    "gguf",
    "unknown",
)

Storage = t.Literal["nvfp4", "mxfp4", "mxfp8", "fp8", "int", "plain", "unknown"]


@dataclasses.dataclass(frozen=True, slots=True)
class Scheme:
    """How a module is quantised.

    ``name`` is one of SCHEMES, ``spelling`` says the same in full for people, ``storage`` is what the tensors look
    like whatever the activations are. ``activation_bits`` is 16 where activations are not quantised.
    """

    name: str
    spelling: str
    storage: Storage
    weight_bits: int = 0
    activation_bits: int = 16
    granularity: str = ""

    @property
    def multiplies_fp4(self) -> bool:
        """Return whether the scheme needs kernels that multiply 4-bit floats (NVFP4 with 4-bit activations)."""
        return self.name == "nvfp4_w4a4"


PLAIN: t.Final = Scheme("bf16", "not quantised (16 bit)", "plain", 16)


def unknown(why: str) -> Scheme:
    """Return the scheme of weights that cannot be told, with the reason."""
    return Scheme("unknown", why, "unknown", 0, 0)


def nvfp4(*, activations: int, group_size: int = 16) -> Scheme:
    """Return NVFP4 with 4-bit, 16-bit or (which has no name of its own) 8-bit activations."""
    if activations not in (4, 16):
        return Scheme(
            "unknown",
            f"NVFP4 weights with {activations}-bit activations",
            "nvfp4",
            4,
            activations,
            f"group {group_size}",
        )
    return Scheme(
        f"nvfp4_w4a{activations}",
        f"NVFP4 W4A{activations}, groups of {group_size}",
        "nvfp4",
        4,
        activations,
        f"group {group_size}",
    )


def mxfp4(*, activations: int = 16) -> Scheme:
    """Return MXFP4: 4-bit floats with one power-of-two scale for each 32."""
    return Scheme("mxfp4", f"MXFP4 W4A{activations}, groups of 32", "mxfp4", 4, activations, "group 32")


def mxfp8(*, activations: int = 8) -> Scheme:
    """Return MXFP8: 8-bit floats with one power-of-two scale for each 32."""
    return Scheme("mxfp8", f"MXFP8 W8A{activations}, groups of 32", "mxfp8", 8, activations, "group 32")


def fp8(*, granularity: str, activations: int = 8) -> Scheme:
    """Return FP8 with one scale for each tensor, channel or block."""
    return Scheme("fp8", f"FP8 W8A{activations}, one scale per {granularity}", "fp8", 8, activations, granularity)


def integer(
    bits: int, *, method: t.Literal["autoround", "awq", "gptq"], group_size: int, activations: int = 16
) -> Scheme:
    """Return weights stored as integers; those of other than 4 bits have no name of their own."""
    groups = f"groups of {group_size}" if group_size > 0 else "one scale per channel"
    granularity = f"group {group_size}" if group_size > 0 else "channel"
    if bits != 4 or activations != 16:
        return Scheme("unknown", f"INT{bits} W{bits}A{activations}, {groups}", "int", bits, activations, granularity)
    return Scheme(f"int4_{method}", f"INT4 W4A16, {groups}", "int", 4, 16, granularity)
