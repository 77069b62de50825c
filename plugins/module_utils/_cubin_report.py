# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Turns what a scan of GPU code found into a verdict and findings. Pure: no file, no clock, no engine.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import difflib
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._cubin import CubinError
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.module_utils._version_stamp import stamp_findings

ORDER = ("none", "unknown", "ptx", "native")


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def jit_state(
    tools: t.Mapping[str, t.Any] | None, capability: str, targets: t.Mapping[str, t.Mapping[str, str]]
) -> dict[str, t.Any]:
    """Return whether FlashInfer can compile for the device with what is in the image. Unknown is None."""
    target = targets.get(capability)
    state: dict[str, t.Any] = {
        "possible": None,
        "target": target["target"] if target else "",
        "needs_cuda": target["cuda"] if target else "",
        "nvcc": "",
        "reason": "",
    }
    if tools is None:
        state["reason"] = "files were checked, not an image, so it is not known which compilers will be there"
    elif not target:
        state["reason"] = f"it is not known what is compiled for capability {capability}"
    elif "nvcc" not in tools:
        off = tools.get("nvcc_off_path", {}).get("path", "")
        state["possible"] = False
        state["reason"] = f"nvcc is at {off} but not on PATH" if off else "there is no nvcc on PATH"
    elif not tools["nvcc"]["version"]:
        state["reason"] = f"the version of {tools['nvcc']['path']} could not be read"
    else:
        version = state["nvcc"] = tools["nvcc"]["version"]
        state["possible"] = _release(version)[:2] >= _release(target["cuda"])[:2]
        knows = "knows" if state["possible"] else "does not know"
        state["reason"] = f"nvcc {version} {knows} {target['target']}, which CUDA {target['cuda']} brought"
    return state


def _kernel_findings(found: t.Mapping[str, t.Any]) -> t.Iterator[Finding]:
    capability = found["capability"]
    for name, verdict in found["families"].items():
        kernels = found["kernels"][name]
        archs = ", ".join(kernels["archs"])
        if verdict == "none" and kernels["not_loadable"]:
            yield Finding(
                "KERNELS_NOT_LOADABLE",
                "warning",
                f"{kernels['title']}: {kernels['not_loadable']} kernels are there, and none loads on {capability}",
                evidence=f"{name}: {archs}",
                remedy="Use a wheel whose row in docs/cubins.md says native or ptx, or another backend.",
            )
        elif verdict == "ptx":
            yield Finding(
                "KERNELS_NEED_DRIVER_JIT",
                "info",
                f"{kernels['title']}: {kernels['ptx']} kernels are PTX only, which the driver compiles at first use",
                evidence=f"{name}: {archs}",
                remedy="Keep ~/.nv/ComputeCache on a volume, and the driver at least as new as the image's CUDA.",
            )
        if kernels.get("block_scale") is False:
            yield Finding(
                "FP4_WITHOUT_BLOCK_SCALE",
                "warning",
                f"{kernels['title']}: loads on {capability}, but from targets without the FP4 block-scaled instruction",
                evidence=f"{name}: {archs}",
                remedy="Use a build for the f or a target; FP4 kernels from a plain sm_120 target gave NaN.",
            )


def _tool_findings(
    tools: t.Mapping[str, t.Any], jit: t.Mapping[str, t.Any], capability: str, driver_cuda: str
) -> t.Iterator[Finding]:
    triton = tools.get("triton_ptxas", {})
    if (
        jit["needs_cuda"]
        and triton.get("version")
        and _release(triton["version"])[:2] < _release(jit["needs_cuda"])[:2]
    ):
        yield Finding(
            "PTXAS_TOO_OLD",
            "error",
            f"Triton's ptxas {triton['version']} does not know {jit['target']}: its first kernel will fail",
            evidence=triton["path"],
            remedy=f"Set TRITON_PTXAS_PATH to a ptxas of CUDA {jit['needs_cuda']} or later inside the image.",
        )
    newest = max((one["version"] for one in tools.values() if one.get("version")), key=_release, default="")
    if driver_cuda and newest and _release(newest)[:2] > _release(driver_cuda)[:2]:
        yield Finding(
            "IMAGE_TOOLKIT_NEWER_THAN_DRIVER",
            "warning",
            f"the image has CUDA {newest}, the driver CUDA {driver_cuda}: cubins load, PTX fails with error 222",
            evidence=", ".join(f"{one['path']} {one['version']}" for one in tools.values()),
            remedy=f"Use an image of CUDA {driver_cuda} or a newer driver; no environment variable helps.",
        )
    if jit["possible"] is False:
        yield Finding(
            "FLASHINFER_JIT_NOT_POSSIBLE",
            "info",
            f"FlashInfer cannot compile for {capability} in this image: {jit['reason']}",
            remedy="Use an image with nvcc or with flashinfer-jit-cache, or backends that are not FlashInfer's.",
        )


