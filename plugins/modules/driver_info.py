#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_info
short_description: Tell whether the GPU is there now, and whether it will be after the next boot
version_added: 0.1.0
description:
  - Reads, for every kernel that the box could boot, which NVIDIA modules C(modprobe) would load, who built them, their
    version and licence, and whether their signature really verifies against a certificate compiled into that kernel.
    The signer's name that C(modinfo) prints proves nothing, since anybody can put it there.
  - Reads beside it what is loaded, what userspace is installed, Secure Boot, which kernel boots next, its initrd and
    boot entry, the CDI specifications, and the state of dpkg.
  - C(nvidia), C(nvidia-uvm), C(nvidia-modeset) and C(nvidia-drm) are judged; C(nvidia-peermem) is not, since it cannot
    load on a GB10 anyway.
  - Nothing is changed and no package is needed on the box. What may not be read is named in RV(unreadable), and what
    depends on it is V(unknown) and never good. Only root may read kernel images, the boot loader's configuration and
    the keyring of the kernel, so C(become) is wanted.
  - Modules and kernels that are compressed with Zstandard need the C(zstd) program of the box, or Python 3.14; those
    with LZ4 need C(lz4).
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._attributes.info_module
options:
  kernels:
    description:
      - Look at these kernels (as C(uname -r) prints them), whether they are bootable or not, beside the running one and
        that which boots next. Left out, it is every kernel that has an image in C(/boot).
    type: list
    elements: str
  next_kernel:
    description:
      - The kernel that will boot, where the caller knows better than the boot loader's configuration.
    type: str
  expected_kernel:
    description: The kernel that the fleet is pinned to. Another one is a finding.
    type: str
  expected_version:
    description: The driver version that the fleet is pinned to. Another one is a finding.
    type: str
  signers:
    description:
      - Regular expressions of the subjects whose certificates are trusted to sign the modules. The certificate has to
        be in the kernel as well.
    type: list
    elements: str
    default: ['^Canonical Ltd\. Kernel Module Signing( \d{4} Kmod)?$']
  sysroot:
    description: The folder that stands for the root of the file system.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Read the driver of the box
  gb10.fleet.driver_info:
  become: true
  register: driver

- name: Refuse to reboot into a kernel that would lose the GPU
  ansible.builtin.assert:
    that: driver.reboot.safe == 'yes'
    fail_msg: "{{ driver.findings | map(attribute='message') | join('; ') }}"

- name: Say what is known against the driver and the kernel
  ansible.builtin.debug:
    msg: "{{ driver | gb10.fleet.claims_for('2026-11-29', {'nodes': 2}) }}"
  when: driver.verdict != 'absent'
"""

RETURN = r"""
verdict:
  description:
    - V(good), the right modules are loaded, and will be after the next boot.
    - V(reboot_required), what boots next is right, but not what is loaded now; RV(reboot.safe) is V(yes).
    - V(bad), a reboot would not be safe, or something else is wrong; RV(findings) has an error.
    - V(unknown), something that decides could not be read; RV(reboot.safe) is V(unknown).
    - V(absent), there is neither a module nor userspace of NVIDIA's driver.
  returned: success
  type: str
  sample: good
reboot:
  description: Whether a reboot is due, and whether it would keep the GPU.
  returned: success
  type: dict
  contains:
    pending:
      description: Whether a reboot is due; null where it cannot be told.
      type: bool
    reasons:
      description: Why it is due, one sentence each.
      type: list
      elements: str
    kernel:
      description: The kernel that boots next, an empty string where it cannot be told.
      type: str
      sample: 6.17.0-1029-nvidia
    kernel_certain:
      description: Whether the boot loader's own configuration says so; V(false) for a guess by the highest version.
      type: bool
    kernel_reason:
      description: How the kernel that boots next was found.
      type: str
      sample: "/boot/grub/grub.cfg: default 0 is 'Ubuntu'"
    safe:
      description:
        - V(yes), everything was checked for that kernel and the GPU will be there.
        - V(no), something is known to be wrong; RV(reboot.blockers) names it.
        - V(unknown), something could not be read; RV(reboot.blockers) names it too.
      type: str
      sample: 'yes'
    blockers:
      description: The ids of the findings for which it is not safe.
      type: list
      elements: str
      sample: [DRIVER_MODULE_FORGED_SIGNER]
running_kernel:
  description: What C(uname -r) prints; an empty string where it is not known.
  returned: success
  type: str
  sample: 6.17.0-1029-nvidia
fallback_kernel:
  description:
    - Another bootable kernel than the one that boots next, which would have the GPU; the highest version of them.
    - An empty string where there is none.
  returned: success
  type: str
  sample: 6.17.0-1026-nvidia
