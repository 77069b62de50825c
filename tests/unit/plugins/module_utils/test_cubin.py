# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _cubin
from tests.unit.plugins.module_utils import cubin_builder as build

FIXTURES = Path(__file__).parent / "fixtures" / "cubin"
LOADED = json.loads((FIXTURES / "load_cc90/h200_cc90.json").read_text())["results"]
LISTED = json.loads((FIXTURES / "cuobjdump.json").read_text())

CUBIN = build.cubin(120, "f", ["kernel"])
PTX = build.ptx(["kernel"])
TWO = build.fatbin(build.entry(CUBIN, 120, "f"), build.entry(PTX, 80, kind=1, codec="zstd"))


def listed(data: bytes, name: str = "x.so") -> tuple[list[str], list[str]]:
    listing = _cubin.parse(data, name)
    return [entry.arch for entry in listing.entries], [one["id"] for one in listing.problems]


# ---- architectures


@pytest.mark.parametrize(
    ("arch", "capability", "ptx", "expected"),
    [
        # The rules for 12.1, as they are told wrong most often: plain and f of 12.0 load, a of 12.0 does not.
        (("120", ""), "12.1", False, True),
        (("120", "f"), "12.1", False, True),
        (("120", "a"), "12.1", False, False),
        (("121", ""), "12.1", False, True),
        (("121", "a"), "12.1", False, True),
        (("121", "f"), "12.1", False, True),
        (("121", ""), "12.0", False, False),
        (("121", "f"), "12.0", False, False),
        (("100", ""), "12.1", False, False),
        (("100", "a"), "12.1", False, False),
        (("100", "f"), "10.3", False, True),
        (("103", "f"), "10.0", False, False),
        (("80", ""), "12.1", False, False),
        (("80", ""), "8.6", False, True),
        (("86", ""), "8.0", False, False),
        # Tegra runs exactly its own cubins, and nobody else runs Tegra's.
        (("80", ""), "8.7", False, False),
        (("87", ""), "8.9", False, False),
        (("87", ""), "8.7", False, True),
        (("100", "f"), "10.1", False, False),
        # PTX compiles for the same and for higher capabilities.
        (("80", ""), "12.1", True, True),
        (("120", ""), "12.1", True, True),
        (("120", "f"), "12.1", True, True),
        (("120", "a"), "12.1", True, False),
        (("90", "a"), "12.1", True, False),
        (("100", "f"), "12.1", True, False),
        (("121", ""), "12.0", True, False),
    ],
)
def test_what_loads(arch: tuple[str, str], capability: str, ptx: bool, expected: bool) -> None:
    assert _cubin.loads(int(arch[0]), arch[1], _cubin.parse_capability(capability), ptx) is expected


@pytest.mark.parametrize(("text", "number"), [("12.1", 121), ("9.0", 90), ("sm_121a", 121), ("103", 103)])
def test_a_capability_is_read(text: str, number: int) -> None:
    assert _cubin.parse_capability(text) == number


@pytest.mark.parametrize("text", ["", "12", "12.10", "twelve", "12.1.0", "-1.0"])
def test_what_is_no_capability_is_said(text: str) -> None:
    with pytest.raises(_cubin.CubinError, match=r"is not a compute capability: write it as 12\.1"):
        _cubin.parse_capability(text)


@pytest.mark.parametrize("name", sorted(LOADED))
def test_the_verdict_for_9_0_is_what_a_gpu_of_9_0_did(name: str) -> None:
    scan = _cubin.Scan("9.0")
    scan.add_path(str(FIXTURES / "load_cc90" / name))
    result = scan.result()
    assert result["complete"]
    assert (result["verdict"] != "none") == LOADED[name]["loads"] == LOADED[name]["launched"]


def test_all_31_binaries_are_there() -> None:
    assert len(LOADED) == 31


@pytest.mark.parametrize("path", sorted((FIXTURES / "toolkits").iterdir()), ids=lambda path: path.stem)
def test_a_cubin_of_every_toolkit_tells_its_target(path: Path) -> None:
    target = re.search(r"sm_(\w+)", path.stem)
    assert target
    assert listed(path.read_bytes(), path.name) == ([f"sm_{target[1]}"], [])


