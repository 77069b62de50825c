# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks the GPU code of a container image or of a running container with the Docker command line.

First choice is to run _cubin.py inside, with no network, no GPU, nothing writable and no privileges. Where that cannot
be done (no Python in the image, another CPU architecture, or it is not wanted) the files are copied out of a container
that is created and never started.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import contextlib
import json
import platform
import re
import secrets
import subprocess
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _cubin, _cubin_archive, _cubin_cache

MAX_ANSWER = 64 << 20  # bytes of JSON that an image may answer with
MAX_REQUEST = 120_000  # bytes of one argument; Linux takes 131,072
TIMEOUT = 300  # s; a whole vLLM image takes some 5 s

# Where Python packages lie in images, besides VIRTUAL_ENV and PYTHONPATH of the image's configuration.
SITES = tuple(
    f"/usr/local/lib/python3.{minor}/{kind}-packages" for minor in range(10, 15) for kind in ("dist", "site")
) + tuple(
    f"{root}/lib/python3.{minor}/site-packages" for root in ("/opt/venv", "/opt/conda") for minor in range(10, 15)
)


class ImageError(_cubin.CubinError):
    """The image or container cannot be checked: the message says in one sentence why and what to do."""


class Answer(t.NamedTuple):
    """What a command left behind."""

    code: int
    out: bytes
    err: str


class Runner(t.Protocol):
    """Runs a program on the box. Arguments are a list: no shell ever sees them."""

    def run(self, argv: t.Sequence[str], stdin: bytes = b"", timeout: float = TIMEOUT) -> Answer:
        """Run to the end; code 124 when it took longer."""

    def stream(self, argv: t.Sequence[str]) -> contextlib.AbstractContextManager[_cubin_archive.Reader]:
        """Start, and hand out what it prints while it prints it."""


