# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Makes what a box with NVIDIA's driver has: kernels with certificates inside, signed modules, and all around them.

Keys are made anew in each run and never written down. Signatures are made by the package cryptography, which
ansible-core brings along, and not by the code that is tested.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import gzip
import lzma
import pathlib
import struct
import subprocess
import typing as t

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, pkcs7
from cryptography.x509.oid import NameOID

CANONICAL = "Canonical Ltd. Kernel Module Signing"
OWNER = "spark-1 Secure Boot Module Signature key"
RELEASE = "6.17.0-1029-nvidia"
OLDER = "6.17.0-1026-nvidia"
VERSION = "580.173.02"
MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm")
MAGIC = b"~Module signature appended~\n"
ARM64_VERMAGIC = "SMP preempt mod_unload modversions aarch64"


@dataclasses.dataclass(frozen=True)
class Signer:
    """A throw-away key with a certificate of its own."""

    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def key_id(self) -> str:
        extension = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        return extension.value.digest.hex()

    def sign(self, content: bytes, algorithm: hashes.HashAlgorithm | None = None) -> bytes:
        """Return a detached PKCS#7 signature as the kernel's sign-file makes them: bare, without attributes."""
        options = [
            pkcs7.PKCS7Options.DetachedSignature,
            pkcs7.PKCS7Options.Binary,
            pkcs7.PKCS7Options.NoAttributes,
            pkcs7.PKCS7Options.NoCerts,
        ]
        builder = pkcs7.PKCS7SignatureBuilder().set_data(content)
        hash_: t.Any = algorithm or hashes.SHA512()
        return builder.add_signer(self.certificate, self.key, hash_).sign(Encoding.DER, options)


@functools.cache
def signer(name: str = CANONICAL, number: int = 0, *, kind: str = "rsa", serial: int | None = None) -> Signer:
    """Return a signer. Another number is another key of the same name."""
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if kind == "rsa":
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    else:
        key = ec.generate_private_key({"p256": ec.SECP256R1(), "p384": ec.SECP384R1(), "p521": ec.SECP521R1()}[kind])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(serial or x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA512())
    )
    return Signer(key, certificate)


