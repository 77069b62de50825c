# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is there of NVIDIA's driver on a box: for each kernel on disk, loaded, in userspace and in what surrounds it.

Only looks; _driver_verdict says what it means.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _apt,
    _boot_choice,
    _dpkg,
    _efi,
    _kernel_image,
    _kernel_modules,
    _module_info,
    _module_signature,
    _unpack,
    _x509,
)
from ansible_collections.gb10.fleet.plugins.module_utils._sysroot import Sysroot

Provider = t.Literal["canonical", "dkms", "other", "unknown"]

_IMAGE: t.Final = re.compile(r"(?:vmlinuz|vmlinux|Image)-(\d[\w.+~-]*)")
# Leftovers of updates and packages are no kernels that anybody boots.
_NO_IMAGE: t.Final = re.compile(r"\.(old|bak|dpkg-\w+|tmp|efi\.signed)$")
_INITRDS: t.Final = ("initrd.img", "initramfs")
# Where the local key lies that Ubuntu's DKMS signs with.
_LOCAL_OWNER_KEYS: t.Final = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub")
_LIBRARY: t.Final = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)?)")
_NVRM: t.Final = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)")
_IN_CDI: t.Final = re.compile(r"lib(?:cuda|nvidia-[\w-]+)\.so\.(\d{3}\.\d+(?:\.\d+)?)")
_NVIDIA: t.Final = "0x10de"


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller asks for: which kernels to look at, which boots next, pins, and whose signatures are trusted."""

    signers: tuple[str, ...]
    kernels: tuple[str, ...] | None = None
    next_kernel: str = ""
    expected_kernel: str = ""
    expected_version: str = ""

    def trusts(self, subject: str) -> bool:
        """Return whether a subject is one of those that are trusted to sign modules."""
        return any(re.search(pattern, subject) for pattern in self.signers)


@dataclasses.dataclass(frozen=True, slots=True)
class _Surroundings:
    """What holds for all kernels of a box."""

    running: str
    images: c.Mapping[str, str]
    boot: _boot_choice.Boot
    owner: _efi.OwnerKeys
    wanted: Wanted


@dataclasses.dataclass(frozen=True, slots=True)
class Module:
    """A module that modprobe would load in a kernel. ``problem`` says why its file could not be read, if so."""

    choice: _kernel_modules.Choice
    provider: Provider
    info: _module_info.ModuleInfo
    signature: _module_signature.Result
    problem: str = ""
    remedy: str = ""
    damaged: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel and the modules for it. ``certificates`` is None where its image was not read, or could not be."""

    release: str
    running: bool
    next: bool
    image: str
    image_signed: bool | None
    initrd: bool | None
    boot_entry: bool | None
    has_index: bool
    complete: bool
    certificates: tuple[_x509.Certificate, ...] | None
    image_problem: str
    image_remedy: str
    modules: tuple[Module, ...]
    without_signatures: tuple[str, ...]

    def module(self, name: str) -> Module | None:
        """Return a module by the name of its file."""
        return next((one for one in self.modules if one.choice.name == name), None)

    def common(self, values: c.Iterable[str], several: str = "", none: str = "") -> str:
        """Return the one value that all have, ``several`` where they differ, ``none`` where there is none."""
        found = set(values)
        return none if not found else found.pop() if len(found) == 1 else several

    @property
    def version(self) -> str:
        """Return the version of the driver, empty where there is none or several."""
        return self.common(module.info.version for module in self.modules if module.choice.path and not module.problem)


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """The driver that is loaded now; ``verified`` is None where the kernel does not say."""

    modules: tuple[str, ...] = ()
    version: str = ""
    flavour: str = "none"
    verified: bool | None = None
    build_id: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU: on the bus (None where the bus cannot be seen), and driven, by name and firmware version."""

    present: bool | None
    names: tuple[str, ...]
    firmware: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class CdiSpec:
    """A CDI specification of the GPU and the driver versions whose files it names."""

    path: str
    versions: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """All that was seen."""

    running: str
    kernels: tuple[Kernel, ...]
    boot: _boot_choice.Boot
    loaded: Loaded
    userspace: c.Mapping[str, tuple[str, ...]]
    secure_boot: _efi.SecureBoot
    keyring: frozenset[str] | None
    gpu: Gpu
    cdi: tuple[CdiSpec, ...]
    packages: _dpkg.Packages | None
    lock: _apt.Holder | None
    barred: c.Mapping[str, str]
    reboot_asked_by: tuple[str, ...] | None
    unreadable: c.Mapping[str, str]

    @property
    def next(self) -> Kernel | None:
        """Return the kernel that boots next, if it is known and was looked at."""
        return next((kernel for kernel in self.kernels if kernel.next), None)

    @property
    def current(self) -> Kernel | None:
        """Return the running kernel, if it is known."""
        return next((kernel for kernel in self.kernels if kernel.running), None)

    @property
    def userspace_version(self) -> str:
        """Return the version of the driver's libraries, empty where there is none or several."""
        return next(iter(self.userspace)) if len(self.userspace) == 1 else ""

    @property
    def absent(self) -> bool:
        """Return whether there is nothing of the driver."""
        return not self.userspace and not self.loaded.modules and not any(kernel.modules for kernel in self.kernels)