@pytest.mark.parametrize("path", sorted((FIXTURES / "load_cc90").glob("sm_*.cubin")), ids=lambda path: path.stem)
def test_a_cubin_of_cuda_13_tells_its_target(path: Path) -> None:
    assert listed(path.read_bytes(), path.name) == ([path.stem], [])


@pytest.mark.parametrize("name", sorted(LISTED))
def test_every_entry_is_what_cuobjdump_lists(name: str) -> None:
    listing = _cubin.parse((FIXTURES / name).read_bytes(), name)
    rows = [[one.kind, f"sm_{one.sm}{one.suffix}", *one.version, bool(one.codec)] for one in listing.entries]
    assert rows == LISTED[name]
    assert not listing.problems


# ---- damage


@pytest.mark.parametrize(
    ("data", "name", "archs", "problem"),
    [
        (b"", "x.so", [], "CUBIN_TRUNCATED"),
        (b"\x7fELF", "x.so", [], "CUBIN_TRUNCATED"),
        (b"\0" * 100, "x.cubin", [], "CUBIN_MALFORMED"),
        (TWO[:10], "x.fatbin", [], "CUBIN_TRUNCATED"),
        (TWO[:60], "x.fatbin", [], "CUBIN_TRUNCATED"),
        (TWO[:-8], "x.fatbin", ["sm_120f"], "CUBIN_TRUNCATED"),
        (build.fatbin(build.entry(CUBIN, 120), b"\x01" * 40), "x.fatbin", ["sm_120"], "CUBIN_TRUNCATED"),
        (build.fatbin(b"\x09" * 80), "x.fatbin", [], "CUBIN_MALFORMED"),
        (TWO + b"rubbish!" * 4, "x.fatbin", ["sm_120f", "compute_80"], "CUBIN_MALFORMED"),
        (build.shared_object(TWO, registered=2), "x.so", ["sm_120f", "compute_80"], "CUBIN_MALFORMED"),
        (build.shared_object(TWO)[:-100], "x.so", ["sm_120f", "compute_80"], "CUBIN_TRUNCATED"),
        (build.shared_object(TWO)[:400], "x.so", [], "CUBIN_TRUNCATED"),
        (build.shared_object(TWO[:4] + b"\x02" + TWO[5:]), "x.so", [], "CUBIN_MALFORMED"),
        (CUBIN[:-10], "x.cubin", ["sm_120"], "CUBIN_TRUNCATED"),
        (build.archive(a=build.shared_object(TWO))[:-20], "x.a", ["sm_120f", "compute_80"], "CUBIN_TRUNCATED"),
        (build.archive(a=CUBIN) + b"tail of a header", "x.a", ["sm_120"], "CUBIN_TRUNCATED"),
        (build.archive(a=CUBIN).replace(b"`\n", b"??", 1), "x.a", [], "CUBIN_MALFORMED"),
        (b"!<a", "x.a", [], "CUBIN_TRUNCATED"),
        (b"!<arch>\n", "x.a", [], "CUBIN_TRUNCATED"),
        (b"!<thin>\nx", "x.a", [], "CUBIN_LINK_OUTSIDE"),
        (PTX[:-3], "x.ptx", ["compute_80"], "CUBIN_TRUNCATED"),
        (b".version 9.0\n", "x.ptx", [], "CUBIN_MALFORMED"),
    ],
)
def test_damage_is_said_and_what_is_whole_is_listed(data: bytes, name: str, archs: list[str], problem: str) -> None:
    found, problems = listed(data, name)
    assert found == archs
    assert problem in problems


def test_an_archive_that_is_cut_between_members_is_said() -> None:
    whole = (FIXTURES / "containers/static.a").read_bytes()
    for match in list(re.finditer(rb"`\n", whole))[1:]:
        found, problems = listed(whole[: match.start() - 58], "static.a")
        assert len(found) < 4
        assert problems == ["CUBIN_TRUNCATED"]


