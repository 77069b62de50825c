# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults of a deployment: what cannot be served is refused while the old engine serves on."""

from __future__ import annotations

import collections.abc as c
import contextlib
import subprocess

from tests.lab import kit
from tests.lab.faults.bench import HUB, Bench, text_of
from tests.lab.faults.entry import By, Collection, End, When

DEPLOYING = Collection(When.DEPLOY, bench="a")
NOWHERE = "sha256:" + "0" * 63 + "1"
NEXT_IMAGE = (
    "    image:\n"
    '      name: "{{ lab_built.lab_images.next.name }}"\n      digest: "{{ lab_built.lab_images.next.digest }}"\n'
)


def refused(bench: Bench, model_role: str) -> str:
    """Deploy something that cannot be, and return what the user is told."""
    run = bench.deploy(f"model_roles:\n{model_role}{bench.settings}")
    assert run.status == "failed", run.output[-3000:]
    return text_of(run)


@contextlib.contextmanager
def meanwhile(bench: Bench, before: str, after: str) -> c.Iterator[None]:
    """Have something be so on a box for a while."""
    bench.run(before)
    try:
        yield
    finally:
        bench.run(after)


def forget(bench: Bench, image: str) -> None:
    """Take an image away from a box."""
    found = kit.lab_facts()["lab_images"][image]
    bench.run(f"docker rmi {found['name']}@{found['digest']}", check=False)


@DEPLOYING.add(
    "no registry has the image",
    by=By.PREPARATION,
    says=("could not be pulled:", "manifest unknown"),
    end=End.UNTOUCHED,
)
def image_missing(bench: Bench) -> str:
    return refused(bench, f'  - {{role: scripted, image: {{digest: "{NOWHERE}"}}}}\n')


@DEPLOYING.add(
    "the digest is that of something else",
    by=By.PREPARATION,
    says=("could not be pulled:",),
    end=End.UNTOUCHED,
)
def image_is_none(bench: Bench) -> str:
    # A layer lies in the registry under its digest, too; it is no image.
    found = kit.lab_facts()["lab_images"]["scripted"]
    inspect = f"docker image inspect --format '{{{{index .RootFS.Layers 0}}}}' {found['name']}@{found['digest']}"
    digest = bench.run(inspect).strip()
    return refused(bench, f'  - {{role: scripted, image: {{digest: "{digest}"}}}}\n')


@DEPLOYING.add(
    "the registry is down",
    by=By.PREPARATION,
    says=("could not be pulled:", "connection refused"),
    end=End.UNTOUCHED,
)
def registry_down(bench: Bench) -> str:
    forget(bench, "next")
    with meanwhile(bench, "systemctl stop lab-registry", "systemctl start lab-registry"):
        return refused(bench, f"  - role: scripted\n{NEXT_IMAGE}")


@DEPLOYING.add(
    "the disk is full where Docker Engine keeps what it downloads",
    by=By.PREPARATION,
    says=("could not be pulled:", "no space left on device"),
    end=End.UNTOUCHED,
)
def disk_full_for_image(bench: Bench) -> str:
    forget(bench, "next")
    place = "/var/lib/docker/tmp"
    fill = f"mount -t tmpfs -o size=4k tmpfs {place} && head -c 4096 /dev/zero > {place}/ballast"
    with meanwhile(bench, fill, f"umount {place}"):
        return refused(bench, f"  - role: scripted\n{NEXT_IMAGE}")


@DEPLOYING.add(
    "the plan does not fit the box",
    by=By.PREPARATION,
    says=("nothing on it was changed", "The largest that fits"),
    end=End.UNTOUCHED,
)
def plan_does_not_fit(bench: Bench) -> str:
    return refused(bench, "  - {role: scripted, kv_cache_memory_bytes: 999999999999}\n")


@DEPLOYING.add(
    "this vLLM has no such flag",
    by=By.VALIDATION,
    says=("swap-space",),
    end=End.UNTOUCHED,
)
def flag_unknown(bench: Bench) -> str:
    return refused(bench, "  - {role: scripted, args: {swap_space: 4}}\n")