def observe(files: Sysroot, wanted: Wanted) -> State:
    """Look at the box."""
    running = files.text("/proc/sys/kernel/osrelease") or ""
    images = _images(files)
    boot = _boot_choice.observe(files, tuple(images))
    if wanted.next_kernel:
        boot = dataclasses.replace(boot, kernel=wanted.next_kernel, certain=True, reason="the caller said so")
    packages = _packages(files)
    releases = {*(images if wanted.kernels is None else wanted.kernels), running, boot.kernel} - {""}
    around = _Surroundings(running, images, boot, _efi.owner_keys(files), wanted)
    kernels = tuple(
        _kernel(files, release, around) for release in sorted(releases, key=_boot_choice.version_key, reverse=True)
    )
    return State(
        running=running,
        kernels=kernels,
        boot=boot,
        loaded=_loaded(files),
        userspace=_userspace(files, packages),
        secure_boot=_efi.secure_boot(files),
        keyring=keyring(files.text("/proc/keys")),
        gpu=_gpu(files),
        cdi=_cdi(files),
        packages=packages,
        lock=_apt.lock_holder(files.root),
        barred=_kernel_modules.barred(files),
        reboot_asked_by=_reboot_asked_by(files),
        unreadable=dict(files.unreadable),
    )


def _packages(files: Sysroot) -> _dpkg.Packages | None:
    folder = "/var/lib/dpkg"
    status = files.text(f"{folder}/status")
    # As dpkg does, which has other files there that it has not begun with.
    updates = [files.text(f"{folder}/updates/{name}") for name in files.listing(f"{folder}/updates") if name.isdigit()]
    return None if status is None else _dpkg.Packages.from_status(status, [text or "" for text in updates])


def _images(files: Sysroot) -> dict[str, str]:
    """Return the images in /boot by release, the highest version first."""
    found: dict[str, str] = {}
    for name in files.listing("/boot"):
        match = _IMAGE.fullmatch(name)
        if match and not _NO_IMAGE.search(name):
            found.setdefault(match[1], f"/boot/{name}")
    return {release: found[release] for release in sorted(found, key=_boot_choice.version_key, reverse=True)}


