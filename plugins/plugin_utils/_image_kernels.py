# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether an image has the kernels that a checkpoint needs, and what its boot must therefore show.

Checkpoint declares, vLLM selects, image delivers: this is where the three meet, before anything that serves is stopped.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding, Severity
from ansible_collections.gb10.fleet.plugins.module_utils._version_stamp import stamp_findings
from ansible_collections.gb10.fleet.plugins.plugin_utils import _expected_backend, _instance_facts, _vllm_catalogue
from ansible_collections.gb10.fleet.plugins.plugin_utils._expected_backend import Choice, Expected, Kernels

# What cubin_info says of an image as a whole; the rest of its findings is about kernels that may not be needed.
_OF_THE_IMAGE: t.Final = frozenset({"FLASHINFER_CUBIN_VERSION_MISMATCH", "VERSION_STAMP_MISMATCH"})
_PARTS: t.Final = {"moe": ("experts", "the experts"), "linear": ("dense", "the dense layers")}


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """What the boot log has to name, in the words of a model role's ``expects``, and what was found."""

    expects: c.Mapping[str, t.Any]
    findings: tuple[Finding, ...]


def judge(
    instance: c.Mapping[str, t.Any],
    checkpoint: c.Mapping[str, t.Any],
    image: c.Mapping[str, t.Any] | None,
) -> Judgement:
    """Judge an instance by its checkpoint (checkpoint_info) and its image (cubin_info; None: it was not looked at).

    What the model role itself expects is laid over what follows from the versions.
    """
    kernels = Kernels.of_image(image) if image else Kernels()
    schemes = _schemes(checkpoint)
    flags = _instance_facts.instance_facts(instance)["flags"]
    expected = {
        part: _expected_backend.expected_backends(str(instance["vllm"]), scheme, kernels=kernels, flags=flags)
        for part, scheme in schemes.items()
    }
    found: list[Finding] = []
    if image:
        found += _of_the_image(instance, image)
        if not any(one.id == "IMAGE_WITHOUT_GPU_CODE" for one in found):
            found += [
                finding
                for part, scheme in schemes.items()
                for finding in _of_a_part(part, scheme, _choice(expected[part], part), kernels, image)
            ]
    expects = {
        key: value
        for part, one in expected.items()
        for key, value in one.as_expects().items()
        if key == f"{part}_backend"
    }
    return Judgement({**expects, **(instance.get("expects") or {})}, tuple(found))


def _schemes(checkpoint: c.Mapping[str, t.Any]) -> dict[str, str]:
    """Return the scheme of the experts and of the dense layers, as far as the checkpoint has them."""
    parts = checkpoint.get("parts") or {}
    found = {part: parts.get(name) for part, (name, _title) in _PARTS.items()}
    return {part: str(scheme) for part, scheme in found.items() if scheme}


def _choice(expected: Expected, part: str) -> Choice:
    return expected.moe if part == "moe" else expected.linear


def _of_the_image(instance: c.Mapping[str, t.Any], image: c.Mapping[str, t.Any]) -> t.Iterator[Finding]:
    name = image_name(instance)
    env = instance.get("env") or {}
    for one in image["findings"]:
        replaced = one["id"] == "PTXAS_TOO_OLD" and env.get("TRITON_PTXAS_PATH")
        if one["id"] in _OF_THE_IMAGE or (one["id"] == "PTXAS_TOO_OLD" and not replaced):
            yield _about(name, Finding(**{**one, "claim": one.get("claim", "")}))
    if not image["complete"]:
        problems = [one for one in image["findings"] if one["id"].startswith("CUBIN_")]
        yield Finding(
            "IMAGE_KERNELS_UNKNOWN",
            "warning",
            f"{name} could not be read to the end, so it is not known whether it has the kernels.",
            problems[0]["message"] if problems else "",
            "Look at it with gb10.fleet.cubin_info, or pull it again.",
        )
    elif not any(row["entries"] for row in image["files"]):
        yield Finding(
            "IMAGE_WITHOUT_GPU_CODE",
            "error",
            f"{name} has no code for any GPU.",
            f"{len(image['files'])} files were read",
            "Name an image that was built for CUDA on aarch64 (image.name, image.digest).",
        )
    vllm = image["packages"].get("vllm", {})
    if vllm:
        reported = str(vllm.get("stamp") or vllm.get("version", ""))
        tags = (image.get("image") or {}).get("tags") or [""]
        for finding in stamp_findings(
            reported, tag=str(tags[0]), expected=str(instance["vllm"]), newest=_vllm_catalogue.releases()[-1]
        ):
            yield _about(name, finding)