@pytest.mark.parametrize("fixture", ["containers/two_units.so", "containers/mode_size.so", "containers/static.a"])
def test_no_truncation_loses_entries_in_silence(fixture: str) -> None:
    whole = (FIXTURES / fixture).read_bytes()
    expected = listed(whole, fixture)[0]
    for size in range(0, len(whole), 61):
        found, problems = listed(whole[:size], fixture)
        assert problems or found == expected, f"cut to {size} bytes"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (build.elf(62, [(".text", b"\x90" * 64)]), "host.so"),
        (b"/* GNU ld script */ INPUT(libx.so.1)", "libx.so"),
        (b"just text", "README"),
    ],
)
def test_files_without_gpu_code_are_complete(data: bytes, name: str) -> None:
    assert listed(data, name) == ([], [])


def test_a_file_of_nothing_but_damage_is_given_up() -> None:
    listing = _cubin.parse(b"\x7fELF" + bytes(60) + (b"\x50\xed\x55\xba" + b"\xff" * 12) * 5000, "x.fatbin")
    assert 0 < len(listing.problems) < 20
    listing = _cubin.parse((b"\x50\xed\x55\xba" + b"\xff" * 12) * 5000, "x.fatbin")
    assert "damaged places" in listing.problems[-1]["message"]


def test_the_number_of_entries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cubin, "MAX_ENTRIES", 300)
    listing = _cubin.parse(build.fatbin(*[build.entry(b"", 80)] * 2000), "x.fatbin")
    assert len(listing.entries) <= 512
    assert listing.problems[-1]["id"] == "CUBIN_TOO_LARGE"


def test_two_gpu_sections_and_padding_are_read() -> None:
    data = build.elf(
        183, [(".nv_fatbin", TWO + bytes(24) + TWO), ("__nv_relfatbin", TWO), (".hip_fatbin", b"\xff" * 64)]
    )
    listing = _cubin.parse(data, "x.so")
    assert [entry.section for entry in listing.entries] == [".nv_fatbin"] * 4 + ["__nv_relfatbin"] * 2
    assert not listing.problems


# ---- names


@pytest.mark.parametrize("codec", ["", "zstd", "lz4"])
@pytest.mark.parametrize("kind", ["elf", "ptx"])
def test_names_are_read_from_every_encoding(codec: str, kind: str) -> None:
    names = [f"kernel_{number}_{'x' * 400}" for number in range(1500)]
    payload = build.cubin(120, "", names) if kind == "elf" else build.ptx(names)
    data = build.fatbin(build.entry(payload, 120, kind=2 if kind == "elf" else 1, codec=codec))
    (entry,) = _cubin.parse(data, "x.fatbin").entries
    assert _cubin.kernel_names(data, entry) == {name.encode() for name in names}


@pytest.mark.parametrize("name", ["mode_size.so", "mode_speed.so", "two_b.fatbin", "relocatable.o"])
def test_real_names_are_the_same_in_cubins_and_in_ptx(name: str) -> None:
    data = (FIXTURES / "containers" / name).read_bytes()
    found = {entry.arch: _cubin.kernel_names(data, entry) for entry in _cubin.parse(data, name).entries}
    assert len(found) == 4
    assert set(map(frozenset, found.values())) == {frozenset({b"_Z5shiftIfEvPT_S0_", b"_Z5shiftIiEvPT_S0_"})}


def test_a_cubin_that_begins_otherwise_is_read_by_its_headers() -> None:
    usual = build.cubin(120, "", ["kernel"])
    moved = usual[:65] + b"?" + usual[66:]  # the first name of the table is not .shstrtab
    data = build.fatbin(build.entry(moved, 120))
    (entry,) = _cubin.parse(data, "x.fatbin").entries
    assert _cubin.kernel_names(data, entry) == {b"kernel"}


def test_plain_python_decodes_lz4_as_the_library_does() -> None:
    data = (FIXTURES / "containers/mode_speed.so").read_bytes()
    (entry,) = [one for one in _cubin.parse(data, "x.so").entries if one.codec == "lz4"]
    block = data[entry.offset : entry.offset + entry.stored]
    whole = _cubin.lz4_block(block, entry.raw)
    assert whole == b"".join(_cubin.decoded(data, entry))
    assert b".visible .entry _Z5shiftIfEvPT_S0_(" in whole
    assert _cubin.lz4_block(block, 100) == whole[:100]