def _kernel(files: Sysroot, release: str, around: _Surroundings) -> Kernel:
    image, boot = around.images.get(release, ""), around.boot
    choices = _kernel_modules.choices(files, release)
    parsed, problem, remedy = _image(files, image) if choices and image else (None, "", "")
    boot_problem = files.unreadable.get("/boot", "")
    if choices and not image:
        problem = f"there is no image of {release} in /boot"
    if boot_problem:
        problem, remedy = f"/boot cannot be read ({boot_problem})", "run it with become: true"
    trust = _trust(files, parsed, problem, around)
    return Kernel(
        release=release,
        running=release == around.running,
        next=release == boot.kernel,
        image=image,
        image_signed=parsed.signed if parsed else None,
        initrd=None if boot_problem else any(files.size(f"/boot/{name}-{release}") for name in _INITRDS),
        boot_entry=None if boot.releases is None else release in boot.releases,
        has_index=_kernel_modules.has_index(files, release),
        complete=_kernel_modules.is_complete(files, release),
        certificates=None if parsed is None else trust.trusted,
        image_problem=problem,
        image_remedy=remedy,
        modules=tuple(_module(files, choice, trust, around.wanted) for choice in choices.values()),
        without_signatures=_kernel_modules.unsigned_objects(files, release),
    )


def _image(files: Sysroot, path: str) -> tuple[_kernel_image.Image | None, str, str]:
    data = files.read(path)
    if data is None:
        return None, f"{path} cannot be read ({files.unreadable.get(path, 'it is gone')})", "run it with become: true"
    try:
        return _kernel_image.parse(data), "", ""
    except _kernel_image.ImageError as error:
        return None, f"{path}: {error}", error.remedy


def _trust(
    files: Sysroot, image: _kernel_image.Image | None, problem: str, around: _Surroundings
) -> _module_signature.Trust:
    certificates = image.certificates if image else ()
    owner, wanted = around.owner, around.wanted
    return _module_signature.Trust(
        trusted=tuple(one for one in certificates if wanted.trusts(one.subject)),
        accepted=(*(one for one in certificates if not wanted.trusts(one.subject)), *owner.certificates),
        known=_local_owner_keys(files),
        complete=image is not None,
        owner_complete=owner.complete,
        why_incomplete=problem,
    )


def _local_owner_keys(files: Sysroot) -> tuple[_x509.Certificate, ...]:
    found: list[_x509.Certificate] = []
    for path in _LOCAL_OWNER_KEYS:
        data = files.read(path)
        if data:
            found += _x509.find(data)
    return tuple(found)


def _module(files: Sysroot, choice: _kernel_modules.Choice, trust: _module_signature.Trust, wanted: Wanted) -> Module:
    unread = _module_signature.Result("unknown", "the file could not be read")
    if not choice.path:
        return Module(choice, "unknown", _module_info.ModuleInfo(), unread)
    problem, remedy, damaged = "", "", False
    try:
        data = _unpack.read(files.at(choice.path))
        info = _module_info.ModuleInfo.from_elf(data)
    except OSError as error:
        problem, remedy = f"{choice.path} cannot be read ({error.strerror})", "run it with become: true"
    except _unpack.UnpackError as error:
        problem, remedy, damaged = f"{choice.path}: {error}", error.remedy, not error.remedy
    except _module_info.ModuleError as error:
        problem, damaged = f"{choice.path}: {error}", True
    if problem:
        return Module(
            choice, _provider(choice.path, unread), _module_info.ModuleInfo(), unread, problem, remedy, damaged
        )
    signature = _module_signature.judge(data, trust, wanted.trusts)
    return Module(choice, _provider(choice.path, signature), info, signature)


def _provider(path: str, signature: _module_signature.Result) -> Provider:
    """Return who built a module: the path says who claims to have, and the certificate whether it is true."""
    folder = path.split("/", 4)[-1]
    if folder.startswith(("updates/dkms/", "extra/dkms/")):
        return "dkms"
    if re.match(r"kernel/nvidia-\d+[\w-]*/", folder):
        if signature.word == "unknown":
            return "unknown"
        return "canonical" if signature.word == "valid" else "other"
    if "Secure Boot Module Signature key" in signature.signer or signature.signer.startswith("DKMS"):
        return "dkms"
    return "other"


