# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A fake engine: it answers as docker 27 does, from a file tree, and records what it was asked."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _cubin, _cubin_archive, _cubin_image
from tests.unit.plugins.module_utils import cubin_builder as build

SO = build.shared_object(build.fatbin(build.entry(build.cubin(120, "f", ["kernel"]), 120, "f", codec="zstd")))
OLD = build.shared_object(build.fatbin(build.entry(build.cubin(120, "a", ["kernel"]), 120, "a")))
REQUEST: dict[str, t.Any] = {
    "capability": "12.1",
    "families": [{"id": "demo", "match": {"any": [{"all": ["kernel"]}]}}],
    "packages": ["vllm", "flashinfer_*"],
}
SITE = "usr/local/lib/python3.12/dist-packages"
NVCC = b"\x7fELF" + bytes(2_000_000) + b"Cuda compilation tools, release 13.0, V13.0.88\0"
TREE = {
    f"{SITE}/vllm/_C.abi3.so": SO,
    f"{SITE}/vllm/_version.py": b"__version__ = version = '0.33.0'\n",
    f"{SITE}/vllm-0.33.0.dist-info/METADATA": b"Name: vllm\nVersion: 0.33.0\n",
    f"{SITE}/nvidia/libcublas.so": SO,
    "root/.cache/flashinfer/0.7.2/121a/cached_ops/fp4/fp4.so": SO,
    "usr/local/cuda/bin/nvcc": NVCC,
}
ENV = ["PATH=/usr/local/cuda/bin:/usr/bin", "NVIDIA_VISIBLE_DEVICES=all"]
CONTAINER = "c" * 64


class FakeEngine:
    """Has one image (and one container of it) with the files of a tree."""

    def __init__(self, tree: t.Mapping[str, bytes], answer: str | None = None, architecture: str = "amd64") -> None:
        self.tree, self.answer, self.architecture = tree, answer, architecture
        self.asked: list[list[str]] = []
        self.stdin = b""
        self.running = True
        self.create_fails = False
        self.timeout = False

    def run(self, argv: t.Sequence[str], stdin: bytes = b"", timeout: float = 0) -> _cubin_image.Answer:
        self.asked.append(list(argv))
        self.stdin = self.stdin or stdin
        what = argv[1]
        out: t.Any = ""
        if argv[1:3] == ["image", "inspect"]:
            if argv[3] != "vllm:v0.33.0":
                return _cubin_image.Answer(1, b"", "No such image")
            tags = {"RepoTags": ["vllm:v0.33.0"], "RepoDigests": ["vllm@sha256:ab"]}
            out = [{"Id": "sha256:" + "d" * 64, **tags, "Architecture": self.architecture, "Config": {"Env": ENV}}]
        elif argv[1:3] == ["container", "inspect"]:
            out = [{"Image": "sha256:" + "d" * 64, "Config": {"Env": ENV}, "State": {"Running": self.running}}]
        elif what in {"run", "exec"}:
            if self.timeout:
                return _cubin_image.Answer(124, b"", "took longer than 300 s")
            if self.answer is None:
                return _cubin_image.Answer(127, b"", "warning\nexec: python3: not found")
            return _cubin_image.Answer(0, self.answer.encode(), "")
        elif what == "create":
            if self.create_fails:
                return _cubin_image.Answer(1, b"", "no space left on device")
            return _cubin_image.Answer(0, CONTAINER.encode() + b"\n", "")
        return _cubin_image.Answer(0, json.dumps(out).encode(), "")

    @contextlib.contextmanager
    def stream(self, argv: t.Sequence[str]) -> t.Iterator[t.Any]:
        self.asked.append(list(argv))
        place = argv[-2].partition(":")[2].lstrip("/")
        base = place.rpartition("/")[0]
        found = {
            name[len(base) + 1 :]: data
            for name, data in self.tree.items()
            if name == place or name.startswith(place + "/")
        }
        yield io.BytesIO(build.tar(found) if found else b"")


def scan(engine: FakeEngine, **options: t.Any) -> dict[str, t.Any]:
    return _cubin_image.scan_image(engine, "vllm:v0.33.0", REQUEST, script=b"print()", machine="x86_64", **options)


def answer_of(**changes: t.Any) -> str:
    empty = {"families": {}, "kernels": {}, "files": [], "packages": {}, "findings": [], "complete": True}
    return json.dumps({**empty, "capability": "12.1", "verdict": "native", **changes})


