# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why a driver is not installed: what is found before a plan, in it, and while waiting. Pure.

Every refusal names the packages and the command that cures it; nothing is repaired behind anybody's back.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c

from ansible_collections.gb10.fleet.plugins.module_utils import _apt
from ansible_collections.gb10.fleet.plugins.module_utils._driver_request import (
    OF_BRANCH,
    Box,
    Request,
    is_dkms,
    new_kernels,
    next_kernel,
)
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding


def before_planning(request: Request, box: Box, prompt: _apt.Holder | None) -> tuple[Finding, ...]:
    """Return why nothing may be changed on a box, whatever the plan would be."""
    found = [*prompt_finding(prompt)] if prompt else []
    unfinished = {name: one.status for name, one in sorted(box.packages.items()) if one.unfinished}
    if unfinished and not prompt:
        found.append(
            Finding(
                "DPKG_UNFINISHED",
                "error",
                f"dpkg has begun with {_some(unfinished)} and not come to an end.",
                evidence=", ".join(f"{name}: {status}" for name, status in unfinished.items()),
                remedy="Run `sudo DEBIAN_FRONTEND=noninteractive dpkg --configure -a` and look at what it says.",
            )
        )
    if not request.kernels:
        found.append(
            Finding(
                "DRIVER_KERNELS_UNKNOWN",
                "error",
                "Neither the kernel that runs nor the one that boots next is known, so no modules can be chosen.",
                remedy="See that nvidia_driver_sysroot is the root of the box, and that /boot can be read.",
            )
        )
    return (*found, *_unknown(request, box))


def prompt_finding(prompt: _apt.Holder) -> tuple[Finding, ...]:
    """Return that an installation waits for somebody to type a password."""
    return (
        Finding(
            "DRIVER_MOK_PROMPT",
            "error",
            f"An installation waits for a password for Secure Boot (process {prompt.pid}), as it compiles modules.",
            evidence=prompt.name,
            remedy="Leave the prompt in the terminal where it was started, without a password: no key is to be "
            "enrolled. Then run `sudo DEBIAN_FRONTEND=noninteractive dpkg --configure -a` and this again, which "
            "removes DKMS.",
        ),
    )


def lock_finding(holder: _apt.Holder, waited_s: float) -> Finding:
    """Return that somebody else changes packages, and for how long this was waited for."""
    return Finding(
        "DPKG_LOCK_HELD",
        "error",
        f"After {waited_s:.0f} s {holder.words()} still, so nothing was changed.",
        remedy=f"Look at it with `ps -fp {holder.pid}`, let it come to an end, then run this again; to wait longer, "
        "set nvidia_driver_lock_timeout. Remove no lock file.",
    )


def _unknown(request: Request, box: Box) -> list[Finding]:
    missing = [name for name in (request.driver, request.tracker) if name not in box.candidates]
    if missing:
        return [
            Finding(
                "DRIVER_PACKAGES_UNKNOWN",
                "error",
                f"apt knows no {_some(missing)}.",
                remedy="Run `sudo apt-get update`; if that does not help, add the repository that has it "
                "(restricted of Ubuntu's archive), or set nvidia_driver_branch or nvidia_driver_kernel_flavour to what "
                "`apt-cache search linux-modules-nvidia` lists.",
            )
        ]
    versions = box.candidates[request.driver].versions
    if request.version and request.version not in map(_apt.upstream, versions):
        return [
            Finding(
                "DRIVER_VERSION_UNAVAILABLE",
                "error",
                f"apt has no {request.driver} {request.version}.",
                evidence=f"it has {', '.join(map(_apt.upstream, versions))}",
                remedy="Set nvidia_driver_version to one of these, or add the repository that has it.",
            )
        ]
    return []


