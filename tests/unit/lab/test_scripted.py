# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from typing import TYPE_CHECKING

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _boot_log, _probe
from lab.scripted import engine, faults, image
from tests.unit.support.faults import FAULTS
from tests.unit.support.probing import free_port, ids, look

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
REVISION = "0123456789012345678901234567890123456789"
ARGUMENTS = ("--revision", REVISION, "--max-model-len", "512", "--kv-cache-memory-bytes", "67108864", "--enforce-eager")


@dataclasses.dataclass(frozen=True)
class Unpacked:
    """The image's own layer, unpacked, and a home with a checkpoint in it."""

    root: Path
    home: Path
    port: int

    @property
    def fault_file(self) -> Path:
        return self.home / ".cache" / "lab-fault"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        """Start the engine as the image does, with nothing on its path but what is in the image."""
        argv = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(self.root / image.HOME)!r})"]
        argv[-1] += "; import runpy; runpy.run_module('lab.scripted.engine', run_name='__main__', alter_sys=True)"
        given = ["serve", "gb10-lab/coordinator", "--host", "127.0.0.1", "--port", str(self.port), *arguments]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "GB10_LAB_BOOT_S": "0", **env}
        return subprocess.Popen(
            [*argv, *given], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    @contextlib.contextmanager
    def serving(self, **env: str) -> Iterator[subprocess.Popen[str]]:
        process = self.start(*ARGUMENTS, "--served-model-name", "scripted", **env)
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=20)


@pytest.fixture
def unpacked(tmp_path: Path) -> Unpacked:
    with tarfile.open(fileobj=io.BytesIO(image.layer_of(image.contents()))) as archive:
        archive.extractall(tmp_path / "root", filter="data")
    snapshot = tmp_path / "home/.cache/huggingface/hub/models--gb10-lab--coordinator/snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    return Unpacked(tmp_path / "root", tmp_path / "home", free_port())


def test_the_layer_is_the_same_every_time_and_its_vllm_can_be_run() -> None:
    layer = image.layer_of(image.contents())
    assert layer == image.layer_of(image.contents())
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        assert archive.getmember("usr/local/bin/vllm").mode == 0o755


def test_it_boots_answers_and_ends_in_order(unpacked: Unpacked) -> None:
    with unpacked.serving() as process:
        verdict, _ = wait_for(unpacked, model="scripted", kind="chat")
        assert verdict.stage == "ready"
        process.terminate()
        said, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    report = _boot_log.parse_boot_logs([_boot_log.Log("unit", said)])
    # 64 MiB in two layers of two heads with 32 numbers of two bytes, keys and values.
    assert f"{67108864 // (2 * 2 * 2 * 32 * 2):,}" in said
    assert report.first is None


def wait_for(unpacked: Unpacked, **options: object) -> tuple[_probe.Verdict, list[str]]:
    lines: list[str] = []
    verdict = _probe.wait_until_ready(
        _probe.Options(unpacked.url, **options),  # type: ignore[arg-type]
        timeout=60,
        interval=0.1,
        strike_interval=0.1,
        progress=lines.append,
    )
    return verdict, lines


def test_a_fault_comes_and_goes_while_it_serves(unpacked: Unpacked) -> None:
    with unpacked.serving():
        assert wait_for(unpacked)[0].ready
        for name in ("garbage_symbols", "wrong_model", "dies_at_first_message", "auth_required"):
            unpacked.fault_file.write_text(f"{name}\n")
            seen = _probe.probe(_probe.Options(unpacked.url, model="scripted"), timeout=20)
            assert seen.stage == FAULTS[name].stage, name
            unpacked.fault_file.unlink()
            assert _probe.probe(_probe.Options(unpacked.url, model="scripted"), timeout=20).ready, name


def test_the_environment_gives_a_fault_to_a_whole_deployment(unpacked: Unpacked) -> None:
    with unpacked.serving(GB10_LAB_FAULT="empty"):
        verdict, _ = wait_for(unpacked)
    assert (verdict.stage, *ids(verdict)[:1]) == ("no_answer", "EMPTY_ANSWER")


@pytest.mark.parametrize(
    ("fault", "status", "word"),
    [
        ("exit_0_at_boot", 0, "version 0.32.0"),
        ("exit_137_at_boot", 137, "version 0.32.0"),
        ("kv_too_small", 1, "estimated maximum model length is 169104"),
        ("no_kernel_image", 1, "no kernel image is available"),
        ("no_room_for_weights", 1, "less than desired GPU memory"),
    ],
)
def test_a_boot_that_fails(unpacked: Unpacked, fault: str, status: int, word: str) -> None:
    process = unpacked.start(*ARGUMENTS, GB10_LAB_FAULT=fault)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == status
    assert word in said
    if status == 1:
        first = _boot_log.parse_boot_logs([_boot_log.Log("unit", said)]).first
        assert first is not None
        assert word in first.message


@pytest.mark.parametrize("fault", ["exit_0", "exit_137"])
def test_an_engine_that_ends_by_itself(unpacked: Unpacked, fault: str) -> None:
    with unpacked.serving() as process:
        assert wait_for(unpacked)[0].ready
        unpacked.fault_file.write_text(f"{fault} 0\n")
        assert process.wait(timeout=20) == int(fault.removeprefix("exit_"))
        process.communicate()


def test_a_flag_that_vllm_does_not_have_is_refused_in_its_words(unpacked: Unpacked) -> None:
    process = unpacked.start("--no-such-flag")
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "vllm serve: error: unrecognized arguments: --no-such-flag" in said


def test_a_fault_lasts_for_as_many_starts_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "lab-fault"
    path.write_text("exit_0_at_boot 2\n")
    assert [engine.told_at_start(path).name for _ in range(4)] == ["exit_0_at_boot", "exit_0_at_boot", "none", "none"]
    path.write_text("hang 0\n")
    assert engine.told(path).name == "hang"
    assert engine.told_at_start(path).name == "none"
    path.write_text("hang\n")
    assert [engine.told_at_start(path).name for _ in range(3)] == ["hang"] * 3


def test_a_slow_first_token_is_slow_and_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "lab-fault"
    path.write_text("first_token_takes_3_s")
    with engine.ScriptedServer("127.0.0.1", 0, path) as server:
        server.models = ["scripted"]
        server.settle()
        began = time.monotonic()
        assert look(server, model="scripted", checks=("chat",), timeout=30).stage == "ready"
        assert time.monotonic() - began >= 3


def test_no_name_means_two_faults() -> None:
    groups = (FAULTS, faults.ANSWERS, faults.AT_BOOT, faults.LINES, faults.WHILE_SERVING)
    names = [name for group in groups for name in group if name != "none"]
    assert len(names) == len(set(names))


def test_every_fault_of_the_server_is_over_when_it_is_taken_away(tmp_path: Path) -> None:
    """What one fault has changed must not be there when the next one is looked at."""
    path = tmp_path / "lab-fault"
    with engine.ScriptedServer("127.0.0.1", 0, path) as server:
        server.models = ["scripted"]
        server.settle()
        for name in (*FAULTS, *faults.ANSWERS):
            path.write_text(name)
            server.follow()
            path.unlink()
            server.follow()
            assert look(server, model="scripted", timeout=30).stage == "ready", name