@DEPLOYING.add(
    "this vLLM has no such parser of tool calls",
    by=By.VALIDATION,
    says=("no_such_parser",),
    end=End.UNTOUCHED,
)
def parser_missing(bench: Bench) -> str:
    return refused(bench, "  - {role: scripted, tool_call_parser: no_such_parser}\n")


@DEPLOYING.add(
    "the KV cache is too small for one request",
    by=By.PREPARATION,
    says=("nothing on it was changed",),
    end=End.UNTOUCHED,
)
def kv_cache_too_small(bench: Bench) -> str:
    return refused(bench, "  - {role: scripted, kv_cache_memory_bytes: 65536}\n")


@DEPLOYING.add(
    "a unit of that name is somebody else's",
    by=By.PREPARATION,
    says=("vllm-mine.service", "did not write"),
    end=End.UNTOUCHED,
)
def foreign_unit(bench: Bench) -> str:
    path = "/etc/systemd/system/vllm-mine.service"
    with meanwhile(bench, f"printf '[Service]\\nExecStart=/bin/true\\n' > {path}", f"rm {path}"):
        said = refused(bench, "  - scripted\n  - {role: extractor, name: mine, port: 8001}\n")
        assert bench.run(f"cat {path}").startswith("[Service]")
    return said


@DEPLOYING.add(
    "the weights are not there, and the hub cannot be reached",
    by=By.PREPARATION,
    says=("garbage", "Error"),
    end=End.UNTOUCHED,
)
def weights_missing(bench: Bench) -> str:
    folder = f"{HUB}/models--gb10-lab--garbage"
    with meanwhile(bench, f"mv {folder} /var/tmp/kept", f"rm -rf {folder} && mv /var/tmp/kept {folder}"):
        return refused(bench, "  - {role: garbage, env: {HF_ENDPOINT: 'http://127.0.0.1:9'}}\n")


@DEPLOYING.add(
    "a shard of the weights has its size and nothing in it",
    by=By.PREPARATION,
    says=("model.safetensors",),
    end=End.UNTOUCHED,
)
def weights_hollow(bench: Bench) -> str:
    blob = f"$(readlink -f {HUB}/models--gb10-lab--garbage/snapshots/*/model.safetensors)"
    hollow = f"b={blob}; cp --preserve=all $b /var/tmp/kept && truncate -s 0 $b && truncate -r /var/tmp/kept $b"
    with meanwhile(bench, hollow, f"cp --preserve=all /var/tmp/kept {blob}"):
        return refused(bench, "  - {role: garbage, env: {HF_ENDPOINT: 'http://127.0.0.1:9'}}\n")


@DEPLOYING.add(
    "Docker Engine does not answer",
    by=By.PREPARATION,
    says=("docker", "Docker Engine"),
    end=End.HEALED,
    bench="one",
)
def docker_not_answering(bench: Bench) -> str:
    with meanwhile(bench, "systemctl stop docker.socket docker.service", "systemctl start docker"):
        return refused(bench, f"  - role: scripted\n{NEXT_IMAGE}")


@DEPLOYING.add(
    "Ansible comes without the right to become root",
    by=By.PREPARATION,
    says=("sudo",),
    end=End.UNTOUCHED,
    bench="one",
)
def no_sudo(bench: Bench) -> str:
    place, kept = "/etc/sudoers.d/gb10-lab", "/var/tmp/sudoers"
    bench.run(f"mv {place} {kept}")
    try:
        return refused(bench, f"  - role: scripted\n{NEXT_IMAGE}")
    finally:
        # Not through sudo: that is what was taken away.
        ssh = ["ssh", "-F", str(kit.LAB / "ssh_config"), f"root@{bench.box}", f"mv {kept} {place}"]
        subprocess.run(ssh, check=True, capture_output=True)
