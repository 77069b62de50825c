#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_packages
short_description: Install NVIDIA's driver with modules that Canonical has signed, in one apt transaction
version_added: 0.1.0
description:
  - Installs the driver of a branch, the modules for each of O(kernels), and the meta-package that follows the kernel,
    in one transaction that DKMS is no part of. Modules that are compiled on a box with Secure Boot do not load, and apt
    pulls DKMS in for the asking.
  - The transaction is simulated first. A plan that installs DKMS, removes anything but DKMS and other branches of the
    driver, or leaves the kernel that boots next without modules is refused, and nothing is changed.
  - All packages are fetched before the first one is touched. The work is done by a transient systemd unit of the box.
    An interrupted playbook does not interrupt it, and the next run waits for the same one.
  - Keeps DKMS and unsigned kernels away with a file in C(/etc/apt/preferences.d), marks the packages of the platform as
    installed by hand so that C(apt autoremove) leaves them, and holds the kernel's meta-packages, the tracker and the
    driver together.
  - Waits for whoever else changes packages, and says who it is. A half-configured package, a prompt for a password and
    holds of somebody else are named with the command that cures them, and nothing is repaired behind anybody's back.
  - Never reboots. M(gb10.fleet.driver_info) says whether a reboot is due and safe.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._progress
attributes:
  check_mode:
    support: full
    details:
      - Says exactly what would be installed, from the package lists as they are on the box.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) installs what is missing.
      - V(planned) says what that would be and judges it. The package lists are refreshed, nothing else is changed.
    type: str
    choices: [planned, present]
    default: present
  branch:
    description: The branch of the driver. The open flavour is installed, as the other one does not know this GPU.
    type: str
    required: true
  flavour:
    description: The flavour of the kernel, as its meta-packages are named.
    type: str
    default: nvidia-hwe-24.04
  kernels:
    description:
      - The kernels that need modules, as C(uname -r) prints them. The running one, and last the one that boots next.
    type: list
    elements: str
    required: true
  version:
    description:
      - The driver version, without the part that the distribution adds. Pins it, and may lead to an older one.
      - Left out, it is the newest that apt has when something is missing.
    type: str
    default: ''
  upgrade:
    description:
      - Whether to bring an installed driver to the newest version that apt has, or that O(version) allows.
      - V(false) leaves an installed driver alone.
    type: bool
    default: false
  platform_packages:
    description: Patterns of the packages that C(apt autoremove) must not sweep away.
    type: list
    elements: str
    default: []
  lock_timeout:
    description: How long to wait for another program that changes packages, in seconds.
    type: int
    default: 600
  update_cache:
    description: Whether to refresh the package lists when something is missing. In check mode they are left alone.
    type: bool
    default: true
  program:
    description: Where the collection's program lies on the box, see M(gb10.fleet.box_program).
    type: path
    default: /usr/local/lib/gb10-fleet/fleet.pyz
"""

EXAMPLES = r"""
- name: Install the driver
  gb10.fleet.driver_packages:
    branch: "580"
    kernels: [6.17.0-1026-nvidia, 6.17.0-1029-nvidia]
  become: true
"""

RETURN = r"""
plan:
  description: What was done, or would be in check mode. Where nothing was missing, there is nothing in it.
  returned: always
  type: dict
  contains:
    request:
      description: What was asked of apt; a name with a trailing minus is to go, or to stay away.
      type: list
      elements: str
    install:
      description: New packages and their versions.
      type: dict
      sample: {nvidia-driver-580-open: 580.173.02-0ubuntu0.24.04.1}
    upgrade:
      description: Packages that change their version, with both.
      type: dict
    remove:
      description: Packages that go, with their versions.
      type: dict
    protect:
      description: Packages that were marked as installed by hand.
      type: list
      elements: str
    hold:
      description: Packages that were put on hold.
      type: list
      elements: str
    driver_version:
      description: The driver version afterwards.
      type: str
      sample: '580.173.02'
    next_kernel:
      description: The kernel that boots next afterwards.
      type: str
      sample: 6.17.0-1029-nvidia
    lines:
      description: All of it in words, in the order in which it is done.
      type: list
      elements: str
findings:
  description: What speaks against the plan, or is worth knowing; see C(docs/findings.md).
  returned: always
  type: list
  elements: dict
finished:
  description: Whether everything is done.
  returned: success
  type: bool
progress:
  description: How far it is, in one line.
  returned: success
  type: str
  sample: 'installing: 45 %, Unpacking nvidia-driver-580-open'
"""

import dataclasses
import json
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _apt,
    _command,
    _driver_refusal,
    _driver_request,
    _driver_transaction,
    _files,
    _instance,
    _job,
    _status,
)

_POLL_S = 0.5


def main() -> None:
    """Plan, and begin the transaction or join it; then wait for a moment."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["planned", "present"], "default": "present"},
            "branch": {"type": "str", "required": True},
            "flavour": {"type": "str", "default": "nvidia-hwe-24.04"},
            "kernels": {"type": "list", "elements": "str", "required": True},
            "version": {"type": "str", "default": ""},
            "upgrade": {"type": "bool", "default": False},
            "platform_packages": {"type": "list", "elements": "str", "default": []},
            "lock_timeout": {"type": "int", "default": 600},
            "update_cache": {"type": "bool", "default": True},
            "program": {"type": "path", "default": "/usr/local/lib/gb10-fleet/fleet.pyz"},
            "begin": {"type": "bool", "default": True},
            "step": {"type": "int", "default": 8},
        },
        supports_check_mode=True,
    )
    given = module.params
    request = _driver_request.Request(
        branch=given["branch"],
        flavour=given["flavour"],
        kernels=tuple(dict.fromkeys(filter(None, given["kernels"]))),
        version=given["version"],
        upgrade=given["upgrade"],
        platform=tuple(given["platform_packages"]),
        lock_timeout_s=given["lock_timeout"],
    )
    try:
        transact(module, request)
    except (_apt.AptError, _instance.UnitError) as error:
        module.fail_json(msg=f"{error}. Nothing was changed.")


