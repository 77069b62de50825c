# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The commands of the lab that need its Docker Engine."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
import time
from typing import TYPE_CHECKING, Any, TypeVar

import requests
from docker.errors import DockerException

from lab import engine_api, golden, hosts, models, needs, roots, ssh, status
from lab.build import prune, remove_tree, say, stop_all
from lab.driver import boxes, modules, packages
from lab.engine import image as engine_image
from lab.names import SUITES, HostSpec, LabError
from lab.scripted import image as scripted_image
from lab.state import Lab, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import docker


_T = TypeVar("_T")


@contextlib.contextmanager
def engine_errors() -> Iterator[None]:
    """Turn what the engine refuses into one sentence."""
    try:
        yield
    except (DockerException, requests.RequestException) as exc:
        msg = f"The Docker Engine of this machine refused: {exc}. Run the command again, or look into the engine's log."
        raise LabError(msg) from None


@dataclasses.dataclass(frozen=True)
class Built:
    """What hosts are made of."""

    host_images: dict[str, str]
    images: engine_image.EngineImages
    registry: scripted_image.Registry
    models: Path
    seed: golden.Seed
    keep: list[Path]
    """Artefacts in use; all others are out of date."""


def build_all(lab: Lab, client: docker.DockerClient, suites: list[str]) -> Built:
    """Build what is missing, side by side as far as one step does not need another."""
    jobs: list[concurrent.futures.Future[Any]] = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=16) as pool:

        def start(step: Callable[[], _T]) -> concurrent.futures.Future[_T]:
            job = pool.submit(step)
            jobs.append(job)
            return job

        wheels = start(lambda: engine_image.build_wheels(lab))
        base = start(lambda: engine_image.build_base(lab))
        host_images = {
            suite: start(functools.partial(engine_api.build_host_image, lab, client, suite)) for suite in suites
        }
        root = start(lambda: engine_image.build_root(lab, base.result(), wheels.result()))
        trained = start(lambda: models.build_models(lab, root.result()))
        images = start(lambda: engine_image.build_images(lab, root.result()))
        registry = start(lambda: scripted_image.build(lab, images.result()))
        seed = start(lambda: golden.build(lab, client, images.result(), host_images["trixie"].result()))
        try:
            done, _ = concurrent.futures.wait(jobs, return_when=concurrent.futures.FIRST_EXCEPTION)
            for job in done:
                job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop_all()
            raise
    keep = [wheels.result(), base.result(), root.result(), trained.result()]
    keep += [images.result().storage, registry.result().storage]
    keep += [seed.result().layer.parent, *(roots.host_base(lab, suite).path for suite in SUITES)]
    names = {suite: job.result() for suite, job in host_images.items()}
    return Built(names, images.result(), registry.result(), trained.result(), seed.result(), keep)


@engine_errors()
def up(lab: Lab, specs: list[HostSpec]) -> None:
    """Build and start the lab; quick when everything is there."""
    client = engine_api.connect()
    lab.cache.mkdir(parents=True, exist_ok=True)
    remove_tree(lab.tmp)
    built = build_all(lab, client, sorted({spec.suite for spec in specs} | {"trixie"}))
    # Gigabytes that are still to be written would keep the boxes waiting for the disk when they are first asked.
    os.sync()
    began = time.monotonic()
    plan = hosts.ensure_networks(lab, client)
    key = ssh.client_key(lab).with_suffix(".pub").read_text(encoding="utf-8")
    new = {}
    for spec in specs:
        contents = hosts.Contents(
            image=built.host_images[spec.suite],
            registry=built.registry.storage,
            seed_metadata=built.seed.metadata,
            seed_layer=built.seed.layer,
            seed_mount=built.seed.mount,
            models=built.models,
            public_key=key,
            host_key=ssh.host_key(lab, spec.name),
        )
        new[spec.name] = hosts.ensure_host(lab, client, spec, plan, contents)
    for spec in specs:
        hosts.wait_for_systemd(client.containers.get(lab.names.container(spec.name)), seconds=120)
    write_state(lab, client, built, models.facts(built.models))
    ssh.wait_for_login(lab, new)
    for spec in specs:
        say(spec.name, f"{'new' if new[spec.name] else 'was running'}, at {plan.address(spec)}")
    say("hosts", f"up in {time.monotonic() - began:.1f} s; log in with: ssh -F {lab.ssh_config} {specs[0].name}")
    # A host that this run did not touch may stand on older parts.
    on_demand = [step(lab).path for step in (modules.root_artefact, modules.artefact, packages.artefact)]
    prune(lab, [*built.keep, *on_demand, *hosts.parts_in_use(lab, client)])


@engine_errors()
def driver(lab: Lab, specs: list[HostSpec]) -> None:
    """Start hosts, fresh ones, that a driver can be installed on and booted with."""
    client = engine_api.connect()
    for spec in specs:
        hosts.remove_host(lab, client, spec.name)
    up(lab, specs)
    boxes.prepare(lab, client, [spec.name for spec in specs])


def write_state(lab: Lab, client: docker.DockerClient, built: Built, found: dict[str, Any]) -> None:
    """Write what others read: ssh_config, vars.json for the inventory and facts.json."""
    addresses = hosts.addresses(lab, client)
    deployable = {"base": built.images.base, "next": built.images.next, "scripted": built.registry.scripted}
    ssh.write_client_files(lab, addresses)
    variables = {
        "lab_images": {
            name: {"name": f"{engine_image.REGISTRY}/{image.name}", "tag": image.tag, "digest": image.digest}
            for name, image in deployable.items()
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


@engine_errors()
def clean(lab: Lab) -> None:
    """Remove everything that the lab made."""
    if needs.engine_answers():
        client = engine_api.connect()
        for name in (*hosts.down(lab, client), *hosts.remove_images(lab, client)):
            say("clean", f"removed {name}")
    elif lab.facts_file.exists():
        msg = "No Docker Engine answers, and the lab may have containers there: start it, then run clean again."
        raise LabError(msg)
    for path in (lab.tmp, lab.cache, lab.home):
        remove_tree(path)
    say("clean", f"removed {lab.home}")


@engine_errors()
def down(lab: Lab) -> None:
    """Remove the hosts and their networks; what was built stays."""
    for name in hosts.down(lab, engine_api.connect()):
        say("down", f"removed {name}")
    lab.ssh_config.unlink(missing_ok=True)


@engine_errors()
def show_status(lab: Lab, *, as_json: bool) -> None:
    """Print what is there."""
    state = status.gather(lab, engine_api.connect())
    print(json.dumps(state, indent=2, sort_keys=True) if as_json else status.render(state))