def test_the_script_runs_inside_without_network_gpu_or_privileges() -> None:
    engine = FakeEngine({}, answer_of(verdict="ptx"))
    result = scan(engine)
    assert (result["verdict"], result["method"]) == ("ptx", "run")
    assert result["image"]["digests"] == ["vllm@sha256:ab"]
    (command,) = [words for words in engine.asked if words[1] == "run"]
    for words in (
        ["--network", "none"],
        ["--pull", "never"],
        ["--cap-drop", "ALL"],
        ["--security-opt", "no-new-privileges"],
        ["--env", "NVIDIA_VISIBLE_DEVICES=void"],
        ["--entrypoint", "python3"],
    ):
        assert " ".join(words) in " ".join(command)
    assert "--read-only" in command
    assert not any(word.startswith("--gpus") for word in command)
    image = command.index("sha256:" + "d" * 64)  # by id: a tag could move between two calls
    assert command[image + 1 : image + 5] == ["-I", "-B", "-", "--request"]
    assert json.loads(command[-1])["environment"] is True
    assert engine.stdin == b"print()"


@pytest.mark.parametrize("answer", [None, "", "[]", "{}", "no json", answer_of(families=[])])
def test_files_are_copied_out_where_the_script_cannot_run(answer: str | None) -> None:
    engine = FakeEngine(TREE, answer)
    result = scan(engine)
    assert (result["method"], result["complete"], result["families"]) == ("copy", True, {"demo": "native"})
    assert [row["path"] for row in result["files"]] == [
        "/root/.cache/flashinfer/0.7.2/121a/cached_ops/fp4/fp4.so",
        f"/{SITE}/vllm/_C.abi3.so",
    ]
    assert result["packages"] == {"vllm": {"stamp": "0.33.0", "version": "0.33.0"}}
    assert result["tools"] == {"nvcc": {"path": "/usr/local/cuda/bin/nvcc", "version": "13.0.88"}}
    assert result["method_reason"].startswith("running the check inside failed: ")
    assert engine.asked[-1] == ["docker", "rm", "--force", CONTAINER]
    assert not any(words[1] == "start" for words in engine.asked)


def test_an_image_of_another_architecture_is_not_run() -> None:
    engine = FakeEngine(TREE, answer_of(), architecture="arm64")
    result = scan(engine)
    assert (result["method"], result["method_reason"]) == ("copy", "the image is for arm64")
    assert not any(words[1] == "run" for words in engine.asked)


def test_copy_starts_nothing() -> None:
    engine = FakeEngine(TREE, answer_of())
    assert scan(engine, method="copy")["method"] == "copy"
    assert {words[1] for words in engine.asked} == {"image", "create", "cp", "rm"}


def test_run_alone_fails_with_the_last_line() -> None:
    with pytest.raises(_cubin_image.ImageError, match="failed: exec: python3: not found; use method copy"):
        scan(FakeEngine(TREE), method="run")


def test_a_run_that_takes_too_long_is_removed() -> None:
    engine = FakeEngine(TREE)
    engine.timeout = True
    scan(engine)
    name = next(words[words.index("--name") + 1] for words in engine.asked if words[1] == "run")
    assert ["docker", "rm", "--force", name] in engine.asked


def test_an_image_without_packages_is_not_complete() -> None:
    result = scan(FakeEngine({}), method="copy")
    assert (result["complete"], result["verdict"], result["families"]) == (False, "unknown", {"demo": "unknown"})


def test_a_cut_copy_is_not_complete() -> None:
    engine = FakeEngine(TREE)
    original = engine.stream

    @contextlib.contextmanager
    def cut(argv: t.Sequence[str]) -> t.Iterator[t.Any]:
        with original(argv) as stream:
            yield io.BytesIO(stream.read()[:1500])

    engine.stream = cut  # type: ignore[method-assign]
    result = scan(engine, method="copy")
    assert not result["complete"]
    assert "CUBIN_TRUNCATED" in [one["id"] for one in result["findings"]]


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("../x", "is no image reference"),
        ("-v", "is no image reference"),
        ("nosuch:1", "is not on this host .No such image.: pull it first"),
    ],
)
def test_a_bad_image_is_one_sentence(image: str, message: str) -> None:
    with pytest.raises(_cubin_image.ImageError, match=message):
        _cubin_image.scan_image(FakeEngine({}), image, REQUEST, script=b"")


