# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is wrong with the modules that a kernel would load: who built them, their signatures, versions and licences.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._driver_issue import Effect, Issue, issue
from ansible_collections.gb10.fleet.plugins.module_utils._driver_state import Kernel, Module, State


def issues(kernel: Kernel, state: State) -> c.Iterator[Issue]:
    """Return what is wrong with the modules of a kernel."""
    yield from _choices(kernel)
    for module in kernel.modules:
        yield from _file(module, kernel)
    yield from _signatures(kernel, state)
    yield from _identity(kernel, state)


def _choices(kernel: Kernel) -> c.Iterator[Issue]:
    ties = [module for module in kernel.modules if module.choice.chosen_by == "tie"]
    if ties:
        yield issue(
            "DRIVER_MODULE_TIE",
            "warning",
            f"kernel {kernel.release} has several files of {_names(ties)}, and nobody can tell which depmod takes",
            evidence=", ".join((ties[0].choice.path, *ties[0].choice.others)),
            remedy="remove the packages of the branch that is not wanted",
            gpu="unknown",
            safe="unknown",
        )
    dkms = [module for module in kernel.modules if module.provider == "dkms"]
    if dkms:
        beaten = [path for module in dkms for path in module.choice.others if "/kernel/nvidia-" in path]
        yield issue(
            "DRIVER_DKMS_WINS",
            "error",
            f"kernel {kernel.release} loads {_names(dkms)} that DKMS built on the box"
            + (", which win over those that Canonical built" if beaten else ""),
            evidence=", ".join([dkms[0].choice.path, *beaten[:1]]),
            remedy=_instead_of_dkms(kernel),
            safe="no",
        )
    elsewhere = [one for one in kernel.modules if one.provider == "other" and one.signature.word == "valid"]
    if elsewhere:
        yield issue(
            "DRIVER_MODULE_ELSEWHERE",
            "warning",
            f"{_names(elsewhere)} of kernel {kernel.release} are signed as wanted, but lie where no package puts them",
            evidence=elsewhere[0].choice.path,
            remedy=f"dpkg -S {elsewhere[0].choice.path}, and reinstall the modules' package",
        )


def _instead_of_dkms(kernel: Kernel) -> str:
    branch = kernel.version.partition(".")[0] or "<branch>"
    return (
        f"apt-get install linux-modules-nvidia-{branch}-open-{kernel.release} nvidia-driver-{branch}-open "
        f"nvidia-dkms-{branch}-open- (with the meta-package of the modules, in one transaction)"
    )


def _file(module: Module, kernel: Kernel) -> c.Iterator[Issue]:
    if module.damaged:
        yield issue(
            "DRIVER_MODULE_DAMAGED",
            "error",
            f"{module.choice.name} of kernel {kernel.release} is no kernel module",
            evidence=module.problem,
            remedy=f"reinstall the package that dpkg -S {module.choice.path} names",
            gpu="no",
            safe="no",
        )
    elif module.problem:
        yield issue(
            "DRIVER_MODULE_UNREADABLE",
            "warning",
            f"{module.choice.name} of kernel {kernel.release} cannot be read",
            evidence=module.problem,
            remedy=module.remedy,
            gpu="unknown",
            safe="unknown",
        )


# id, what it says of the modules, remedy, by the word for the signature
_SIGNATURES: t.Final = {
    "unsigned": ("DRIVER_MODULE_UNSIGNED", "carry no signature"),
    "tampered": ("DRIVER_MODULE_TAMPERED", "were changed after they were signed"),
    "forged": ("DRIVER_MODULE_FORGED_SIGNER", "only pretend to be signed by a trusted key"),
    "wrong_key": ("DRIVER_MODULE_WRONG_KEY", "are signed by a key that is not trusted here"),
    "broken": ("DRIVER_MODULE_SIGNATURE_BROKEN", "end with a signature that no kernel reads"),
}