@pytest.mark.parametrize("block", [b"\xf0", b"\x10", b"\x0f\x01", b"\x11a\x09\x00", b"\x11a\x00\x00", b"\xf0\xff\xff"])
def test_a_damaged_lz4_block_is_said(block: bytes) -> None:
    with pytest.raises(_cubin.DamageError):
        _cubin.lz4_block(block, 1000)


@pytest.mark.parametrize(
    ("entry", "finding"),
    [
        (build.entry(CUBIN, 120, codec="zstd", raw=1 << 40), "CUBIN_TOO_LARGE"),
        (build.entry(CUBIN, 120, codec="lz4", raw=100 << 20), "CUBIN_MALFORMED"),
        (build.entry(PTX, 80, kind=1, codec="zstd", raw=len(PTX) - 1), "CUBIN_MALFORMED"),
        (build.entry(PTX, 80, kind=1, codec="zstd", raw=len(PTX) + 1), "CUBIN_MALFORMED"),
        (
            build.entry(PTX, 80, kind=1, codec="zstd").replace(b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfe"),
            "CUBIN_MALFORMED",
        ),
        (build.entry(b"no cubin at all", 120), "CUBIN_MALFORMED"),
        (build.entry(CUBIN[:-70], 120, codec="zstd").replace(b"\0.shstrtab", b"\0.shstrtax"), "CUBIN_MALFORMED"),
    ],
)
def test_payloads_are_bounded_and_damage_in_them_is_said(entry: bytes, finding: str) -> None:
    scan = _cubin.Scan("12.1", [FAMILY])
    facts = scan.inspect(build.fatbin(entry), "x.fatbin")
    assert [one["id"] for one in facts.problems] == [finding]
    assert not facts.row["complete"]
    assert facts.row["entries"] == 1


def test_a_missing_library_makes_the_answer_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_cubin._codecs, "zstd", None)
    facts = _cubin.Scan("12.1", [FAMILY]).inspect(build.fatbin(build.entry(CUBIN, 120, codec="zstd")), "x.fatbin")
    assert [one["id"] for one in facts.problems] == ["CUBIN_CODEC_MISSING"]


# ---- families

FAMILY = _cubin.Family.from_dict(
    {
        "id": "demo",
        "title": "Demo",
        "block_scale": True,
        "match": {"12": [{"all": ["kernel", "Sm120"], "none": ["Grouped"]}], "9": []},
    }
)


@pytest.mark.parametrize(
    ("entries", "verdict", "counts"),
    [
        ([(2, 120, "f", ["kernel_Sm120"])], "native", (1, 0, 0)),
        ([(2, 120, "a", ["kernel_Sm120"])], "none", (0, 0, 1)),
        ([(2, 120, "f", ["kernel_Sm100"])], "none", (0, 0, 0)),  # the right cubin, written for another architecture
        ([(2, 120, "f", ["kernel_Sm120_Grouped"])], "none", (0, 0, 0)),
        ([(1, 80, "", ["kernel_Sm120"])], "ptx", (0, 1, 0)),
        ([(1, 80, "", ["kernel_Sm120"]), (2, 121, "a", ["kernel_Sm120"])], "native", (1, 0, 0)),
        ([(1, 80, "", ["kernel_Sm120", "kernel_Sm120_2"]), (2, 120, "", ["kernel_Sm120"])], "ptx", (1, 1, 0)),
        ([(2, 120, "", ["kernel_Sm120"]), (2, 100, "a", ["kernel_Sm120", "kernel_Sm120_2"])], "native", (1, 0, 1)),
    ],
)
def test_a_family_is_judged_by_device_symbols_and_what_loads(
    entries: list[tuple[int, int, str, list[str]]], verdict: str, counts: tuple[int, int, int]
) -> None:
    made = [
        build.entry(build.cubin(sm, suffix, names) if kind == 2 else build.ptx(names), sm, suffix, kind, "zstd")
        for kind, sm, suffix, names in entries
    ]
    scan = _cubin.Scan("12.1", [FAMILY])
    scan.keep(scan.inspect(build.shared_object(build.fatbin(*made)), "x.so"))
    result = scan.result()
    detail = result["kernels"]["demo"]
    assert result["families"] == {"demo": verdict}
    assert (detail["native"], detail["ptx"], detail["not_loadable"]) == counts