def test_a_container_that_cannot_be_created_is_said() -> None:
    engine = FakeEngine({})
    engine.create_fails = True
    with pytest.raises(_cubin_image.ImageError, match=r"no container could be created .*no space left"):
        scan(engine, method="copy")


def test_a_table_that_fits_into_no_argument_is_said() -> None:
    request = {**REQUEST, "families": [{"id": "x" * 200_000, "match": {}}]}
    with pytest.raises(_cubin_image.ImageError, match="shorten it"):
        _cubin_image.scan_image(FakeEngine({}), "vllm:v0.33.0", request, script=b"", machine="x86_64")


def test_a_running_container_is_asked() -> None:
    engine = FakeEngine({}, answer_of())
    result = _cubin_image.scan_container(engine, "vllm-qwen", REQUEST, script=b"print()")
    assert result["method"] == "exec"
    assert engine.asked[-1][:4] == ["docker", "exec", "--interactive", "vllm-qwen"]


def test_a_stopped_container_is_copied_from_and_kept() -> None:
    engine = FakeEngine(TREE, answer_of())
    engine.running = False
    result = _cubin_image.scan_container(engine, "vllm-qwen", REQUEST, script=b"")
    assert (result["method"], result["method_reason"]) == ("copy", "the container is not running")
    assert result["families"] == {"demo": "native"}
    assert not any(words[1] in {"rm", "exec"} for words in engine.asked)


def test_the_local_runner_runs_and_streams() -> None:
    runner = _cubin_image.LocalRunner()
    assert runner.run(["cat"], b"hello").out == b"hello"
    assert runner.run(["/no/such/program"]).code == 127
    assert runner.run(["sleep", "9"], timeout=0.05).code == 124
    with runner.stream(["printf", "abc"]) as stream:
        assert stream.read(3) == b"abc"


# ---- saved images

Layer = dict[str, "bytes | str | None"]
LAYERS: list[Layer] = [
    {
        f"{SITE}/vllm/_C.abi3.so": OLD,
        f"{SITE}/vllm/gone.so": OLD,
        f"{SITE}/vllm/dir/deep.so": OLD,
        f"{SITE}/vllm/opaque/under.so": OLD,
        f"{SITE}/vllm/_version.py": b"__version__ = '0.19.1'\n",
    },
    {
        f"{SITE}/vllm/_C.abi3.so": SO,
        f"{SITE}/vllm/.wh.gone.so": b"",
        f"{SITE}/vllm/.wh.dir": b"",
        f"{SITE}/vllm/opaque/.wh..wh..opq": b"",
        f"{SITE}/vllm/opaque/over.so": SO,
        f"{SITE}/vllm/_version.py": b"__version__ = '0.33.0'\n",
    },
]
CONFIG = {"architecture": "arm64", "config": {"Env": ENV}}


def saved(path: Path, layers: t.Sequence[bytes], kind: str = "docker") -> Path:
    """Write a docker archive or an OCI layout."""
    names = [f"blobs/sha256/{number}" for number in range(len(layers))]
    files: dict[str, bytes | str | None] = dict(zip(names, layers, strict=True))
    files["blobs/sha256/c0"] = json.dumps(CONFIG).encode()
    if kind == "docker":
        manifest = [{"Config": "blobs/sha256/c0", "RepoTags": ["vllm:v0.33.0"], "Layers": names}]
        files["manifest.json"] = json.dumps(manifest).encode()
    else:
        digests = [{"digest": f"sha256:{number}"} for number in range(len(layers))]
        files["blobs/sha256/aa"] = json.dumps({"layers": digests, "config": {"digest": "sha256:c0"}}).encode()
        index = [{"digest": "sha256:missing"}, {"digest": "sha256:aa"}]
        files["index.json"] = json.dumps({"manifests": index}).encode()
    path.write_bytes(build.tar(files))
    return path


