# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What it all comes to: is the GPU there, will it be after the next boot, and is that boot safe.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _driver_box, _driver_kernel
from ansible_collections.gb10.fleet.plugins.module_utils._driver_issue import Issue
from ansible_collections.gb10.fleet.plugins.module_utils._driver_state import Kernel, Module, State, Wanted
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding

Answer = t.Literal["yes", "no", "unknown"]
_SEVERITIES: t.Final = ("error", "warning", "info")


def report(state: State, wanted: Wanted) -> dict[str, t.Any]:
    """Return what the module returns."""
    box = _driver_box.issues(state, wanted)
    by_kernel = {kernel.release: _driver_kernel.issues(kernel, state) for kernel in _worth_a_look(state)}
    kernels = [_kernel(kernel, by_kernel.get(kernel.release, []), box, state) for kernel in state.kernels]
    fallback = next((one["release"] for one in kernels if not one["next"] and one["image"] and one["gpu"] == "yes"), "")
    if not fallback and state.boot.kernel and not state.absent:
        box.append(_no_fallback(state))
    reboot = _reboot(state, kernels, box)
    found = sorted(
        (issue.finding for issues in (box, *by_kernel.values()) for issue in issues),
        key=lambda finding: _SEVERITIES.index(finding.severity),
    )
    if state.unreadable:
        found.append(_unreadable(state))
    return {
        "verdict": _verdict(state, reboot, found),
        "reboot": reboot,
        "running_kernel": state.running,
        "fallback_kernel": fallback,
        "kernels": kernels,
        "loaded": _loaded(state),
        "userspace": {"version": state.userspace_version, "versions": {k: list(v) for k, v in state.userspace.items()}},
        "secure_boot": state.secure_boot,
        "gpu": {"present": state.gpu.present, "visible": bool(state.gpu.names), "names": list(state.gpu.names)},
        "boot": {
            "loader": state.boot.loader,
            "menu_hidden": state.boot.menu_hidden,
            "entries": list(state.boot.releases or ()),
        },
        "cdi": [
            {"path": spec.path, "versions": list(spec.versions), "current": _is_current(spec.versions, state)}
            for spec in state.cdi
        ],
        "packages": _packages(state),
        "unreadable": [f"{path}: {why}" for path, why in state.unreadable.items()],
        "findings": [finding.as_dict() for finding in found],
    }


def _worth_a_look(state: State) -> tuple[Kernel, ...]:
    """Return the kernels that are judged; where there is no driver at all, a kernel without modules is no finding."""
    return () if state.absent else state.kernels


def _answer(effects: c.Iterable[str]) -> Answer:
    found = set(effects)
    return "no" if "no" in found else "unknown" if "unknown" in found else "yes"


def _kernel(kernel: Kernel, issues: c.Sequence[Issue], box: c.Sequence[Issue], state: State) -> dict[str, t.Any]:
    both = [*issues, *(one for one in box if not one.about_next)]
    modules = [module for module in kernel.modules if module.choice.path]
    read = [module for module in modules if not module.problem]
    gpu = "no" if state.absent else _answer(issue.gpu for issue in both)
    blockers = list(dict.fromkeys(issue.finding.id for issue in both if issue.safe))
    return {
        "release": kernel.release,
        "running": kernel.running,
        "next": kernel.next,
        "image": kernel.image,
        "image_signed": kernel.image_signed,
        "initrd": kernel.initrd,
        "boot_entry": kernel.boot_entry,
        "provider": kernel.common((module.provider for module in modules), several="mixed", none="none"),
        "signer": kernel.common(module.signature.signer for module in read),
        "signature_valid": _valid(modules),
        "version": kernel.version,
        "flavour": kernel.common(
            (module.info.flavour for module in read), several="mixed", none="unknown" if modules else "none"
        ),
        "modules": [_module(module) for module in kernel.modules],
        "certificates": None if kernel.certificates is None else _certificates(kernel, state),
        "gpu": gpu,
        "safe_to_boot": "no" if state.absent else _answer(issue.safe for issue in both),
        "blockers": ["DRIVER_ABSENT"] if state.absent else blockers,
    }


def _valid(modules: c.Sequence[Module]) -> bool | None:
    words = {module.signature.word for module in modules}
    if not words:
        return None
    return True if words == {"valid"} else None if words <= {"valid", "unknown"} else False


def _module(module: Module) -> dict[str, t.Any]:
    choice, signature = module.choice, module.signature
    return {
        "name": choice.name,
        "path": choice.path,
        "shadowed": list(choice.others),
        "chosen_by": choice.chosen_by,
        "provider": module.provider,
        "version": module.info.version,
        "license": module.info.license,
        "flavour": module.info.flavour,
        "vermagic": module.info.vermagic,
        "signer": signature.signer,
        "signature": signature.word,
        "signature_reason": module.problem or signature.reason,
        "verified_by": signature.by.subject if signature.by and signature.word != "tampered" else "",
        "kernel_accepts": signature.accepted,
    }