@pytest.mark.parametrize(("suffix", "expected"), [("f", True), ("", False)])
def test_block_scale_needs_a_target_with_a_suffix(suffix: str, expected: bool) -> None:
    scan = _cubin.Scan("12.1", [FAMILY])
    scan.keep(scan.inspect(build.fatbin(build.entry(build.cubin(120, "", ["kernel_Sm120"]), 120, suffix)), "x.fatbin"))
    assert scan.result()["kernels"]["demo"]["block_scale"] is expected


@pytest.mark.parametrize(("capability", "verdict"), [("9.0", "none"), ("10.0", "unknown")])
def test_what_is_not_known_for_a_capability_is_unknown(capability: str, verdict: str) -> None:
    assert _cubin.Scan(capability, [FAMILY]).result()["families"] == {"demo": verdict}


def test_none_needs_a_complete_scan() -> None:
    scan = _cubin.Scan("12.1", [FAMILY])
    scan.keep(scan.inspect(TWO[:60], "x.fatbin"))
    result = scan.result()
    assert (result["complete"], result["verdict"], result["families"]) == (False, "unknown", {"demo": "unknown"})


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"id": "x"},
        {"id": "x", "match": {"12": "y"}},
        {"id": "x", "match": {"any": [{"all": []}]}},
        {"id": "x", "match": {"any": [{"all": "Marlin"}]}},
        {"id": "x", "match": {"twelve": [{"all": ["y"]}]}},
        "x",
    ],
)
def test_a_bad_family_is_one_sentence(row: object) -> None:
    with pytest.raises(_cubin.CubinError, match=r"^families: .* is no row of a family table"):
        _cubin.Family.from_dict(row)


# ---- as a script


def script(*words: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    source = Path(_cubin.__file__).read_bytes() if stdin is None else stdin
    return subprocess.run([sys.executable, "-I", "-", *words], input=source, capture_output=True, check=False)


def test_the_file_runs_as_a_script_from_stdin() -> None:
    request = {
        "capability": "9.0",
        "families": [{"id": "scale", "match": {"any": [{"all": ["scale"]}]}}],
        "paths": [str(FIXTURES / "load_cc90/fat_80_p80.fatbin")],
    }
    done = script("--request", json.dumps(request))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["families"] == {"scale": "ptx"}
    assert re.fullmatch(r"[0-9a-f]{64}", answer["files"][0]["sha256"])


def test_the_script_lists_entries_and_says_what_is_damaged(tmp_path: Path) -> None:
    whole = FIXTURES / "containers/two_b.fatbin"
    done = script("--list", str(whole))
    assert done.stdout.decode().splitlines()[-1] == "elf sm_120f [1,8] stored fatbin"
    cut = tmp_path / "cut.fatbin"
    cut.write_bytes(whole.read_bytes()[:-100])
    done = script("--list", str(cut))
    assert done.returncode == 1
    assert b"cut.fatbin: a fatbin ends 100 bytes after" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is nothing to read; usage:"),
        (["--nonsense"], "--nonsense is no option; usage:"),
        (["--request"], "--request lacks its value; usage:"),
        (["--request", "{"], "--request is no JSON"),
        (["--request", "[]"], "--request is no JSON object"),
        (["--capability", "x", "/etc/passwd"], "capability 'x' is not a compute capability"),
        (["/no/such/file"], "paths: /no/such/file does not exist on this host"),
        (["--list", "/no/such/file"], "/no/such/file cannot be read"),
    ],
)
def test_a_bad_command_line_is_one_sentence(words: list[str], message: str) -> None:
    done = script(*words)
    assert done.returncode == 2
    assert done.stderr.decode().startswith(message)
    assert done.stderr.count(b"\n") == 1