def _loaded(files: Sysroot) -> Loaded:
    listed = (line.split(" ", 1)[0] for line in (files.text("/proc/modules") or "").splitlines())
    modules = tuple(sorted(name for name in listed if name == "nvidia" or name.startswith("nvidia_")))
    said = files.text("/proc/driver/nvidia/version") or ""
    match = _NVRM.search(said)
    version = files.text("/sys/module/nvidia/version") or (match[1] if match else "")
    if not modules and not version:
        return Loaded()
    flavour = "unknown" if not match else "open" if "Open Kernel Module" in said else "proprietary"
    taint = files.text("/sys/module/nvidia/taint")
    note = "/sys/module/nvidia/notes/.note.gnu.build-id"
    build_id = _module_info.build_id(files.read(note) or b"") if files.exists(note) else ""
    files.unreadable.pop(note, None)  # the version is enough
    return Loaded(modules or ("nvidia",), version, flavour, None if taint is None else "E" not in taint, build_id)


def keyring(text: str | None) -> frozenset[str] | None:
    """Return the ids of the asymmetric keys that the kernel shows, or None where it shows none: only root sees them."""
    found = set()
    for line in (text or "").splitlines():
        words = line.split(maxsplit=8)
        if len(words) == 9 and words[7].startswith("asymmetri"):
            found |= set(re.findall(r": ([0-9a-f]{8,}): X509", words[8]))
    return frozenset(found) or None


def _userspace(files: Sysroot, packages: _dpkg.Packages | None) -> dict[str, tuple[str, ...]]:
    """Return the versions of the driver's libraries with their files; of the packages, where there are no files."""
    found: dict[str, list[str]] = {}
    folders = ["/usr/lib", "/usr/lib64"]
    folders += [f"/usr/lib/{name}" for name in files.listing("/usr/lib") if name.endswith("-linux-gnu")]
    for folder in folders:
        for name in files.listing(folder):
            match = _LIBRARY.fullmatch(name)
            if match:
                found.setdefault(match[1], []).append(f"{folder}/{name}")
    if not found and packages:
        found = packages.userspace()
    return {version: tuple(where) for version, where in sorted(found.items())}


def _gpu(files: Sysroot) -> Gpu:
    bus = "/sys/bus/pci/devices"
    devices = files.listing(bus)
    present: bool | None = None
    if devices or files.exists(bus):
        present = any(
            files.text(f"{bus}/{name}/vendor") == _NVIDIA
            and (files.text(f"{bus}/{name}/class") or "").startswith("0x03")
            for name in devices
        )
    fields = []
    for name in files.listing("/proc/driver/nvidia/gpus"):
        text = files.text(f"/proc/driver/nvidia/gpus/{name}/information") or ""
        fields.append(
            {key.strip(): value.strip() for key, _colon, value in (line.partition(":") for line in text.splitlines())}
        )
    names = tuple(one["Model"] for one in fields if one.get("Model"))
    return Gpu(present, names, tuple(one["GPU Firmware"] for one in fields if one.get("GPU Firmware", "N/A") != "N/A"))


def _cdi(files: Sysroot) -> tuple[CdiSpec, ...]:
    found = []
    for folder in ("/etc/cdi", "/run/cdi", "/var/run/cdi"):
        if folder == "/var/run/cdi" and files.at("/var/run").is_symlink():
            continue
        for name in files.listing(folder):
            text = files.text(f"{folder}/{name}") if name.endswith((".yaml", ".yml", ".json")) else None
            if text and "nvidia.com/gpu" in text:
                found.append(CdiSpec(f"{folder}/{name}", tuple(sorted(set(_IN_CDI.findall(text))))))
    return tuple(found)


def _reboot_asked_by(files: Sysroot) -> tuple[str, ...] | None:
    for folder in ("/run", "/var/run"):
        if files.exists(f"{folder}/reboot-required"):
            return tuple(dict.fromkeys((files.text(f"{folder}/reboot-required.pkgs") or "").split()))
    return None