def _of_a_part(
    part: str, scheme: str, choice: Choice, kernels: Kernels, image: c.Mapping[str, t.Any]
) -> t.Iterator[Finding]:
    title = _PARTS[part][1]
    capability = image["capability"]
    compiler = "use an image with nvcc or flashinfer-jit-cache."
    marlin = _marlin(part, kernels)
    if choice.forced:
        yield from _of_a_forced(part, choice, kernels, image)
    elif choice.refused:
        yield Finding(
            "IMAGE_CANNOT_RUN_CHECKPOINT",
            "error",
            f"No kernel of the image runs {title} of this {scheme} checkpoint on {capability}.",
            f"vLLM would try {', '.join(choice.refused)}",
            f"Use another image: {_wheels(choice.refused)}.",
        )
    elif choice.is_certain and (missing := kernels.cannot_compile(choice.names[0])):
        yield Finding(
            "KERNELS_CANNOT_BE_COMPILED",
            "error",
            f"vLLM will pick {choice.names[0]} for {title}; the image neither has its kernels for {capability} nor can "
            "compile them, so the first request would end the engine.",
            f"{missing}: {(image.get('jit') or {}).get('reason', '')}".rstrip(": "),
            f"Set {part}_backend: {marlin} in args (the image has it), or {compiler}"
            if marlin
            else compiler.capitalize(),
        )
    elif choice.passed_over:
        yield Finding(
            "EXPECTED_BACKEND_FALLS_BACK",
            "warning",
            f"The image lacks the kernels of {', '.join(choice.passed_over)} for {capability}, so {title} of this "
            f"{scheme} checkpoint will run on {choice.names[0]}: right, and slower than it could be.",
            choice.why,
            f"Use another image: {_wheels(choice.passed_over)}.",
        )
    for name in choice.names[:1] if choice.is_certain else ():
        if kernels.verdict(name) == "ptx":
            yield Finding(
                "KERNELS_NEED_DRIVER_JIT",
                "info",
                f"{name} is there for {capability} as PTX only, which the driver compiles at the first use.",
                "",
                "Expect a long first boot; the cache folder of the instance keeps what was compiled.",
            )


def _of_a_forced(part: str, choice: Choice, kernels: Kernels, image: c.Mapping[str, t.Any]) -> t.Iterator[Finding]:
    for name in choice.names:
        lacks = kernels.lacks(name) or kernels.cannot_compile(name)
        if lacks:
            marlin = _marlin(part, kernels)
            instead = f", or set it to {marlin}, which the image has" if marlin else ""
            yield Finding(
                "FORCED_BACKEND_NOT_IN_IMAGE",
                "error",
                f"args.{part}_backend asks for {name}; the image has no {lacks} that runs on {image['capability']}.",
                "",
                f"Leave args.{part}_backend out{instead}; or use another image: {_wheels([name])}.",
            )


def _marlin(part: str, kernels: Kernels) -> str:
    """Return "marlin" where the image's Marlin runs."""
    name = "MARLIN" if part == "moe" else "MarlinNvFp4LinearKernel"
    return "" if kernels.lacks(name) else "marlin"


def _wheels(names: c.Iterable[str]) -> str:
    """Return from which of vLLM's own wheels on the kernels are there."""
    known = {f"vLLM {since} and newer has {name}" for name in names if (since := _expected_backend.native_since(name))}
    return "; ".join(sorted(known)) + " (docs/cubins.md)" if known else "docs/cubins.md says what the wheels have"


def image_name(instance: c.Mapping[str, t.Any]) -> str:
    """Return how findings call the image of an instance."""
    image = instance.get("image") or {}
    return f"The image {image.get('reference') or image.get('name', '')}"


def _about(name: str, finding: Finding) -> Finding:
    severity: Severity = finding.severity
    return dataclasses.replace(finding, severity=severity, message=f"{name}: {finding.message}")
