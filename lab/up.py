# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`lab up`: build what is missing, side by side where it can be, then start the hosts."""

from __future__ import annotations

import concurrent.futures
import time
from typing import Any

import docker

from lab import engine_api, golden, hosts, models, roots, ssh
from lab.build import prune, remove_tree, say
from lab.engine import image as engine_image
from lab.names import SUITES, HostSpec, LabError
from lab.state import Lab, write_json


def up(lab: Lab, specs: list[HostSpec]) -> None:
    """Build and start the lab; quick when everything is there."""
    client = engine_api.connect()
    lab.cache.mkdir(parents=True, exist_ok=True)
    remove_tree(lab.tmp)
    suites = sorted({spec.suite for spec in specs} | {"trixie"})
    with concurrent.futures.ThreadPoolExecutor() as pool:
        wheel_files = pool.submit(engine_image.build_wheels, lab)
        engine_base = pool.submit(engine_image.build_base, lab)
        host_images = {suite: pool.submit(engine_api.build_host_image, lab, client, suite) for suite in suites}
        root = pool.submit(lambda: engine_image.build_root(lab, engine_base.result(), wheel_files.result()))
        trained = pool.submit(lambda: models.build_models(lab, root.result()))
        images = pool.submit(lambda: engine_image.build_images(lab, root.result()))
        seeded = pool.submit(lambda: golden.build(lab, client, images.result(), host_images["trixie"].result()))
        jobs = [wheel_files, engine_base, *host_images.values(), root, trained, images, seeded]
        done, _ = concurrent.futures.wait(jobs, return_when=concurrent.futures.FIRST_EXCEPTION)
        failed = [job for job in done if job.exception() is not None]
        if failed:
            pool.shutdown(wait=False, cancel_futures=True)
            failed[0].result()
    seed = seeded.result()
    keep = [wheel_files.result(), engine_base.result(), root.result(), trained.result(), images.result().storage]
    keep += [seed.layer.parent, *(roots.host_base(lab, suite).path for suite in SUITES)]
    began = time.monotonic()
    plan = hosts.ensure_networks(lab, client)
    key = ssh.client_key(lab).with_suffix(".pub").read_text(encoding="utf-8")
    new = {
        spec.name: hosts.ensure_host(
            lab,
            client,
            spec,
            plan,
            hosts.Contents(
                image=host_images[spec.suite].result(),
                registry=images.result().storage,
                seed_metadata=seed.metadata,
                seed_layer=seed.layer,
                seed_mount=seed.mount,
                models=trained.result(),
                public_key=key,
                host_key=ssh.host_key(lab, spec.name),
            ),
        )
        for spec in specs
    }
    for spec in specs:
        hosts.wait_for_systemd(client.containers.get(lab.names.container(spec.name)), seconds=120)
    write_state(lab, client, images.result(), models.facts(trained.result()))
    ssh.wait_for_login(lab, new)
    for spec in specs:
        say(spec.name, f"{'new' if new[spec.name] else 'running'} at {plan.address(spec)}")
    say("hosts", f"up in {time.monotonic() - began:.1f} s; ssh -F {lab.ssh_config} {specs[0].name}")
    prune(lab, keep)


def running_hosts(lab: Lab, client: docker.DockerClient) -> dict[str, str]:
    """Name to address of every host of the lab, also of those that an earlier command added."""
    found = {}
    prefix = f"{lab.names.prefix}-"
    for container in client.containers.list(all=True, filters={"label": f"{hosts.LABEL}={lab.names.lab}"}):
        settings = container.attrs["NetworkSettings"]["Networks"].get(lab.names.network)
        if settings is not None:
            address = (settings.get("IPAMConfig") or {}).get("IPv4Address") or settings["IPAddress"]
            found[container.name.removeprefix(prefix)] = address
    return dict(sorted(found.items()))


def write_state(
    lab: Lab, client: docker.DockerClient, images: engine_image.EngineImages, found: dict[str, Any]
) -> None:
    """Write what others read: ssh_config, vars.json for the inventory and facts.json."""
    addresses = running_hosts(lab, client)
    ssh.write_client_files(lab, addresses)
    variables = {
        "lab_images": {
            name: {"name": f"{engine_image.REGISTRY}/{image.name}", "tag": image.tag, "digest": image.digest}
            for name, image in (("base", images.base), ("next", images.next))
        },
        "lab_models": found,
        "lab_hosts": {host: {"address": address} for host, address in addresses.items()},
    }
    write_json(lab.vars_file, variables)
    write_json(
        lab.facts_file,
        {
            **variables,
            "lab_id": lab.names.lab,
            "vllm": engine_image.VERSION,
            "ssh_config": str(lab.ssh_config),
            "user": ssh.USER,
        },
    )


def clean(lab: Lab, client: docker.DockerClient | None) -> None:
    """Remove everything that the lab made."""
    if client is not None:
        for name in (*hosts.down(lab, client), *hosts.remove_images(lab, client)):
            say("clean", f"removed {name}")
    elif lab.facts_file.exists():
        msg = "No Docker Engine answers, and the lab may have containers there: start it, then run clean again."
        raise LabError(msg)
    for path in (lab.tmp, lab.cache, lab.home):
        remove_tree(path)
    say("clean", f"removed {lab.home}")


def down(lab: Lab, client: docker.DockerClient) -> None:
    """Remove the hosts and their networks; what was built stays."""
    for name in hosts.down(lab, client):
        say("down", f"removed {name}")
    lab.ssh_config.unlink(missing_ok=True)