def _signatures(kernel: Kernel, state: State) -> c.Iterator[Issue]:
    read = [module for module in kernel.modules if module.choice.path and not module.problem]
    for word, (name, says) in _SIGNATURES.items():
        bad = [module for module in read if module.signature.word == word]
        if bad:
            first = bad[0]
            signer = f", signed by {first.signature.signer}" if first.signature.signer else ""
            mild = word == "unsigned" and state.secure_boot == "disabled"
            yield issue(
                name,
                "warning" if mild else "error",
                f"{_names(bad)} of kernel {kernel.release} {says}",
                evidence=f"{first.choice.path}{signer}: {first.signature.reason}; wanted: {_wanted_signers(kernel)}",
                remedy=_instead_of(first, kernel),
                gpu=_refused_by_kernel(bad, state),
                safe="no",
            )
    unknown = [module for module in read if module.signature.word == "unknown"]
    if unknown and not kernel.image_problem:
        yield issue(
            "DRIVER_SIGNATURE_UNKNOWN",
            "warning",
            f"whether {_names(unknown)} of kernel {kernel.release} are rightly signed cannot be told",
            evidence=f"{unknown[0].choice.path}: {unknown[0].signature.reason}",
            remedy="take modules that are signed with RSA, or with ECDSA on P-256 or P-384, and SHA-2",
            gpu="unknown",
            safe="unknown",
        )
    if kernel.running and state.keyring and kernel.certificates:
        lost = {
            module.signature.by.subject
            for module in read
            if module.signature.word == "valid"
            and module.signature.by
            and module.signature.by.key_id_text not in state.keyring
        }
        if lost:
            yield issue(
                "DRIVER_CERTIFICATE_NOT_IN_KEYRING",
                "warning",
                f"the running kernel does not hold the certificate of {', '.join(sorted(lost))} that its image has: "
                "the image was replaced since it booted",
                evidence="/proc/keys has no key with its id",
                remedy="none before the next boot; modprobe is refused until then",
            )


def _refused_by_kernel(modules: list[Module], state: State) -> Effect:
    if any(module.signature.accepted is False for module in modules):
        return {"enabled": "no", "disabled": ""}.get(state.secure_boot, "unknown")  # type: ignore[return-value]
    return "" if all(module.signature.accepted for module in modules) else "unknown"


def _wanted_signers(kernel: Kernel) -> str:
    if kernel.certificates is None:
        return "unknown, the kernel's certificates could not be read"
    return (
        ", ".join(one.subject for one in kernel.certificates) or "no certificate of a trusted signer is in this kernel"
    )


def _instead_of(module: Module, kernel: Kernel) -> str:
    if module.provider == "dkms":
        return _instead_of_dkms(kernel)
    branch = kernel.version.partition(".")[0] or "<branch>"
    return f"apt-get install --reinstall linux-modules-nvidia-{branch}-open-{kernel.release}"


def _identity(kernel: Kernel, state: State) -> c.Iterator[Issue]:
    release = kernel.release
    read = [module for module in kernel.modules if module.choice.path and not module.problem]
    other = [module for module in read if module.info.name.replace("_", "-") != module.choice.name]
    if other:
        yield issue(
            "DRIVER_MODULE_DAMAGED",
            "error",
            f"{_names(other)} of kernel {release} are other modules than their files are called",
            evidence=f"{other[0].choice.path}: name {other[0].info.name or 'missing'}",
            remedy=f"reinstall the modules' package for {release}, and find out who put them there",
            gpu="no",
            safe="no",
        )
    closed = [module for module in read if module.info.flavour != "open"]
    if closed:
        yield issue(
            "DRIVER_MODULE_PROPRIETARY",
            "error",
            f"{_names(closed)} of kernel {release} are not the open modules, and a GB10 runs on no others",
            evidence=f"{closed[0].choice.path}: license {closed[0].info.license or 'missing'}",
            remedy=f"install linux-modules-nvidia-{kernel.version.partition('.')[0] or '<branch>'}-open-{release}",
            gpu="unknown",
            safe="no",
        )
    foreign = [module for module in read if module.info.release != release]
    if foreign:
        yield issue(
            "DRIVER_VERMAGIC_DIFFERS",
            "error",
            f"{_names(foreign)} of kernel {release} were built for another kernel",
            evidence=f"{foreign[0].choice.path}: vermagic {foreign[0].info.vermagic or 'missing'}",
            remedy=f"reinstall the modules' package for {release}",
            gpu="no",
            safe="no",
        )
    versions = sorted({module.info.version for module in read})
    if len(versions) > 1:
        yield issue(
            "DRIVER_MODULES_DIFFER",
            "error",
            f"the modules of kernel {release} are of several versions",
            evidence="; ".join(f"{module.choice.path}: {module.info.version or 'none'}" for module in read),
            remedy=f"reinstall the modules' package for {release}",
            gpu="no",
            safe="no",
        )
    elif versions and state.userspace_version and versions[0] != state.userspace_version:
        yield issue(
            "DRIVER_VERSION_DIFFERS",
            "error",
            f"kernel {release} has modules {versions[0] or 'unversioned'} and libraries {state.userspace_version}",
            evidence=f"{read[0].choice.path}; {_where(state.userspace)}",
            remedy="install modules and libraries of one version in one transaction",
            gpu="no",
            safe="no",
        )


def _names(modules: c.Iterable[Module]) -> str:
    return ", ".join(module.choice.name for module in modules)


def _where(userspace: c.Mapping[str, tuple[str, ...]]) -> str:
    return ", ".join(files[0] for files in userspace.values())
