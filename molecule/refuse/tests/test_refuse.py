# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is refused, and that the engine which serves goes on serving."""

from __future__ import annotations

import collections.abc as c
import pathlib

import pytest

from tests.lab import kit

BOX, NAME = "spark-1", "coordinator"
NOWHERE = "sha256:" + "0" * 63 + "1"


@pytest.fixture
def untouched() -> c.Iterator[None]:
    """The engine before is the engine after, and it answers."""

    def engine() -> str:
        return kit.on_box(BOX, "docker inspect --format '{{.Id}} {{.State.StartedAt}}' vllm-coordinator")

    before = engine()
    yield
    assert engine() == before
    assert kit.answers(BOX, model=NAME)


def box_serves(folder: pathlib.Path, text: str) -> pathlib.Path:
    """Return an inventory in which the box serves something else."""
    return kit.edited_inventory(folder, {f"host_vars/{BOX}.yml": text})


@pytest.mark.usefixtures("untouched")
def test_a_digest_that_does_not_exist(tmp_path: pathlib.Path) -> None:
    text = f'model_roles:\n  - {{role: {NAME}, image: {{digest: "{NOWHERE}"}}}}\n'
    run = kit.play(limit=BOX, inventory=box_serves(tmp_path, text))
    assert run.status == "failed"
    assert f"@{NOWHERE} could not be pulled: " in run.failures[0]
    assert "manifest unknown" in run.failures[0]


@pytest.mark.usefixtures("untouched")
def test_a_registry_that_is_down(tmp_path: pathlib.Path) -> None:
    text = (
        f"model_roles:\n  - role: {NAME}\n    image:\n"
        '      name: "{{ lab_built.lab_images.next.name }}"\n      digest: "{{ lab_built.lab_images.next.digest }}"\n'
    )
    following = kit.lab_facts()["lab_images"]["next"]
    kit.on_box(BOX, f"docker rmi {following['name']}@{following['digest']}", check=False)
    kit.on_box(BOX, "systemctl stop lab-registry")
    try:
        run = kit.play(limit=BOX, inventory=box_serves(tmp_path, text))
    finally:
        kit.on_box(BOX, "systemctl start lab-registry")
    assert run.status == "failed"
    assert "connection refused" in run.failures[0]


@pytest.mark.usefixtures("untouched")
def test_a_context_that_does_not_fit_the_box(tmp_path: pathlib.Path) -> None:
    text = f"model_roles:\n  - {{role: {NAME}, kv_cache_memory_bytes: 999999999999}}\n"
    run = kit.play(limit=BOX, inventory=box_serves(tmp_path, text))
    assert run.status == "failed"
    assert "nothing on it was changed" in run.failures[0]
    assert "The largest that fits" in run.failures[0]


@pytest.mark.usefixtures("untouched")
def test_an_image_without_code_for_a_gpu() -> None:
    # The engine of these boxes runs on the CPU. Where it had to run on a GPU, it could not.
    run = kit.play(limit=BOX, extra={"vllm_server_check_kernels": "always"})
    assert run.status == "failed"
    assert "nothing on it was changed" in run.failures[0]
    assert "has no code for any GPU" in run.failures[0]
    # What was found is kept, by the image's id.
    kept = kit.on_box(
        BOX, "find /var/lib/gb10-fleet/kernels -name 'sha256-*.json' -newermt '-10 minutes' -printf '%f %s\\n'"
    )
    assert len(kept.splitlines()) == 1
    again = kit.play(limit=BOX, extra={"vllm_server_check_kernels": "always"}, verbosity=1)
    assert again.status == "failed"
    assert '"cached": true' in again.output or "cached: true" in again.output


@pytest.mark.usefixtures("untouched")
def test_a_flag_that_this_vllm_does_not_have(tmp_path: pathlib.Path) -> None:
    text = f"model_roles:\n  - {{role: {NAME}, args: {{swap_space: 4}}}}\n"
    run = kit.play(limit=BOX, inventory=box_serves(tmp_path, text))
    assert run.status == "failed"
    assert "swap-space" in "\n".join(run.failures)


@pytest.mark.usefixtures("untouched")
def test_a_unit_of_somebody_else(tmp_path: pathlib.Path) -> None:
    path = "/etc/systemd/system/vllm-mine.service"
    kit.on_box(BOX, f"printf '[Service]\\nExecStart=/bin/true\\n' > {path}")
    try:
        text = f"model_roles:\n  - {NAME}\n  - {{role: extractor, name: mine, port: 8001}}\n"
        run = kit.play(limit=BOX, inventory=box_serves(tmp_path, text))
        assert kit.on_box(BOX, f"cat {path}").startswith("[Service]")
    finally:
        kit.on_box(BOX, f"rm {path}")
    assert run.status == "failed"
    assert "vllm-mine.service" in run.failures[0]
    assert "did not write" in run.failures[0]