def _package_findings(found: t.Mapping[str, t.Any], ignored_since: str) -> t.Iterator[Finding]:
    packages = found["packages"]
    for name, facts in packages.items():
        version, stamp = facts.get("version", ""), facts.get("stamp", "")
        if version and stamp and version.partition("+")[0] != stamp.partition("+")[0]:
            yield Finding(
                "VERSION_STAMP_MISMATCH",
                "warning",
                f"{name}: the package is installed as {version} and calls itself {stamp}",
                remedy="Find out how the image was built: one of the two is not true.",
            )
    main = packages.get("flashinfer_python", {})
    mine = main.get("version") or main.get("stamp", "")
    cubins = packages.get("flashinfer_cubin", {})
    theirs = cubins.get("version") or cubins.get("stamp", "")
    if mine and theirs and mine != theirs:
        ignored = bool(ignored_since) and _release(mine) >= _release(ignored_since)
        checked = found.get("flashinfer_version_check", True)
        yield Finding(
            "FLASHINFER_CUBIN_VERSION_MISMATCH",
            "error" if checked and not ignored else "warning",
            f"flashinfer-cubin ({theirs}) does not match flashinfer ({mine})"
            + (", so it is left out" if ignored and checked else ", so the import fails" if checked else ""),
            evidence="" if checked else "FLASHINFER_DISABLE_VERSION_CHECK is set",
            remedy="Install equal versions, or set FLASHINFER_DISABLE_VERSION_CHECK=1 (it hides real mismatches too).",
        )


def _missing(found: t.Mapping[str, t.Any], requires: t.Sequence[str]) -> t.Iterator[Finding]:
    families, kernels = found["families"], found["kernels"]
    marlin = [name for name in ("marlin_dense", "marlin_moe") if families.get(name) in {"native", "ptx"}]
    for name in requires:
        if families[name] not in {"native", "ptx"} and not kernels[name]["jit"]:
            word = "not known to be" if families[name] == "unknown" else "not"
            yield Finding(
                "REQUIRED_KERNELS_MISSING",
                "error",
                f"{kernels[name]['title']}: required, and {word} there for {found['capability']}",
                evidence=f"{name}: {', '.join(kernels[name]['archs']) or 'no such kernel in the files'}",
                remedy="Use another image"
                + (f", or the Marlin backend, which this one has ({', '.join(marlin)})." if marlin else "."),
            )


def report(
    found: dict[str, t.Any],
    *,
    requires: t.Sequence[str] = (),
    jit_targets: t.Mapping[str, t.Mapping[str, str]] | None = None,
    cubin_ignored_since: str = "",
    tag: str = "",
    expected_version: str = "",
    driver_cuda: str = "",
) -> dict[str, t.Any]:
    """Return a scan's result with the state of the JIT, a verdict on what is required, and all findings.

    The verdict is the weakest of the required families, where one that FlashInfer can compile counts as ptx: it runs
    after a slow first use. Without requirements it is the best that any file offers.
    """
    families = found["families"]
    for name in requires:
        if name not in families:
            near = difflib.get_close_matches(name, families, n=2) or sorted(families)
            raise CubinError(f"requires: {name} is no kernel family; known are {', '.join(near) or 'none'}")
    jit = jit_state(found.get("tools"), found["capability"], jit_targets or {})
    for detail in found["kernels"].values():
        detail["jit"] = jit["possible"] if detail["jit"] else False
    findings: list[Finding] = list(_missing(found, requires))
    if not any(row["entries"] for row in found["files"]):
        findings.append(
            Finding(
                "NO_GPU_CODE",
                "warning",
                "no file with GPU code was found",
                remedy="Name the directory, wheel or image that holds the kernels.",
            )
        )
    findings += _kernel_findings(found)
    findings += _package_findings(found, cubin_ignored_since)
    if "tools" in found:
        findings += _tool_findings(found["tools"], jit, found["capability"], driver_cuda)
    vllm = found["packages"].get("vllm", {})
    if vllm:
        reported = vllm.get("stamp") or vllm.get("version", "")
        findings += stamp_findings(reported, tag=tag, expected=expected_version)
    verdict = found["verdict"]
    if requires:
        counted = ["ptx" if kernels_jit(found, name) else families[name] for name in requires]
        verdict = min(counted, key=ORDER.index)
    every = [*(_reading(one) for one in found["findings"]), *findings]
    return {**found, "jit": jit, "verdict": verdict, "findings": [one.as_dict() for one in every]}


def _reading(one: t.Mapping[str, t.Any]) -> Finding:
    """Return a problem of the reader as a finding. It may come from inside an image, so it is taken apart by hand."""
    severity: t.Literal["error", "warning"] = "warning" if one.get("severity") == "warning" else "error"
    texts = {key: str(one.get(key, ""))[:2000] for key in ("id", "message", "evidence", "remedy")}
    return Finding(texts["id"], severity, texts["message"], texts["evidence"], texts["remedy"])


def kernels_jit(found: t.Mapping[str, t.Any], name: str) -> bool:
    """Return whether a family is not compiled, but can be at first use."""
    return found["families"][name] in {"none", "unknown"} and bool(found["kernels"][name]["jit"])