def elf(sections: dict[str, bytes], *, order: str = "<", bits: int = 64) -> bytes:
    """Return a relocatable ELF file with these sections."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    everything = {**sections, ".shstrtab": names}
    header_size, entry = (64, f"{order}IIQQQQIIQQ") if bits == 64 else (52, f"{order}IIIIIIIIII")
    body, headers = b"", [struct.pack(entry, *([0] * 10))]
    for name, content in everything.items():
        start = header_size + len(body)
        headers.append(struct.pack(entry, names.index(name.encode() + b"\0"), 1, 0, 0, start, len(content), 0, 0, 1, 0))
        body += content
    table = header_size + len(body)
    ident = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    size = struct.calcsize(entry)
    word = "Q" if bits == 64 else "I"
    numbers = (1, 183, 1, 0, 0, table, 0, header_size, 0, 0, size, len(headers), len(headers) - 1)
    header = ident + struct.pack(f"{order}HHI{word}{word}{word}IHHHHHH", *numbers)
    return header + body + b"".join(headers)


def module(
    name: str = "nvidia",
    version: str = VERSION,
    *,
    release: str = RELEASE,
    license_: str = "Dual MIT/GPL",
    build_id: bytes = b"\x11" * 20,
    filling: int = 4096,
) -> bytes:
    """Return a kernel module without a signature."""
    fields = {
        "version": version,
        "license": license_,
        "srcversion": "994F25EB7E5C36B1A597251",
        "name": name.replace("-", "_"),
        "vermagic": f"{release} {ARM64_VERMAGIC} ",
    }
    info = b"".join(f"{key}={value}".encode() + b"\0" for key, value in fields.items())
    note = struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id
    return elf({".text": bytes(filling), ".modinfo": info, ".note.gnu.build-id": note})


def with_signature(content: bytes, signature: bytes) -> bytes:
    """Append a signature as the kernel expects it."""
    return content + signature + struct.pack(">5B3xI", 0, 0, 2, 0, 0, len(signature)) + MAGIC


def signed(content: bytes, by: Signer, algorithm: hashes.HashAlgorithm | None = None) -> bytes:
    """Return a signed module."""
    return with_signature(content, by.sign(content, algorithm))


# --- kernel images ---------------------------------------------------------------------------------------------------


def kernel(*signers: Signer) -> bytes:
    """Return an arm64 Image with the certificates of these signers inside."""
    head = b"MZ" + bytes(0x36) + b"ARM\x64" + bytes(0x100)
    return head + bytes(range(256)) * 16 + b"".join(one.der for one in signers) + bytes(2048)


def compressed(data: bytes, kind: str) -> bytes:
    """Compress data; zstd and lz4 are programs."""
    if kind == "gzip":
        return gzip.compress(data, mtime=0)
    if kind in ("xz", "xzkern"):
        return lzma.compress(data)
    if kind == "lzma":
        return lzma.compress(data, format=lzma.FORMAT_ALONE)
    program = {"zstd": ["zstd", "-qc"], "zstd22": ["zstd", "-qc"], "lz4": ["lz4", "-lqc"]}[kind]
    return subprocess.run(program, input=data, stdout=subprocess.PIPE, check=True).stdout


def zboot(data: bytes, kind: str) -> bytes:
    """Return a compressed EFI image."""
    packed = compressed(data, kind)
    head = struct.pack("<4s4sII8x32s", b"MZ\0\0", b"zimg", 0x1000, len(packed), kind.encode())
    return head.ljust(0x1000, b"\0") + packed + bytes(64)


def bzimage(data: bytes, kind: str) -> bytes:
    """Return an x86 kernel: two sectors of setup, and the compressed kernel with its size behind it."""
    packed = compressed(data, kind)
    packed = packed if kind == "gzip" else packed + struct.pack("<I", len(data))
    head = bytearray(1536)
    head[0x1F1] = 2
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", head, 0x206, 0x20F)
    struct.pack_into("<II", head, 0x248, 0x40, len(packed))
    return bytes(head) + bytes(0x40) + packed + bytes(32)


def efi(data: bytes, *, is_signed: bool) -> bytes:
    """Put the header of an EFI image into an arm64 Image, with or without a signature."""
    image = bytearray(data)
    struct.pack_into("<I", image, 0x3C, 0x40)
    image[0x40:0x44] = b"PE\0\0"
    struct.pack_into("<H", image, 0x40 + 24, 0x20B)
    struct.pack_into("<I", image, 0x40 + 24 + 108, 6)
    if is_signed:
        struct.pack_into("<II", image, 0x40 + 24 + 112 + 32, len(image), 512)
    return bytes(image)


# --- a box -----------------------------------------------------------------------------------------------------------

SIMPLE, ADVANCED = "gnulinux-simple-1234-ABCD", "gnulinux-advanced-1234-ABCD"


def grub_config(*releases: str, default: str = "0", style: str = "menu", timeout: int = 5) -> str:
    """Return a grub.cfg as grub-mkconfig writes it: the newest kernel first, all of them in a submenu."""

    def entry(title: str, name: str, release: str, indent: str = "") -> str:
        return (
            f"{indent}menuentry '{title}' --class ubuntu --class os $menuentry_id_option '{name}' {{\n"
            f"{indent}\trecordfail\n{indent}\tif [ x$grub_platform = xxen ]; then insmod xzio; fi\n"
            f"{indent}\tlinux\t/boot/vmlinuz-{release} root=UUID=1234-ABCD ro quiet\n"
            f"{indent}\tinitrd\t/boot/initrd.img-{release}\n{indent}}}\n"
        )

    head = (
        'if [ -s $prefix/grubenv ]; then\n  set have_grubenv=true\n  load_env\nfi\nif [ "${next_entry}" ] ; then\n'
        '   set default="${next_entry}"\n   set next_entry=\n   save_env next_entry\n   set boot_once=true\nelse\n'
        f'   set default="{default}"\nfi\nfunction recordfail {{\n  set recordfail=1\n}}\n'
        f'if [ "${{recordfail}}" = 1 ] ; then\n  set timeout=30\nelse\n  if [ x$feature_timeout_style = xy ] ; then\n'
        f"    set timeout_style={style}\n    set timeout={timeout}\n  elif sleep --interruptible 0 ; then\n"
        f"    set timeout=0\n  fi\nfi\n"
    )
    newest = entry("Ubuntu", SIMPLE, releases[0]) if releases else ""
    inner = "".join(
        entry(f"Ubuntu, with Linux {release}", f"gnulinux-{release}-advanced-1234-ABCD", release, "\t")
        for release in releases
    )
    return f"{head}{newest}submenu 'Advanced options for Ubuntu' $menuentry_id_option '{ADVANCED}' {{\n{inner}}}\n"


class Box:
    """A tree that stands for a healthy Spark with two kernels; its methods take things away or spoil them."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.trusted = signer()
        self.write("/proc/sys/kernel/osrelease", f"{RELEASE}\n")
        self.write("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\6\0\0\0\1")
        self.write("/proc/keys", keys(self.trusted))
        for release in (RELEASE, OLDER):
            self.kernel(release)
            self.modules(release)
        self.write("/boot/grub/grub.cfg", grub_config(RELEASE, OLDER))
        self.load(VERSION)
        self.libraries(VERSION)
        self.write("/sys/bus/pci/devices/000f:01:00.0/vendor", "0x10de\n")
        self.write("/sys/bus/pci/devices/000f:01:00.0/class", "0x030200\n")
        self.write(
            "/proc/driver/nvidia/gpus/000f:01:00.0/information",
            f"Model: \t\t NVIDIA GB10\nIRQ:   \t\t 283\nGPU Firmware: \t {VERSION}\n",
        )

    def path(self, name: str) -> pathlib.Path:
        return self.root / name.lstrip("/")

    def write(self, name: str, content: str | bytes) -> pathlib.Path:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        if path.name == "modules.dep" and isinstance(content, str):
            path.with_name("modules.dep.bin").write_bytes(modules_index(content))
        return path

    def remove(self, *names: str) -> None:
        for name in names:
            self.path(name).unlink()

    def kernel(self, release: str, image: bytes | None = None, *, initrd: bool = True) -> None:
        self.write(f"/boot/vmlinuz-{release}", kernel(self.trusted) if image is None else image)
        if initrd:
            self.write(f"/boot/initrd.img-{release}", "initrd")

    def folder(self, release: str, version: str = VERSION) -> str:
        return f"/lib/modules/{release}/kernel/nvidia-{version.partition('.')[0]}-open"

    def modules(
        self,
        release: str = RELEASE,
        version: str = VERSION,
        *,
        by: Signer | None = None,
        is_signed: bool = True,
        license_: str = "Dual MIT/GPL",
        folder: str = "",
        suffix: str = ".ko",
    ) -> None:
        """Put all four modules of a version there, and run what stands for depmod."""
        for name in MODULES:
            content = module(name, version, release=release, license_=license_)
            content = signed(content, by or self.trusted) if is_signed else content
            if suffix == ".ko.xz":
                content = lzma.compress(content)
            elif suffix == ".ko.zst":
                content = compressed(content, "zstd")
            where = f"/lib/modules/{release}/{folder}" if folder else self.folder(release, version)
            self.write(f"{where}/{name}{suffix}", content)
        self.depmod(release, folder or f"kernel/nvidia-{version.partition('.')[0]}-open", suffix)

    def depmod(self, release: str, folder: str, suffix: str = ".ko") -> None:
        lines = (
            f"{folder}/{name}{suffix}:{'' if name == 'nvidia' else f' {folder}/nvidia{suffix}'}\n" for name in MODULES
        )
        self.write(f"/lib/modules/{release}/modules.dep", "kernel/drivers/net/tun.ko.zst:\n" + "".join(lines))

    def load(self, version: str, *, taint: str = "O") -> None:
        self.write(
            "/proc/modules",
            "nvidia_uvm 1 0 - Live 0x0 (O)\nnvidia 2 1 nvidia_uvm, Live 0x0 (O)\nmlx5_core 3 0 - Live 0x0\n",
        )
        self.write("/sys/module/nvidia/version", f"{version}\n")
        self.write("/sys/module/nvidia/taint", f"{taint}\n")
        self.write(
            "/proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {version}  Release Build  (dvs@U22)\n"
            "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04.1)\n",
        )

    def libraries(self, *versions: str) -> None:
        for old in self.path("/usr/lib/aarch64-linux-gnu").glob("lib*.so.*"):
            old.unlink()
        for version in versions:
            for name in ("libcuda", "libnvidia-ml"):
                self.write(f"/usr/lib/aarch64-linux-gnu/{name}.so.{version}", "")

    def enroll(self, *owners: Signer) -> None:
        """Put certificates into the list of machine owner keys."""
        lists = b""
        for owner in owners:
            entry = bytes(16) + owner.der
            lists += (
                bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072")
                + struct.pack("<III", 28 + len(entry), 0, len(entry))
                + entry
            )
        self.write("/sys/firmware/efi/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23", b"\6\0\0\0" + lists)

    def secure_boot(self, *, on: bool) -> None:
        self.write(
            "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\6\0\0\0" + bytes([on])
        )

    def packages(self, versions: dict[str, str]) -> None:
        """Write dpkg's status. A value is a version, or "status|version"."""
        stanzas = []
        for name, value in versions.items():
            status, _, version = value.rpartition("|")
            stanzas.append(package(name, version, status or "install ok installed"))
        self.write("/var/lib/dpkg/status", "\n".join(stanzas))