def judge(request: Request, box: Box, actions: c.Sequence[_apt.Action]) -> tuple[Finding, ...]:
    """Return what speaks against a plan; a finding of severity error refuses it."""
    found: list[Finding] = []
    coming = {action.name for action in actions if action.new}
    compiled = sorted(name for name in coming if is_dkms(name))
    if compiled:
        found.append(
            Finding(
                "DRIVER_PLAN_INSTALLS_DKMS",
                "error",
                f"apt would install {_some(compiled)}, whose modules no key of the kernel has signed: the next boot "
                "would lose the GPU.",
                remedy=f"Run `apt-cache policy {request.tracker}`: of the driver's version, it provides the same name.",
            )
        )
    unsigned = sorted(name for name in coming if name.startswith("linux-image-unsigned-"))
    if unsigned:
        found.append(
            Finding(
                "DRIVER_PLAN_UNSIGNED_KERNEL",
                "error",
                f"apt would install {_some(unsigned)}, which Secure Boot does not start.",
                remedy="Find out which package asks for it with `apt-get --simulate install`, and remove that one.",
            )
        )
    lost = sorted(action.name for action in actions if action.kind == "remove" and not _may_go(request, action.name))
    if lost:
        found.append(
            Finding(
                "DRIVER_PLAN_REMOVES_PLATFORM",
                "error",
                f"apt would remove {_some(lost)}, which the driver does not stand for.",
                evidence=", ".join(action.line() for action in actions if action.kind == "remove"),
                remedy="Pin a version that agrees with them (nvidia_driver_version), or remove them if they may go.",
            )
        )
    return (*found, *_kernels(request, box, actions))


def _may_go(request: Request, name: str) -> bool:
    """Return whether a package is one that this transaction replaces: DKMS, or another branch of the driver."""
    branch = OF_BRANCH.match(name)
    return is_dkms(name) or (branch is not None and branch[1] != request.branch)


def _kernels(request: Request, box: Box, actions: c.Sequence[_apt.Action]) -> list[Finding]:
    """Judge that the kernel which boots next has modules; the others may do without, but are no fallback then."""
    having = {name for name, one in box.packages.items() if one.installed} | {one.name for one in actions if one.new}
    following = next_kernel(request, actions)
    kernels = dict.fromkeys((*request.kernels, *new_kernels(actions)))
    bare = [kernel for kernel in kernels if request.payload(kernel) not in having]
    metas = [name for name in request.kernel_metas if box.installed(name)]
    return [
        Finding(
            "DRIVER_PLAN_KERNEL_WITHOUT_MODULES",
            "error",
            f"Kernel {kernel} would boot next, and apt has no {request.payload(kernel)}: no GPU would be there.",
            remedy="Wait until the package is published (kernel and modules are released apart), and hold the kernel "
            f"until then: `sudo apt-mark hold {' '.join(metas or request.kernel_metas)}`.",
        )
        if kernel == following
        else Finding(
            "DRIVER_PLAN_KERNEL_NO_FALLBACK",
            "warning",
            f"apt has no {request.payload(kernel)}: kernel {kernel} has no GPU, so it is no fallback.",
            remedy="Keep another kernel with modules to fall back to.",
        )
        for kernel in bare
    ]


def blocked_by_holds(request: Request, box: Box, would: c.Sequence[_apt.Action], said: str) -> Finding:
    """Return that holds of somebody keep a transaction from happening, with the command that lifts them.

    Args:
        would: What apt would do if there were no holds.
        said: Why it does not.
    """
    changed = {action.name for action in would} | set(request.names())
    names = sorted(box.foreign_holds & changed) or sorted(box.foreign_holds)
    return Finding(
        "DRIVER_PACKAGES_HELD",
        "error",
        f"{_some(names)} {'is' if len(names) == 1 else 'are'} on hold, which keeps {request.driver} out.",
        evidence=said,
        remedy=f"If that is no longer wanted: `sudo apt-mark unhold {' '.join(names)}`, then run this again; the role "
        "holds them together afterwards.",
    )


def refused_by_apt(said: str) -> Finding:
    """Return that apt finds no way to do what is asked."""
    return Finding(
        "DRIVER_PLAN_IMPOSSIBLE",
        "error",
        f"apt finds no way to install the driver: {said}.",
        remedy="Run `sudo apt-get check` and `apt-cache policy` of the packages that it names.",
    )


def _some(names: c.Iterable[str], limit: int = 6) -> str:
    listed = list(names)
    rest = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return f"{', '.join(listed[:limit])}{rest}"