kernels:
  description: The kernels that were looked at, the highest version first.
  returned: success
  type: list
  elements: dict
  contains:
    release:
      description: The kernel's release.
      type: str
      sample: 6.17.0-1029-nvidia
    running:
      description: Whether it runs now.
      type: bool
    next:
      description: Whether it boots next.
      type: bool
    image:
      description: Its image; an empty string where there is none.
      type: str
      sample: /boot/vmlinuz-6.17.0-1029-nvidia
    image_signed:
      description: Whether the image carries a signature for Secure Boot (which is not verified); null if unknown.
      type: bool
    initrd:
      description: Whether its initrd is there and is not empty; null if unknown.
      type: bool
    boot_entry:
      description: Whether the boot loader has an entry for it; null if unknown.
      type: bool
    provider:
      description:
        - Who built the modules. V(canonical) by path and by a certificate that verifies, V(dkms), V(other), V(unknown),
          V(mixed) where they differ, or V(none) where there are no modules.
      type: str
      sample: canonical
    signer:
      description: The name of the signer that the modules state, an empty string where they state none or differ.
      type: str
      sample: Canonical Ltd. Kernel Module Signing
    signature_valid:
      description: Whether every judged module's signature verifies against a trusted certificate; null if unknown.
      type: bool
    version:
      description: The driver version of the modules, an empty string where there are none or they differ.
      type: str
      sample: '580.173.02'
    flavour:
      description: V(open) or V(proprietary), by licence; V(mixed), V(unknown) or V(none).
      type: str
      sample: open
    modules:
      description: The modules that C(modprobe) would load.
      type: list
      elements: dict
      contains:
        name:
          description: Its name.
          type: str
          sample: nvidia-uvm
        path:
          description: The file that C(modprobe) loads.
          type: str
          sample: /lib/modules/6.17.0-1029-nvidia/kernel/nvidia-580-open/nvidia-uvm.ko
        shadowed:
          description: Other files of the same module that lose against it.
          type: list
          elements: str
        chosen_by:
          description: V(modules.dep), V(search) (the order of C(depmod.d)), or V(tie) where neither decides.
          type: str
        provider:
          description: As for the kernel.
          type: str
        version:
          description: Its version.
          type: str
        license:
          description: Its licence.
          type: str
          sample: Dual MIT/GPL
        flavour:
          description: As for the kernel.
          type: str
        vermagic:
          description: What it was built for.
          type: str
          sample: 6.17.0-1029-nvidia SMP preempt mod_unload modversions aarch64
        signer:
          description: The signer's name that it states.
          type: str
        signature:
          description:
            - V(valid), verified by a trusted certificate of the kernel.
            - V(unsigned); V(tampered), the signature is of the trusted key, but for other bytes; V(forged), it states a
              trusted name, but another key made it; V(wrong_key), another name and key; V(broken), it is no signature
              that a kernel reads; V(unknown).
          type: str
        signature_reason:
          description: Why, in a sentence.
          type: str
        verified_by:
          description: The subject of the certificate that verified it, trusted or not; an empty string for none.
          type: str
        kernel_accepts:
          description:
            - Whether a kernel that insists on signatures would load it, which it also does for an enrolled machine
              owner key; null if unknown.
          type: bool
    certificates:
      description: The trusted certificates that are compiled into its image; null where the image could not be read.
      type: list
      elements: dict
      contains:
        subject:
          description: The common name.
          type: str
        serial:
          description: The serial number, which C(modinfo) prints as C(sig_key).
          type: str
        key_id:
          description: The subject key id, which C(/proc/keys) prints.
          type: str
        key:
          description: The kind of key.
          type: str
          sample: RSA 4096
        in_keyring:
          description: Whether the running kernel holds it; null for other kernels and where it cannot be told.
          type: bool
    gpu:
      description: Whether the modules would load in this kernel and match userspace. V(yes), V(no) or V(unknown).
      type: str
      sample: 'yes'
    safe_to_boot:
      description: V(yes), V(no) or V(unknown); as RV(reboot.safe), for this kernel.
      type: str
      sample: 'yes'
    blockers:
      description: The ids of the findings for which it is not safe.
      type: list
      elements: str
loaded:
  description: What is loaded now.
  returned: success
  type: dict
  contains:
    modules:
      description: The names of NVIDIA's modules that are loaded, as the kernel spells them.
      type: list
      elements: str
      sample: [nvidia, nvidia_uvm]
    version:
      description: The version of the loaded driver, an empty string where it is not loaded.
      type: str
      sample: '580.173.02'
    flavour:
      description: V(open), V(proprietary), V(unknown) or V(none).
      type: str
    verified:
      description: Whether the kernel verified it when it was loaded (no taint E); null where it cannot be told.
      type: bool
    current:
      description: Whether it is what is installed for the running kernel; null where it cannot be told.
      type: bool
