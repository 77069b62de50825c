# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The simulated boxes: containers with systemd as PID 1, an SSH server and a container engine of their own."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docker.errors import NotFound
from docker.types import IPAMConfig, IPAMPool

from lab import roots
from lab.build import key_of, say
from lab.engine_api import File, ask, put_files, put_tree
from lab.names import LABEL, TWINS, AddressPlan, HostSpec, LabError, Names, choose_block

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

    from lab.state import Lab

# What systemd, udev, netplan, a nested container engine and a reboot need. CAP_SYS_RESOURCE, which --privileged would
# ask for, is not there everywhere.
_CAPABILITIES = ["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "SYSLOG", "SYS_BOOT"]

_REGISTRY = "/srv/gb10-lab/registry"
_LAYER = "/srv/gb10-lab/layer"
_MODELS = "/var/lib/gb10-fleet/huggingface"


@dataclasses.dataclass(frozen=True)
class Cgroups:
    """How a container gets a control group tree that systemd can work in."""

    options: dict[str, Any]
    environment: dict[str, str]
    arguments: list[str]


def cgroups(root: Path = Path("/sys/fs/cgroup")) -> Cgroups:
    """Choose by looking: version 2 when the unified hierarchy has controllers, else version 1."""
    if (root / "cgroup.controllers").exists():
        return Cgroups({"cgroupns": "private"}, {}, [])
    return Cgroups(
        {"cgroupns": "host", "volumes": {str(root): {"bind": str(root), "mode": "rw"}}},
        {"SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE": "1"},
        ["systemd.unified_cgroup_hierarchy=0"],
    )


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a host is made with. A host whose contents changed is made anew."""

    image: str
    registry: Path
    seed_metadata: Path
    seed_layer: Path
    seed_mount: str
    models: Path
    public_key: str
    host_key: Path

    @property
    def key(self) -> str:
        parts = (self.image, self.registry.name, self.seed_metadata.parent.name, self.models.name, self.public_key)
        return key_of(*parts, self.host_key, Path(__file__))


# --------------------------------------------------------------------------------------------------------------------
# Networks


def _used_by_machine(client: docker.DockerClient, names: Names) -> list[str]:
    """Networks that others on this machine use."""
    routes = subprocess.run(["ip", "-json", "-4", "route", "show"], capture_output=True, text=True, check=True)
    used = []
    own_bridges = set()
    for network in client.networks.list():
        own = network.attrs.get("Labels", {}).get(LABEL) == names.lab
        if own:
            own_bridges.add(f"br-{str(network.id)[:12]}")
        else:
            used += [
                pool["Subnet"]
                for pool in network.attrs["IPAM"].get("Config") or []
                if ":" not in pool.get("Subnet", ":")
            ]
    for route in json.loads(routes.stdout or "[]"):
        if route.get("dst", "default") != "default" and route.get("dev") not in own_bridges:
            used.append(route["dst"])
    return used


def ensure_networks(lab: Lab, client: docker.DockerClient) -> AddressPlan:
    """The management network and one network for each pair of twins; they keep their addresses while they exist."""
    names = lab.names
    wanted = (names.network, *names.twin_networks)
    existing = {
        str(network.name): network for network in client.networks.list(filters={"label": f"{LABEL}={names.lab}"})
    }
    if all(name in existing for name in wanted):
        subnet = existing[names.network].attrs["IPAM"]["Config"][0]["Subnet"]
        return AddressPlan(ipaddress.IPv4Network(subnet).supernet(new_prefix=22))
    if existing:
        down(lab, client)
    plan = choose_block(names.lab, _used_by_machine(client, names))
    for number, name in enumerate(wanted):
        options = {}
        if number:
            # A cable: no way out, and room for jumbo frames. Not "internal": that filters addresses which the fabric
            # brings along.
            options = {
                "com.docker.network.bridge.enable_ip_masquerade": "false",
                "com.docker.network.driver.mtu": "9000",
            }
        pool = IPAMPool(subnet=str(plan.subnets[number]), gateway=plan.gateway(number))
        client.networks.create(
            name, driver="bridge", options=options, ipam=IPAMConfig(pool_configs=[pool]), labels=names.labels
        )
    say("networks", f"{plan.subnets[0]} for SSH and HTTP; two for the twins {' and '.join(TWINS)}")
    return plan


# --------------------------------------------------------------------------------------------------------------------
# Containers


def _options(names: Names, purpose: str) -> tuple[dict[str, Any], Cgroups]:
    groups = cgroups()
    options = {
        "detach": True,
        "labels": {**names.labels, f"{LABEL}.host": purpose},
        "cap_add": _CAPABILITIES,
        "security_opt": ["seccomp=unconfined", "apparmor=unconfined"],
        "tmpfs": {"/run": "", "/run/lock": "", "/tmp": "exec"},  # noqa: S108 - in the container, made for it
        "shm_size": "2g",
        **groups.options,
    }
    options["volumes"] = dict(options.get("volumes", {}))
    return options, groups


def create_builder(lab: Lab, client: docker.DockerClient, image: str, *, data: Path, registry: Path) -> Container:
    """A host without network whose container engine keeps its data in a directory of ours."""
    spec = HostSpec("builder-1")
    name = lab.names.container(spec.name)
    remove_container(client, name)
    options, groups = _options(lab.names, spec.name)
    options["volumes"][str(data)] = {"bind": "/var/lib/docker", "mode": "rw"}
    options["volumes"][str(registry)] = {"bind": _REGISTRY, "mode": "ro"}
    options["tmpfs"]["/var/lib/containerd"] = ""
    return client.containers.create(
        image,
        ["/sbin/lab-init", *groups.arguments],
        name=name,
        hostname=spec.name,
        network_mode="none",
        environment={
            "container": "docker",
            "LAB_LINKS": "",
            "LAB_ADDRESS": "",
            "LAB_GATEWAY": "",
            **groups.environment,
        },
        **options,
    )


def ensure_host(lab: Lab, client: docker.DockerClient, spec: HostSpec, plan: AddressPlan, contents: Contents) -> bool:
    """Make and start one host; True when it is new."""
    name = lab.names.container(spec.name)
    try:
        existing = client.containers.get(name)
    except NotFound:
        pass
    else:
        # A host is started only when it is whole.
        if existing.labels.get(f"{LABEL}.contents") == contents.key and existing.status != "created":
            if existing.status != "running":
                existing.start()
            return False
        say(spec.name, "half made or made from older parts: making it anew")
        remove_host(lab, client, spec.name)
    options, groups = _options(lab.names, spec.name)
    options["labels"][f"{LABEL}.contents"] = contents.key
    options["labels"][f"{LABEL}.suite"] = spec.suite
    volumes = options["volumes"]
    for purpose, place in (("docker", "/var/lib/docker"), ("containerd", "/var/lib/containerd")):
        volume = client.volumes.create(lab.names.volume(spec.name, purpose), labels=lab.names.labels)
        volumes[volume.name] = {"bind": place, "mode": "rw"}
    volumes[str(contents.registry)] = {"bind": _REGISTRY, "mode": "ro"}
    volumes[str(contents.seed_layer)] = {"bind": _LAYER, "mode": "ro"}
    links = [f"{twin},{plan.address(spec, n)},{plan.mac(spec, n)}" for n, twin in enumerate(TWINS, start=1)]
    container = client.containers.create(
        contents.image,
        ["/sbin/lab-init", *groups.arguments],
        name=name,
        hostname=spec.name,
        restart_policy={"Name": "always"},
        environment={
            "container": "docker",
            "LAB_ADDRESS": plan.address(spec),
            "LAB_GATEWAY": plan.gateway(),
            "LAB_LINKS": " ".join(links),
            **groups.environment,
        },
        network=lab.names.network,
        networking_config={
            lab.names.network: client.api.create_endpoint_config(ipv4_address=plan.address(spec), aliases=[spec.name])
        },
        **options,
    )
    for number, network in enumerate(lab.names.twin_networks, start=1):
        client.networks.get(network).connect(container, ipv4_address=plan.address(spec, number))
    put_tree(container, contents.seed_metadata, "/var/lib/docker", exclude=f"./{contents.seed_mount}")
    put_tree(container, contents.models, _MODELS, exclude="./models.json")
    put_files(
        container,
        [
            # See lab/host/lab-layer.
            File("/etc/gb10-lab/layer", contents.seed_mount.encode(), 0o644),
            File("/root/.ssh/authorized_keys", contents.public_key.encode(), 0o600),
            File("/home/spark/.ssh/authorized_keys", contents.public_key.encode(), 0o600, owner=roots.USER_ID),
            File("/etc/ssh/ssh_host_ed25519_key", contents.host_key.read_bytes(), 0o600),
            File("/etc/ssh/ssh_host_ed25519_key.pub", contents.host_key.with_suffix(".pub").read_bytes(), 0o644),
        ],
    )
    container.start()
    return True


def addresses(lab: Lab, client: docker.DockerClient) -> dict[str, str]:
    """Name to address of every host of the lab, also of those that an earlier command added."""
    found = {}
    prefix = f"{lab.names.prefix}-"
    for container in client.containers.list(all=True, filters={"label": f"{LABEL}={lab.names.lab}"}):
        settings = container.attrs["NetworkSettings"]["Networks"].get(lab.names.network)
        if settings is not None:
            address = (settings.get("IPAMConfig") or {}).get("IPv4Address") or settings["IPAddress"]
            found[str(container.name).removeprefix(prefix)] = address
    return dict(sorted(found.items()))


def parts_in_use(lab: Lab, client: docker.DockerClient) -> set[Path]:
    """Artefacts that any host of the lab has mounted."""
    found = set()
    for container in client.containers.list(all=True, filters={"label": f"{LABEL}={lab.names.lab}"}):
        for mount in container.attrs["Mounts"]:
            source = Path(mount.get("Source", ""))
            if source.is_relative_to(lab.cache):
                found.add(lab.cache / source.relative_to(lab.cache).parts[0])
    return found


def wait_for_systemd(container: Container, seconds: float) -> None:
    """Wait until systemd has started everything."""
    deadline = time.monotonic() + seconds
    state = "unknown"
    while time.monotonic() < deadline:
        container.reload()
        if container.status == "running":
            state = ask(container, ["systemctl", "is-system-running"])[1]
            if state in {"running", "degraded"}:
                break
        time.sleep(0.3)
    if state == "running":
        return
    detail = ""
    if state == "degraded":
        detail = ask(container, ["systemctl", "list-units", "--failed", "--plain", "--no-legend"])[1]
    msg = f'Host "{container.name}" is "{state}", not running, after {seconds:.0f} s. {detail}'
    raise LabError(msg)


def remove_container(client: docker.DockerClient, name: str) -> None:
    try:
        client.containers.get(name).remove(force=True, v=True)
    except NotFound:
        return


def remove_host(lab: Lab, client: docker.DockerClient, host: str) -> None:
    """Remove one host with everything that is on it."""
    remove_container(client, lab.names.container(host))
    for purpose in ("docker", "containerd"):
        try:
            client.volumes.get(lab.names.volume(host, purpose)).remove(force=True)
        except NotFound:
            continue


def down(lab: Lab, client: docker.DockerClient) -> list[str]:
    """Remove the lab's containers, volumes and networks; the names of what was removed."""
    mine: dict[str, str | list[str] | bool] = {"label": f"{LABEL}={lab.names.lab}"}
    removed: list[str] = []
    for container in client.containers.list(all=True, filters=mine):
        container.remove(force=True, v=True)
        removed.append(str(container.name))
    for volume in client.volumes.list(filters=mine):
        volume.remove(force=True)
        removed.append(str(volume.name))
    for network in client.networks.list(filters=mine):
        network.remove()
        removed.append(str(network.name))
    return removed


def remove_images(lab: Lab, client: docker.DockerClient) -> list[str]:
    """Remove the lab's images from the machine's engine."""
    removed: list[str] = []
    for image in client.images.list(filters={"label": f"{LABEL}={lab.names.lab}"}):
        removed += image.tags or [str(image.id)]
        client.images.remove(str(image.id), force=True)
    return removed