def _certificates(kernel: Kernel, state: State) -> list[dict[str, t.Any]]:
    return [
        {
            "subject": one.subject,
            "serial": one.serial_text,
            "key_id": one.key_id_text,
            "key": one.key_kind,
            "in_keyring": one.key_id_text in state.keyring if kernel.running and state.keyring else None,
        }
        for one in kernel.certificates or ()
    ]


def _loaded(state: State) -> dict[str, t.Any]:
    loaded, kernel = state.loaded, state.current
    module = kernel.module("nvidia") if kernel else None
    current: bool | None = None
    if loaded.version and module and module.info.version:
        same_build = not (loaded.build_id and module.info.build_id) or loaded.build_id == module.info.build_id
        current = loaded.version == module.info.version and same_build
    return {
        "modules": list(loaded.modules),
        "version": loaded.version,
        "flavour": loaded.flavour,
        "verified": loaded.verified,
        "current": current,
    }


def _is_current(versions: c.Sequence[str], state: State) -> bool | None:
    version = state.loaded.version or state.userspace_version
    return version in versions if version and versions else None


def _packages(state: State) -> dict[str, t.Any] | None:
    packages = state.packages
    if packages is None:
        return None
    return {
        "versions": packages.versions,
        "dkms": list(packages.dkms),
        "held": list(packages.held),
        "unfinished": packages.unfinished,
    }


def _no_fallback(state: State) -> Issue:
    return Issue(
        Finding(
            "KERNEL_NO_FALLBACK",
            "warning",
            f"beside {state.boot.kernel} there is no kernel that would have the GPU",
            evidence=", ".join(kernel.release for kernel in state.kernels if not kernel.next)
            or "there is no other kernel",
            remedy="keep the kernel before it installed, with the modules for it",
        )
    )


def _unreadable(state: State) -> Finding:
    return Finding(
        "DRIVER_FILES_UNREADABLE",
        "info",
        f"{len(state.unreadable)} files may not be read, so that what depends on them is unknown",
        evidence=", ".join(list(state.unreadable)[:4]),
        remedy="run it with become: true",
    )


# --- the next boot ---------------------------------------------------------------------------------------------------


def _reboot(state: State, kernels: c.Sequence[dict[str, t.Any]], box: c.Sequence[Issue]) -> dict[str, t.Any]:
    reasons = list(_reasons(state))
    following = next((one for one in kernels if one["next"]), None)
    effects = {issue.safe for issue in box if issue.about_next}
    blockers = [issue.finding.id for issue in box if issue.about_next and issue.safe]
    if "no" not in effects and following and all(one["safe_to_boot"] == "yes" for one in kernels):
        effects, blockers = set(), []  # whichever it is, it is safe
    if following is None:
        effects.add("unknown")
    else:
        effects.add(following["safe_to_boot"])
        blockers += following["blockers"]
    certain = state.boot.certain and bool(state.running)
    return {
        "pending": True if reasons else False if certain else None,
        "reasons": reasons,
        "kernel": state.boot.kernel,
        "kernel_certain": state.boot.certain,
        "kernel_reason": state.boot.reason,
        "safe": _answer(effects),
        "blockers": list(dict.fromkeys(blockers)),
    }


def _reasons(state: State) -> c.Iterator[str]:
    if state.boot.certain and state.running and state.boot.kernel not in ("", state.running):
        yield f"kernel {state.running} runs, and {state.boot.kernel} boots next"
    loaded = state.loaded
    kernel = state.current
    if loaded.version:
        installed = kernel.version if kernel else ""
        newer = next((one for one in (installed, state.userspace_version) if one not in ("", loaded.version)), "")
        if newer:
            yield f"driver {loaded.version} is loaded, and {newer} is installed"
        elif _loaded(state)["current"] is False:
            yield f"another build of driver {loaded.version} is loaded than the one that is installed"
    elif kernel and kernel.version and state.gpu.present is not False:
        yield f"driver {kernel.version} is installed, and none is loaded"
    if state.reboot_asked_by is not None:
        names = ", ".join(state.reboot_asked_by)
        yield "a package asks for it" + (f" ({names})" if names else "")


def _verdict(state: State, reboot: dict[str, t.Any], found: c.Sequence[Finding]) -> str:
    if state.absent:
        return "absent"
    if reboot["safe"] != "yes":
        return "bad" if reboot["safe"] == "no" else "unknown"
    if reboot["pending"]:
        return "reboot_required"
    return "bad" if any(finding.severity == "error" for finding in found) else "good"