@pytest.mark.parametrize("kind", ["docker", "oci"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, build.zstd], ids=["plain", "gzip", "zstd"])
def test_a_saved_image_is_read_with_its_whiteouts(tmp_path: Path, kind: str, pack: t.Callable[[bytes], bytes]) -> None:
    archive = saved(tmp_path / "image.tar", [pack(build.tar(layer)) for layer in LAYERS], kind)
    result = _cubin_image.scan_archive(str(archive), REQUEST)
    assert [Path(row["path"]).name for row in result["files"]] == ["_C.abi3.so", "over.so"]
    assert (result["complete"], result["families"]) == (True, {"demo": "native"})
    assert result["kernels"]["demo"]["not_loadable"] == 0
    assert result["packages"] == {"vllm": {"stamp": "0.33.0"}}
    assert (result["method"], result["image"]["architecture"]) == ("archive", "arm64")


def test_a_link_in_an_upper_layer_hides_the_directory_below(tmp_path: Path) -> None:
    upper: Layer = {f"{SITE}/vllm": "/elsewhere", "elsewhere": None}
    archive = saved(tmp_path / "image.tar", [build.tar(LAYERS[0]), build.tar(upper)])
    assert _cubin_image.scan_archive(str(archive), REQUEST)["files"] == []


@pytest.mark.parametrize("style", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_of_every_format_are_read(style: int) -> None:
    name = "/".join(["d" * 70] * 2 + ["x.so"])
    names = [member.name for member in _cubin_archive.members(io.BytesIO(build.tar({name: b"1"}, style)))]
    assert names == [f"/{name}"]


def test_names_cannot_lead_out() -> None:
    scan_ = _cubin.Scan()
    picker = _cubin_archive.Picker(scan_, ["vllm"])
    tar = build.tar({f"../../{SITE}/vllm/x.so": SO})
    assert _cubin_archive.take_stream(picker, io.BytesIO(tar)) == 1
    assert scan_.rows[0]["kind"] == "elf"


@pytest.mark.parametrize("cut", [100, 600, 1200])
def test_a_cut_layer_is_said(tmp_path: Path, cut: int) -> None:
    archive = saved(tmp_path / "image.tar", [build.tar(LAYERS[0])[:cut]])
    result = _cubin_image.scan_archive(str(archive), REQUEST)
    assert not result["complete"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "names no layers|has no index.json"),
        ({"manifest.json": b"{"}, "manifest.json is no JSON"),
        ({"manifest.json": b"[]"}, "has 0 images"),
        ({"manifest.json": b'[{"Layers": []}]'}, "names no layers"),
        ({"manifest.json": b'[{"Config": "c", "Layers": []}]'}, "has no c:"),
        ({"index.json": b'{"manifests": []}'}, "names no layers"),
        ({"index.json": b"[]"}, "names no layers"),
    ],
)
def test_what_is_no_image_archive_is_one_sentence(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(build.tar(files))
    with pytest.raises(_cubin.CubinError, match=message):
        _cubin_image.scan_archive(str(path), REQUEST)


@pytest.mark.parametrize("data", [b"", b"x" * 512, b"x" * 100, bytes(100)])
def test_what_is_no_tar_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    with pytest.raises(_cubin.CubinError, match=r"x\.tar"):
        _cubin_image.scan_archive(str(path), REQUEST)


def test_one_of_several_images_has_to_be_named(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    images = [{"Config": "c", "RepoTags": [tag], "Layers": []} for tag in ("a:1", "b:2")]
    path.write_bytes(build.tar({"manifest.json": json.dumps(images).encode(), "c": b"{}"}))
    with pytest.raises(_cubin.CubinError, match="has 2 images; name one with image: a:1, b:2"):
        _cubin_image.scan_archive(str(path), REQUEST)
    with pytest.raises(_cubin.CubinError, match="c:3 is not among a:1, b:2"):
        _cubin_image.scan_archive(str(path), REQUEST, "c:3")
    assert _cubin_image.scan_archive(str(path), REQUEST, "b:2")["files"] == []


@pytest.mark.parametrize("size", [b"77777777777\0", b"\x80" + b"\xff" * 11])
def test_a_header_that_asks_for_too_much_is_refused(size: bytes) -> None:
    tar = bytearray(build.tar({"d" * 150: b"1"}, tarfile.GNU_FORMAT))
    tar[124:136] = size
    tar[148:156] = b" " * 8
    tar[148:156] = b"%06o\0 " % sum(tar[:512])
    with pytest.raises(ValueError, match="a tar header of"):
        list(_cubin_archive.members(io.BytesIO(bytes(tar))))
