# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the firmware says: whether Secure Boot is on, and which machine owner keys are enrolled.

Variables of EFI are files: four bytes of attributes, then the value. https://uefi.org/specs/UEFI/2.10/32_Secure_Boot_and_Driver_Signing.html
and shim's own variables (MokListRT, MokSBStateRT).

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import struct
import typing as t
import uuid

from ansible_collections.gb10.fleet.plugins.module_utils import _x509
from ansible_collections.gb10.fleet.plugins.module_utils._der import DerError
from ansible_collections.gb10.fleet.plugins.module_utils._sysroot import Sysroot

SecureBoot = t.Literal["enabled", "disabled", "setup_mode", "unsupported", "unknown"]

_EFI: t.Final = "/sys/firmware/efi"
_VARIABLES: t.Final = f"{_EFI}/efivars"
_GLOBAL: t.Final = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
_SHIM: t.Final = "605dab50-e046-4300-abb6-3dd810dd8b23"
_X509_LIST: t.Final = uuid.UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072").bytes_le
_LIST: t.Final = struct.Struct("<16sIII")
_OWNER: t.Final = 16


@dataclasses.dataclass(frozen=True, slots=True)
class OwnerKeys:
    """The enrolled machine owner keys; ``complete`` is False where they could not be read."""

    certificates: tuple[_x509.Certificate, ...]
    complete: bool


def secure_boot(files: Sysroot) -> SecureBoot:
    """Return the state of Secure Boot."""
    if not files.exists(_EFI):
        return "unsupported" if files.exists("/sys/firmware") else "unknown"
    enabled, setup = _flag(files, "SecureBoot", _GLOBAL), _flag(files, "SetupMode", _GLOBAL)
    if enabled is None:
        return "unknown"
    if enabled:
        # shim can be told to stop verifying; the kernel then takes Secure Boot for off.
        return "disabled" if _flag(files, "MokSBStateRT", _SHIM) else "enabled"
    return "setup_mode" if setup else "disabled"


def _flag(files: Sysroot, name: str, guid: str) -> bool | None:
    data = files.read(f"{_VARIABLES}/{name}-{guid}")
    return bool(data[4]) if data is not None and len(data) >= 5 else None


def owner_keys(files: Sysroot) -> OwnerKeys:
    """Return the machine owner keys that shim has passed on to the kernel."""
    if not files.exists(_EFI):
        return OwnerKeys((), files.exists("/sys/firmware"))
    plain, variable = f"{_EFI}/mok-variables/MokListRT", f"{_VARIABLES}/MokListRT-{_SHIM}"
    data = files.read(plain)
    if data is None:
        data = files.read(variable)
        data = None if data is None else data[4:]
    if data is None:
        readable = bool(files.listing(_VARIABLES)) and files.could_read((plain, variable, _VARIABLES))
        return OwnerKeys((), readable)
    try:
        return OwnerKeys(signature_lists(data), True)
    except DerError:
        return OwnerKeys((), False)


def signature_lists(data: bytes) -> tuple[_x509.Certificate, ...]:
    """Return the certificates in a sequence of EFI signature lists; raise DerError where it is none.

    A certificate that cannot be parsed is left out, as the kernel does.
    """
    found = []
    position = 0
    while position < len(data):
        if position + _LIST.size > len(data):
            raise DerError("a signature list is cut off")
        kind, size, header, each = _LIST.unpack_from(data, position)
        start, end = position + _LIST.size + header, position + size
        if size < _LIST.size or not start <= end <= len(data) or each <= _OWNER:
            raise DerError("a signature list has sizes that cannot be")
        if kind == _X509_LIST:
            for entry in range(start, end - each + 1, each):
                try:
                    found.append(_x509.Certificate.from_der(data[entry + _OWNER : entry + each]))
                except DerError:
                    continue
        position = end
    return tuple(found)