userspace:
  description: The driver's libraries.
  returned: success
  type: dict
  contains:
    version:
      description: Their version, an empty string where there are none or they differ.
      type: str
      sample: '580.173.02'
    versions:
      description: Each version with where it was seen.
      type: dict
      sample: {'580.173.02': [/usr/lib/aarch64-linux-gnu/libcuda.so.580.173.02]}
secure_boot:
  description: V(enabled), V(disabled), V(setup_mode), V(unsupported) (no EFI) or V(unknown).
  returned: success
  type: str
  sample: enabled
gpu:
  description: The GPU itself.
  returned: success
  type: dict
  contains:
    present:
      description: Whether the PCI bus has one; null where it cannot be told.
      type: bool
    visible:
      description: Whether the loaded driver drives one.
      type: bool
    names:
      description: What the driver calls them.
      type: list
      elements: str
      sample: [NVIDIA GB10]
boot:
  description: The boot loader.
  returned: success
  type: dict
  contains:
    loader:
      description: V(grub), or V(unknown) where there is no other that is read here.
      type: str
    menu_hidden:
      description: Whether its menu is hidden, so that a fallback kernel cannot be chosen; null if unknown.
      type: bool
    entries:
      description: The kernels that it has entries for, in the order of the menu.
      type: list
      elements: str
cdi:
  description: The CDI specifications of the GPU, by file; C(versions) of the driver that it names, C(current) or null.
  returned: success
  type: list
  elements: dict
  sample: [{path: /var/run/cdi/nvidia.yaml, versions: ['580.173.02'], current: true}]
packages:
  description: What dpkg knows; null where there is no C(/var/lib/dpkg/status).
  returned: success
  type: dict
  contains:
    versions:
      description: The installed packages of driver, kernel modules, kernel meta-packages and container toolkit.
      type: dict
      sample: {nvidia-driver-580-open: 580.173.02-0ubuntu0.24.04.1}
    dkms:
      description: The installed packages that build or hold NVIDIA modules by DKMS.
      type: list
      elements: str
    held:
      description: Packages on hold.
      type: list
      elements: str
    unfinished:
      description: Packages that are neither installed nor removed, with their state.
      type: dict
      sample: {nvidia-dkms-580-open: half-configured}
unreadable:
  description: Files that could not be read, with the reason; what depends on them is unknown.
  returned: success
  type: list
  elements: str
findings:
  description: What is wrong or worth knowing; see C(docs/findings.md).
  returned: success
  type: list
  elements: dict
"""

import collections.abc as c
import pathlib
import re
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _driver_state, _driver_verdict, _sysroot


def complaints(params: dict[str, t.Any]) -> c.Iterator[str]:
    """Return what is wrong with the options."""
    for name in ("kernels", "next_kernel", "expected_kernel"):
        given = params[name] or []
        for release in [given] if isinstance(given, str) else given:
            if not re.fullmatch(r"\w[\w.+~-]*", release):
                yield f"{name}: {release!r} is no release of a kernel; write what `uname -r` prints."
    for pattern in params["signers"]:
        try:
            re.compile(pattern)
        except re.error as error:
            yield f"signers: {pattern!r} is no regular expression ({error}); escape what is meant literally."


def main() -> None:
    """Read, and return what was read."""
    module = AnsibleModule(
        argument_spec={
            "kernels": {"type": "list", "elements": "str"},
            "next_kernel": {"type": "str"},
            "expected_kernel": {"type": "str"},
            "expected_version": {"type": "str"},
            "signers": {
                "type": "list",
                "elements": "str",
                "default": [r"^Canonical Ltd\. Kernel Module Signing( \d{4} Kmod)?$"],
            },
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    params = module.params
    for complaint in (*complaints(params), *filter(None, [_sysroot.refusal(params["sysroot"])])):
        module.fail_json(msg=complaint)
    wanted = _driver_state.Wanted(
        signers=tuple(params["signers"]),
        kernels=None if params["kernels"] is None else tuple(params["kernels"]),
        next_kernel=params["next_kernel"] or "",
        expected_kernel=params["expected_kernel"] or "",
        expected_version=params["expected_version"] or "",
    )
    state = _driver_state.observe(_sysroot.Sysroot(pathlib.Path(params["sysroot"])), wanted)
    report = _driver_verdict.report(state, wanted)
    module.exit_json(
        changed=False, msg=f"{report['verdict']}, a reboot would be safe: {report['reboot']['safe']}", **report
    )


if __name__ == "__main__":
    main()