def modules_index(text: str) -> bytes:
    """Return the lines of a modules.dep as depmod writes them for modprobe, with a node for each character."""
    tree: dict[t.Any, t.Any] = {}
    for line in text.splitlines():
        stem = pathlib.PurePosixPath(line.partition(":")[0]).name.partition(".")[0].replace("-", "_")
        node = tree
        for char in stem.encode():
            node = node.setdefault(char, {})
        node.setdefault("lines", []).append(line)
    data = bytearray(struct.pack(">II", 0xB007F457, 0x00020001) + bytes(4))

    def place(node: dict[t.Any, t.Any]) -> int:
        chars = sorted(key for key in node if isinstance(key, int))
        below = {char: place(node[char]) for char in chars}
        at, flags = len(data), 0
        if chars:
            flags |= 0x20000000
            data.extend(bytes((chars[0], chars[-1])))
            for char in range(chars[0], chars[-1] + 1):
                data.extend(struct.pack(">I", below.get(char, 0)))
        if "lines" in node:
            flags |= 0x40000000
            data.extend(struct.pack(">I", len(node["lines"])))
            for priority, line in enumerate(node["lines"]):
                data.extend(struct.pack(">I", priority) + line.encode() + b"\0")
        return at | flags

    data[8:12] = struct.pack(">I", place(tree))
    return bytes(data)


def package(name: str, version: str, status: str = "install ok installed") -> str:
    """Return a stanza of dpkg's status file."""
    return (
        f"Package: {name}\nStatus: {status}\nPriority: optional\nArchitecture: arm64\nVersion: {version}\n"
        f"Description: a package\n with Status: in its text\n"
    )


def keys(*signers: Signer) -> str:
    """Return /proc/keys with the certificates of these signers in it."""
    lines = ["02fd51a6 I------     1 perm 1f030000     0     0 keyring   .builtin_trusted_keys: 2\n"]
    for number, one in enumerate(signers):
        name = one.certificate.subject.rfc4514_string().removeprefix("CN=")
        described = f"{name}: {one.key_id}: X509.rsa {one.key_id[-8:]} []"
        lines.append(f"0a1b2c{number:02x} I------     1 perm 1f030000     0     0 asymmetri {described}\n")
    return "".join(lines)