def transact(module: AnsibleModule, request: _driver_request.Request) -> None:
    """Do one step of it."""
    given = module.params
    job = _job.Job(
        name=_driver_transaction.JOB,
        description=f"Install {request.driver}",
        argv=("/usr/bin/python3", given["program"], "driver", json.dumps(dataclasses.asdict(request))),
    )
    planning = given["state"] == "planned" or module.check_mode
    under_way = _job.under_way(_command.run, job)
    # What is under way has dpkg half way through: looking at it would find nothing but faults.
    busy = None if under_way or module.check_mode else _apt.lock_holder()
    if busy and not _driver_transaction.is_waiting_worth_it(request):
        busy = None
    if busy and planning:
        wait_for(module, busy)
    elif not under_way and (planning or (given["begin"] and not busy)):
        planned = look(module, request)
        if planned.refused:
            message = f"{_driver_transaction.sentences(planned.findings)} Nothing was changed."
            module.fail_json(msg=message, **described(planned))
        missing = bool(planned.lines())
        if planning or not missing:
            message = f"{request.driver} {'would be installed' if missing else 'is as it should be'}"
            changed = missing and given["state"] == "present"
            shown = diff(planned) if changed else []
            module.exit_json(
                changed=changed, msg=message, finished=True, progress=message, diff=shown, **described(planned)
            )
    outcome = _job.wait(_command.run, job, begin=given["begin"] and not planning, step_s=given["step"])
    if not outcome.finished or (planning and under_way):
        module.exit_json(changed=False, finished=False, progress=outcome.message, plan={}, findings=[])
    if outcome.failed:
        module.fail_json(msg=outcome.message, plan={}, findings=[])
    finish(module, request, outcome.message)


def wait_for(module: AnsibleModule, holder: _apt.Holder) -> None:
    """Wait for whoever changes packages, for a moment: what it has half done is no fault of the box."""
    given = module.params
    # When the waiting began, which this execution may not have seen.
    status = _status.StatusFile(f"{_driver_transaction.JOB}-lock")
    if given["begin"]:
        status.write(_status.Status("lock", holder.words(), False, time.time()))
    since = status.read()
    began = since.at if since else time.time()
    deadline = time.monotonic() + given["step"]
    while (found := _apt.lock_holder()) and time.monotonic() < deadline:
        if prompt := _apt.mok_prompt():
            message = _driver_transaction.sentences(_driver_refusal.prompt_finding(prompt))
            module.fail_json(msg=f"{message} Nothing was changed.", plan={}, findings=[])
        if time.time() - began >= given["lock_timeout"]:
            finding = _driver_refusal.lock_finding(found, given["lock_timeout"])
            module.fail_json(msg=_driver_transaction.sentences([finding]), plan={}, findings=[finding.as_dict()])
        time.sleep(_POLL_S)
    progress = f"waiting, as {holder.words()}: {time.time() - began:.0f} of {given['lock_timeout']} s"
    module.exit_json(changed=False, finished=False, progress=progress, plan={}, findings=[])


def look(module: AnsibleModule, request: _driver_request.Request) -> _driver_transaction.Plan:
    """Plan with what apt knows, refreshing that where something is missing."""
    box = _driver_transaction.observe(request)
    missing = _driver_request.steps(request, box).packages or request.upgrade
    if missing and module.params["update_cache"] and not module.check_mode and not _apt.lock_holder():
        code, out, err = _command.run([*_apt.ENVIRONMENT, "apt-get", "--quiet=2", "update"], timeout_s=300)
        if code != 0:
            # An old list is better than none, and whether it is too old is found out when the packages are fetched.
            module.warn(
                f"The package lists could not be refreshed ({_apt.complaint(out, err)}); the old ones are used."
            )
        box = _driver_transaction.observe(request)
    return _driver_transaction.plan(request, box)


def finish(module: AnsibleModule, request: _driver_request.Request, message: str) -> None:
    """Say what was done, which is known even where an earlier run began with it."""
    left = _driver_request.steps(request, _driver_transaction.observe(request))
    if left:
        module.fail_json(
            msg=f"A transaction of an earlier run has ended ({message}), but for another request. Run this again.",
            plan={},
            findings=[],
        )
    plan = _driver_transaction.record().get("plan", {})
    lines = "".join(f"{line}\n" for line in plan.get("lines", ()))
    module.exit_json(
        changed=True,
        msg=message,
        finished=True,
        progress=message,
        diff={"before": "", "after": lines},
        plan=plan,
        findings=[],
    )


def diff(planned: _driver_transaction.Plan) -> list[dict[str, str]]:
    """Return what Ansible shows with --diff."""
    shown = [{"before": "", "after": "".join(f"{line}\n" for line in planned.lines())}]
    if planned.steps.preferences:
        shown.append(_files.difference(planned.preferences_file))
    return shown


def described(planned: _driver_transaction.Plan) -> dict[str, t.Any]:
    """Return a plan and what speaks against it as plain data."""
    return {"plan": planned.as_dict(), "findings": [one.as_dict() for one in planned.findings]}


if __name__ == "__main__":
    main()