class LocalRunner:
    """Runs programs here."""

    def run(self, argv: t.Sequence[str], stdin: bytes = b"", timeout: float = TIMEOUT) -> Answer:
        """Run to the end; code 124 when it took longer."""
        try:
            # run_command knows no time limit and no binary input.
            done = subprocess.run(  # pylint: disable=ansible-bad-function
                list(argv), input=stdin, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return Answer(124, b"", f"took longer than {timeout:.0f} s")
        except OSError as error:
            return Answer(127, b"", str(error))
        return Answer(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace").strip())

    @contextlib.contextmanager
    def stream(self, argv: t.Sequence[str]) -> t.Iterator[_cubin_archive.Reader]:
        """Start, and hand out what it prints while it prints it."""
        # An image is larger than memory, so it is read while it comes.
        process = subprocess.Popen(  # pylint: disable=ansible-bad-function
            list(argv), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            if process.stdout:
                yield process.stdout
        finally:
            process.kill()
            process.wait()


class Image(t.NamedTuple):
    """What the engine says of an image."""

    id: str
    digests: tuple[str, ...]
    tags: tuple[str, ...]
    architecture: str
    env: dict[str, str]

    def as_dict(self) -> dict[str, t.Any]:
        """Return what leaves the module."""
        return {
            "id": self.id,
            "digests": list(self.digests),
            "tags": list(self.tags),
            "architecture": self.architecture,
        }


def environment_of(words: t.Iterable[str] | None) -> dict[str, str]:
    """Return KEY=VALUE words as a mapping."""
    return {key: value for key, _equals, value in (str(word).partition("=") for word in words or ())}


def inspect_image(runner: Runner, program: str, image: str) -> Image:
    """Return what the engine knows of an image that is on this host. Nothing is pulled."""
    if not re.fullmatch(r"[\w][\w.:/@+-]{0,511}", image):
        raise ImageError(f"image {image!r} is no image reference: write it as name:tag or name@sha256:...")
    answer = runner.run([program, "image", "inspect", image])
    if answer.code == 127:
        raise ImageError(f"{program} cannot be run on this host ({answer.err}): install it or check files with paths")
    if answer.code:
        raise ImageError(f"image {image} is not on this host ({answer.err}): pull it first")
    try:
        data = json.loads(answer.out)[0]
        config = data.get("Config") or {}
        return Image(
            str(data["Id"]),
            tuple(data.get("RepoDigests") or ()),
            tuple(data.get("RepoTags") or ()),
            str(data.get("Architecture") or ""),
            environment_of(config.get("Env")),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ImageError(f"image {image}: {program} image inspect gave no usable answer ({error})") from None


def run_command(program: str, image: str, name: str, request: str) -> list[str]:
    """Return the command that runs _cubin.py, which comes on stdin, in an image, without network or GPU."""
    limits = ["--network", "none", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]  # noqa: S108
    limits += ["--security-opt", "no-new-privileges", "--pids-limit", "128", "--memory", "2g"]
    # An engine whose default runtime is NVIDIA's would otherwise hand in the GPU that the image's environment asks for.
    limits += ["--env", "NVIDIA_VISIBLE_DEVICES=void"]
    start = [program, "run", "--rm", "--interactive", "--pull", "never", "--name", name, *limits]
    return [*start, "--entrypoint", "python3", image, "-I", "-B", "-", "--request", request]


def _request_text(request: t.Mapping[str, t.Any]) -> str:
    text = json.dumps({**request, "environment": True, "paths": []}, separators=(",", ":"))
    if len(text) > MAX_REQUEST:
        raise ImageError(f"families: the table has {len(text)} bytes, more than fits into an argument: shorten it")
    return text


def _answer(answer: Answer) -> dict[str, t.Any] | None:
    """Return what the script inside answered, if it is that. It is the image's word, so its shape is checked."""
    if answer.code or len(answer.out) > MAX_ANSWER:
        return None
    try:
        data = json.loads(answer.out)
    except (RecursionError, ValueError):
        return None
    return data if _cubin_cache.is_answer(data) else None


def _last_line(answer: Answer) -> str:
    lines = answer.err.splitlines()
    return lines[-1][:300] if lines else f"exit status {answer.code}"


def scan_image(
    runner: Runner,
    image: str,
    request: t.Mapping[str, t.Any],
    *,
    script: bytes,
    program: str = "docker",
    method: str = "auto",
    machine: str | None = None,
    cache: _cubin_cache.Cache | None = None,
    keep: bool = True,
) -> dict[str, t.Any]:
    """Check an image that is on this host. ``method``: run the script inside, copy the files out, or auto.

    With a ``cache`` an image that was looked at before is not read again, and with ``keep`` one that was not is kept.
    """
    facts = inspect_image(runner, program, image)
    known = cache.read(facts.id) if cache else None
    if known is not None:
        # Names come and go while the content stays.
        return {**known, "image": facts.as_dict(), "cached": True}
    found = _scan(runner, image, facts, request, script=script, program=program, method=method, machine=machine)
    if cache and keep:
        cache.write(facts.id, found)
    return {**found, "image": facts.as_dict(), "cached": False}


def _scan(
    runner: Runner,
    image: str,
    facts: Image,
    request: t.Mapping[str, t.Any],
    *,
    script: bytes,
    program: str,
    method: str,
    machine: str | None,
) -> dict[str, t.Any]:
    foreign = facts.architecture not in {"", _architecture(machine or platform.machine())}
    reason = f"the image is for {facts.architecture}" if foreign else ""
    if method == "run" or (method == "auto" and not foreign):
        name = f"gb10-cubin-{secrets.token_hex(6)}"
        answer = runner.run(run_command(program, facts.id, name, _request_text(request)), script)
        if answer.code == 124:
            runner.run([program, "rm", "--force", name])
        found = _answer(answer)
        if found:
            return {**found, "method": "run"}
        reason = f"running the check inside failed: {_last_line(answer)}"
        if method == "run":
            raise ImageError(f"image {image}: {reason}; use method copy, which starts nothing")
    found = _copy_out(runner, program, facts, request)
    return {**found, "method": "copy", "method_reason": reason}


def _architecture(machine: str) -> str:
    return {"aarch64": "arm64", "x86_64": "amd64"}.get(machine, machine)


def _copy_out(runner: Runner, program: str, facts: Image, request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Copy out of a container that is created, never started, and removed again."""
    # A command has to be named for images that have none; it never runs.
    created = runner.run([program, "create", "--pull", "never", "--network", "none", facts.id, "true"])
    container = created.out.decode("ascii", "replace").strip()
    if created.code or not re.fullmatch(r"[0-9a-f]{12,64}", container):
        raise ImageError(f"image {facts.id}: no container could be created to copy from ({created.err})")
    try:
        return _copy_from(runner, program, container, facts.env, request)
    finally:
        runner.run([program, "rm", "--force", container])


def _copy_from(
    runner: Runner, program: str, container: str, env: t.Mapping[str, str], request: t.Mapping[str, t.Any]
) -> dict[str, t.Any]:
    families = [_cubin.Family.from_dict(row) for row in request.get("families") or ()]
    scan = _cubin.Scan(str(request.get("capability", "12.1")), families)
    picker = _cubin_archive.Picker(scan, request.get("packages") or (), env)
    minors = range(10, 15)
    sites = [f"{env['VIRTUAL_ENV']}/lib/python3.{minor}/site-packages" for minor in minors if env.get("VIRTUAL_ENV")]
    base = env.get("FLASHINFER_WORKSPACE_BASE") or env.get("HOME") or "/root"
    places = [*sites, *SITES, f"{base}/.cache/flashinfer"]
    tools = [f"{path.rstrip('/')}/nvcc" for path in env.get("PATH", "").split(":") if path]
    tools += ["/usr/local/cuda/bin/nvcc", "/usr/local/cuda/bin/ptxas"]
    taken = 0
    for place in dict.fromkeys([*places, *tools]):
        with runner.stream([program, "cp", "--follow-link", f"{container}:{place}", "-"]) as stream:
            # The names in the tar begin with the last part of the place. A place that is not there gives no bytes.
            first = _Pushback(stream)
            if first.anything():
                taken += _cubin_archive.take_stream(picker, first, place.rpartition("/")[0])
    if not taken:
        scan.trouble("CUBIN_UNREADABLE", f"no Python package was found in {container}", ", ".join(places[:4]))
    return {**scan.result(), **picker.environment()}


class _Pushback:
    """A stream that can be asked whether it has anything before it is read."""

    def __init__(self, stream: _cubin_archive.Reader) -> None:
        self.stream = stream
        self.first = b""

    def anything(self) -> bool:
        self.first = self.stream.read(512)
        return bool(self.first)

    def read(self, size: int = -1, /) -> bytes:
        if self.first:
            part, self.first = self.first[:size], self.first[size:]
            return part
        return self.stream.read(size)


def scan_container(
    runner: Runner, container: str, request: t.Mapping[str, t.Any], *, script: bytes, program: str = "docker"
) -> dict[str, t.Any]:
    """Check a running container: what is in it now, with the modules that FlashInfer has compiled by now."""
    if not re.fullmatch(r"[\w][\w.-]{0,255}", container):
        raise ImageError(f"container {container!r} is no name or id of a container")
    answer = runner.run([program, "container", "inspect", container])
    if answer.code:
        raise ImageError(f"container {container} is not on this host ({answer.err}): see {program} ps")
    try:
        data = json.loads(answer.out)[0]
        image, env = str(data["Image"]), environment_of((data.get("Config") or {}).get("Env"))
        running = bool((data.get("State") or {}).get("Running"))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ImageError(f"container {container}: {program} inspect gave no usable answer ({error})") from None
    reason = "the container is not running"
    if running:
        words = ["exec", "--interactive", container, "python3", "-I", "-B", "-", "--request", _request_text(request)]
        answer = runner.run([program, *words], script)
        found = _answer(answer)
        if found:
            return {**found, "image": {"id": image}, "method": "exec"}
        reason = f"running the check inside failed: {_last_line(answer)}"
    found = _copy_from(runner, program, container, env, request)
    return {**found, "image": {"id": image}, "method": "copy", "method_reason": reason}


def scan_archive(path: str, request: t.Mapping[str, t.Any], image: str = "") -> dict[str, t.Any]:
    """Check an image that lies on this host as an archive (docker save, or an OCI layout in a tar)."""
    families = [_cubin.Family.from_dict(row) for row in request.get("families") or ()]
    scan = _cubin.Scan(str(request.get("capability", "12.1")), families)
    seen: dict[str, t.Any] = {}

    def picker_for(config: dict[str, t.Any]) -> _cubin_archive.Picker:
        seen.update(architecture=str(config.get("architecture", "")), tags=config.get("tags") or [])
        env = environment_of((config.get("config") or {}).get("Env"))
        return _cubin_archive.Picker(scan, request.get("packages") or (), env)

    try:
        picker = _cubin_archive.take_archive(path, picker_for, image)
    except (OSError, ValueError) as error:
        if isinstance(error, _cubin.CubinError):
            raise
        raise ImageError(f"archive {path} cannot be read ({error}): name a file made by docker save") from None
    return {**scan.result(), **picker.environment(), "image": seen, "method": "archive"}
