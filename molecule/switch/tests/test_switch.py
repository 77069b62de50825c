# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An edit of one line of the inventory: the box serves the other model, and only it."""

from __future__ import annotations

import json
import pathlib

from tests.lab import kit

BOX = "spark-1"
SECRET = "only-the-container-may-know-this"
KEY = "and-this-is-for-clients-alone"


def test_naming_another_model_role_serves_it_and_only_it(tmp_path: pathlib.Path) -> None:
    inventory = kit.edited_inventory(tmp_path, {f"host_vars/{BOX}.yml": "model_roles: [extractor]\n"})
    run = kit.play(limit=BOX, inventory=inventory)
    assert run.status == "successful", run.failures
    said = "\n".join(run.messages)
    assert "stop and remove vllm-coordinator: the inventory no longer names it" in said
    assert "start vllm-extractor (model role extractor, port 8000)" in said
    assert kit.answers(BOX, model="extractor")
    assert kit.on_box(BOX, "docker ps --all --format '{{.Names}}'").split() == ["vllm-extractor"]
    assert "vllm-coordinator" not in kit.on_box(BOX, "ls /etc/systemd/system /etc/gb10-fleet/instances")
    assert kit.play(limit=BOX, inventory=inventory).count("changed", BOX) == 0


def test_two_instances_a_new_image_and_secrets_in_the_long_form(tmp_path: pathlib.Path) -> None:
    text = (
        "model_roles:\n"
        "  - role: coordinator\n    port: 8001\n    image:\n"
        '      name: "{{ lab_built.lab_images.next.name }}"\n      digest: "{{ lab_built.lab_images.next.digest }}"\n'
        "  - extractor\n"
        f"vllm_server_secret_env: {{DEMO_TOKEN: {SECRET}}}\nvllm_server_api_key: {KEY}\n"
    )
    inventory = kit.edited_inventory(tmp_path, {f"host_vars/{BOX}.yml": text})
    run = kit.play(limit=BOX, inventory=inventory, verbosity=3)
    assert run.status == "successful", run.failures
    assert kit.answers(BOX, model="coordinator", port=8001, key=KEY)
    assert kit.answers(BOX, model="extractor", port=8000, key=KEY)
    assert not kit.answers(BOX, model="extractor", port=8000)
    container = json.loads(kit.on_box(BOX, "docker inspect vllm-coordinator"))[0]
    assert container["Config"]["Image"].endswith(kit.lab_facts()["lab_images"]["next"]["digest"])
    assert f"DEMO_TOKEN={SECRET}" in container["Config"]["Env"]
    # The secrets are in the container, and nowhere that others can read.
    assert SECRET not in run.output
    assert KEY not in run.output
    for place in (
        "cat /etc/systemd/system/vllm-*.service /etc/gb10-fleet/instances/*.json /var/lib/gb10-fleet/records/*.json",
        "systemctl show vllm-coordinator.service",
        "ps -eww -o args",
        "journalctl --boot --output cat",
    ):
        shown = kit.on_box(BOX, place)
        assert SECRET not in shown, place
        assert KEY not in shown, place
    assert kit.on_box(BOX, "stat -c %a%U /etc/gb10-fleet/instances/coordinator.env").strip() == "600root"


def test_the_inventory_of_the_lab_brings_it_back() -> None:
    run = kit.play(limit=BOX)
    assert run.status == "successful", run.failures
    assert kit.on_box(BOX, "docker ps --all --format '{{.Names}}'").split() == ["vllm-coordinator"]
    assert kit.answers(BOX, model="coordinator")
