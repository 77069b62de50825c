# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import pathlib
import stat
import sys

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _download, _instance, _job, _status
from tests.unit.plugins.module_utils.checkpoint_builder import small_qwen3, write_json


class Systemd:
    """A systemd that knows one transient unit, and a job that may say something while it is looked at."""

    def __init__(self, folder: pathlib.Path, states: list[str], says: _status.Status | None = None) -> None:
        self.folder = folder
        self.states = states
        self.says = says
        self.started: list[list[str]] = []

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        """Answer systemctl show and systemd-run."""
        if argv[0] == "systemd-run":
            self.started.append(argv)
            if self.says:
                _status.StatusFile("job", self.folder).write(self.says)
            return 0, "", ""
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return 0, f"LoadState=loaded\nActiveState={state}\n", ""

    def wait(self, *, begin: bool = True, secrets: dict[str, str] | None = None) -> _job.Outcome:
        """Wait for the job."""
        job = _job.Job("job", "a job", ("/bin/true",), secrets or {})
        return _job.wait(self.run, job, begin=begin, step_s=0, folder=self.folder)


def said(stage: str, *, failed: bool = False) -> _status.Status:
    return _status.Status(stage, f"said at {stage}", failed, 0.0)


def test_a_job_is_started_and_its_last_word_is_the_outcome(tmp_path: pathlib.Path) -> None:
    systemd = Systemd(tmp_path, ["inactive"], said(_status.DONE))
    assert systemd.wait() == _job.Outcome("said at done")
    assert systemd.started[0][-1] == "/bin/true"


def test_a_job_that_is_under_way_is_joined(tmp_path: pathlib.Path) -> None:
    systemd = Systemd(tmp_path, ["active"])
    _status.StatusFile("job", tmp_path).write(said("pull"))
    assert systemd.wait() == _job.Outcome("said at pull", finished=False)
    assert systemd.started == []


def test_the_word_of_an_earlier_job_is_not_taken_for_this_one_s(tmp_path: pathlib.Path) -> None:
    _status.StatusFile("job", tmp_path).write(said("pull", failed=True))
    systemd = Systemd(tmp_path, ["inactive", "active"])
    assert systemd.wait() == _job.Outcome("starting", finished=False)


@pytest.mark.parametrize("begin", [True, False])
def test_a_failure_is_told_in_its_own_words(tmp_path: pathlib.Path, begin: bool) -> None:
    systemd = Systemd(tmp_path, ["inactive"], said("pull", failed=True))
    if not begin:
        _status.StatusFile("job", tmp_path).write(said("pull", failed=True))
    assert systemd.wait(begin=begin) == _job.Outcome("said at pull", failed=True)


def test_a_job_that_died_without_a_word_is_a_failure(tmp_path: pathlib.Path) -> None:
    outcome = Systemd(tmp_path, ["inactive"]).wait(begin=False)
    assert outcome.failed
    assert "journalctl -u job" in outcome.message


def test_secrets_reach_the_unit_in_a_file_of_root_only(tmp_path: pathlib.Path) -> None:
    systemd = Systemd(tmp_path, ["inactive"], said(_status.DONE))
    systemd.wait(secrets={"HF_TOKEN": "do-not-show"})
    assert "do-not-show" not in " ".join(systemd.started[0])
    path = tmp_path / "job.env"
    assert f"--property=EnvironmentFile={path}" in systemd.started[0]
    # A job that is stopped or killed cannot clean up after itself.
    assert f"--property=ExecStopPost=-/usr/bin/rm --force {path}" in systemd.started[0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "HF_TOKEN=do-not-show\n"


def test_systemd_that_refuses_is_told(tmp_path: pathlib.Path) -> None:
    systemd = Systemd(tmp_path, ["inactive"])
    job = _job.Job("job", "a job", ("/bin/true",))

    def run(argv: list[str]) -> tuple[int, str, str]:
        return (1, "", "no bus\n") if argv[0] == "systemd-run" else systemd.run(argv)

    with pytest.raises(_instance.UnitError, match="no bus"):
        _job.wait(run, job, begin=True, step_s=0, folder=tmp_path)


WANTED = _download.Wanted(
    repo="example/writer",
    revision="0" * 40,
    image="vllm/vllm-openai@sha256:" + "ab" * 32,
    folder="/srv/hf",
    env=("HF_ENDPOINT=http://mirror.example",),
)


def test_the_library_inside_the_image_downloads_into_the_cache_of_the_box() -> None:
    argv = WANTED.argv()
    assert argv[:3] == ["docker", "run", "--rm"]
    assert "--volume=/srv/hf:/root/.cache/huggingface" in argv
    assert "--env=HF_ENDPOINT=http://mirror.example" in argv
    assert argv[-2:] == ["example/writer", "0" * 40]
    assert str(WANTED.snapshot) == f"/srv/hf/hub/models--example--writer/snapshots/{'0' * 40}"


def test_a_revision_that_is_not_there_is_not_complete() -> None:
    assert not WANTED.is_complete()
    assert WANTED.bytes_on_disk() == 0


@pytest.mark.parametrize("status", [0, 1])
def test_a_damaged_shard_is_named_with_its_cure_whatever_becomes_of_the_download(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    wanted = dataclasses.replace(WANTED, folder=str(tmp_path))
    blob = wanted.model_folder / "blobs" / "5eed"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(bytes(4096))
    wanted.snapshot.mkdir(parents=True)
    (wanted.snapshot / "model.safetensors").symlink_to("../../blobs/5eed")
    write_json(wanted.snapshot / "config.json", small_qwen3())
    script = f"import sys; print('OSError: the hub is away', file=sys.stderr); sys.exit({status})"
    monkeypatch.setattr(_download.Wanted, "argv", lambda _wanted: [sys.executable, "-c", script])
    with pytest.raises(_download.DownloadError) as failure:
        _download.download(wanted, lambda _line: None)
    said = str(failure.value)
    assert ("OSError: the hub is away. " in said) is bool(status)
    assert "The shard model.safetensors is no readable safetensors file" in said
    assert said.endswith(f"remove it and run this again: rm {blob}")


def test_what_is_missing_is_not_called_damaged(tmp_path: pathlib.Path) -> None:
    wanted = dataclasses.replace(WANTED, folder=str(tmp_path))
    assert wanted.damage() == ""
    wanted.snapshot.mkdir(parents=True)
    write_json(wanted.snapshot / "config.json", small_qwen3())
    assert wanted.damage() == ""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            [
                "Traceback (most recent call last):",
                'File "hub.py", line 1, in f',
                "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: x)",
                "Please log in.",
            ],
            "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: x)",
        ),
        (["docker: no space left on device."], "docker: no space left on device."),
        ([], ""),
    ],
)
def test_the_reason_is_the_exception_and_not_the_advice_below_it(lines: list[str], expected: str) -> None:
    assert _download.reason(lines) == expected
