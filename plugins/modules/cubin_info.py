#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cubin_info
version_added: 0.1.0
short_description: Tell which GPU kernels of an image or a wheel a GPU can run
description:
  - Reads the GPU code (cubins and PTX) in files, directories, Python wheels, container images, running containers and
    saved images, and says for each family of kernels whether a GPU of a given compute capability can run it.
  - Needs no GPU, no CUDA and no NVIDIA tool. Nothing is installed or changed, and nothing is pulled.
  - The rules are those of the CUDA Programming Guide. On a DGX Spark (12.1) C(sm_120), C(sm_120f) and C(sm_121*) load,
    C(sm_120a) does not. That something loads says nothing about its speed or its results.
  - An image is checked by running a read-only script inside it, without network, GPU or privileges, or by copying files
    out of a container that is never started.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._attributes.info_module
options:
  paths:
    description:
      - Files, directories and wheels (C(.whl)) on the host. Wheels are read without unpacking them.
      - Links that lead out of a directory are reported and not followed.
    type: list
    elements: path
  image:
    description:
      - An image that is on the host, as C(name:tag), C(name@sha256:...) or its id.
      - With O(archive), which of the images in the archive is meant, as C(name:tag).
    type: str
  container:
    description:
      - Name or id of a container. A running one is checked as it is, with what FlashInfer has compiled by now.
    type: str
  archive:
    description:
      - A file made by C(docker save), or a tar file of an OCI image layout.
    type: path
  method:
    description:
      - How O(image) is checked. V(run) runs the script inside, V(copy) copies the files out and starts nothing, V(auto)
        runs it and falls back to copying, for instance for an image of another CPU architecture.
    type: str
    choices: [auto, run, copy]
    default: auto
  engine:
    description:
      - The container engine's command, which takes the arguments of C(docker).
    type: str
    default: docker
  capability:
    description:
      - The compute capability to judge for.
    type: str
    default: "12.1"
  requires:
    description:
      - Kernel families that have to be there. Makes them the subject of RV(verdict), and a missing one a finding of
        severity C(error).
    type: list
    elements: str
    default: []
  expected_version:
    description:
      - The vLLM version that the image should have. Another one is a finding.
    type: str
  driver_cuda:
    description:
      - The CUDA version of the host's driver, as C(nvidia-smi) prints it. An image with a newer CUDA is a finding,
        because its PTX fails with error 222.
    type: str
  cache:
    description:
      - A folder on the host where what was found in O(image) is kept by the image's id, so that it is read only once.
        Written only where everything could be read, and not in check mode; a cache is no change of the host.
    type: path
  checksum:
    description:
      - Whether the SHA-256 of every file is returned. Members of wheels and archives are always hashed.
    type: bool
    default: true
  families:
    description:
      - The table of kernel families. Left out, it is the one of the collection
        (C(plugins/plugin_utils/data/kernel_families.yml)), whose head describes the format.
    type: list
    elements: dict
  packages:
    description:
      - Which Python packages of an image are read, in lower case and with C(*) as in a shell. Left out, it is the list
        of the collection.
    type: list
    elements: str
  jit_targets:
    description:
      - By compute capability, what FlashInfer compiles for (C(target)) and the first CUDA release that knows it
        (C(cuda)). Left out, it is the table of the collection.
    type: dict
  flashinfer_cubin_ignored_since:
    description:
      - The first FlashInfer version that leaves out a C(flashinfer-cubin) of another version rather than to fail. Left
        out, it is what the collection knows.
    type: str
"""

EXAMPLES = r"""
- name: See what a wheel has for a DGX Spark
  gb10.fleet.cubin_info:
    paths:
      - /srv/wheels/vllm-0.33.0-cp38-abi3-manylinux_2_28_aarch64.whl

- name: Check an image before it replaces the running one
  gb10.fleet.cubin_info:
    image: vllm/vllm-openai@sha256:0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0
    requires: [nvfp4_dense, nvfp4_moe]
    expected_version: 0.33.0
  register: kernels
  failed_when: kernels.verdict not in ['native', 'ptx']

- name: Check it again later, without reading it again
  gb10.fleet.cubin_info:
    image: vllm/vllm-openai@sha256:0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0
    cache: /var/lib/gb10-fleet/kernels
  become: true

- name: Look into an image that was saved to a file, for another GPU
  gb10.fleet.cubin_info:
    archive: /srv/images/vllm.tar
    capability: "9.0"
"""

RETURN = r"""
verdict:
  description:
    - With O(requires), the weakest of what is required. A family that FlashInfer can compile in this image counts as
      C(ptx).
    - Without it, the best that any file offers.
    - C(unknown) where something could not be read that might have made a difference.
  returned: success
  type: str
  sample: native
complete:
  description: Whether everything was read. If not, RV(findings) says what was not.
  returned: success
  type: bool
capability:
  description: The compute capability that was judged for.
  returned: success
  type: str
  sample: "12.1"
families:
  description:
    - The verdict for each family of kernels. C(native), there are cubins for all of its kernels that can run; C(ptx),
      some are PTX only, which the driver compiles at their first use; C(none); or C(unknown).
  returned: success
  type: dict
  sample: {nvfp4_dense: native, marlin_moe: ptx, fa3: none}
kernels:
  description:
    - For each family the number of kernels that are C(native), C(ptx) only and C(not_loadable), their C(archs) and
      C(files), whether FlashInfer can compile the family here (C(jit); null if unknown), and for FP4 whether a target
      with the block-scaled instruction is among those that load (C(block_scale)).
  returned: success
  type: dict
files:
  description:
    - For each file its C(path), C(kind), C(size) in bytes, C(sha256), number of C(entries), C(archs) with their
      numbers, C(native) and C(ptx) entries, C(verdict) and C(complete). Many bare cubins in one directory are one row.
  returned: success
  type: list
  elements: dict
packages:
  description:
    - For each package its installed C(version) and what it calls itself (C(stamp), which vLLM answers C(/version)
      with), its C(commit) and its C(cuda).
  returned: success
  type: dict
  sample: {vllm: {version: 0.33.0, stamp: 0.33.0, commit: g4ba787ec9}}
jit:
  description: Whether FlashInfer can compile for the GPU in this image (C(possible); null if unknown), and why.
  returned: success
  type: dict
tools:
  description: The CUDA compilers in the image with C(path) and C(version).
  returned: when an image or a container is checked
  type: dict
flashinfer_version_check:
  description:
    - Whether FlashInfer compares its version with that of flashinfer-cubin, which an environment variable stops.
  returned: when an image or a container is checked
  type: bool
image:
  description: What the engine or the archive says of the image; C(id), C(digests), C(tags), C(architecture).
  returned: when an image, a container or an archive is checked
  type: dict
method:
  description: How it was checked; C(run), C(exec), C(copy) or C(archive).
  returned: when an image, a container or an archive is checked
  type: str
cached:
  description: Whether the image was read before and its contents were taken from O(cache).
  returned: when an image is checked
  type: bool
method_reason:
  description: Why files were copied out rather than the script run.
  returned: when files were copied out
  type: str
findings:
  description: What is wrong or worth knowing; see C(docs/findings.md).
  returned: success
  type: list
  elements: dict
"""

import inspect
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _cubin, _cubin_cache, _cubin_image, _cubin_report


def scan(params: dict[str, t.Any], *, keep: bool) -> dict[str, t.Any]:
    """Return what is in the one source that was named."""
    request = {key: params[key] for key in ("capability", "families", "packages", "checksum")}
    if params["paths"] is not None:
        return _cubin.scan_request({**request, "paths": params["paths"]})
    if params["archive"]:
        return _cubin_image.scan_archive(params["archive"], request, params["image"] or "")
    runner, script, engine = _cubin_image.LocalRunner(), inspect.getsource(_cubin).encode(), params["engine"]
    if params["container"]:
        return _cubin_image.scan_container(runner, params["container"], request, script=script, program=engine)
    cache = _cubin_cache.Cache(params["cache"], request, script) if params["cache"] else None
    return _cubin_image.scan_image(
        runner,
        params["image"],
        request,
        script=script,
        program=engine,
        method=params["method"],
        cache=cache,
        keep=keep,
    )


def _tag(image: str, found: dict[str, t.Any]) -> str:
    """Return the name that claims a version: the one that was asked for, or one that the image has besides a digest."""
    tags = found.get("image", {}).get("tags") or [""]
    return image if ":" in image and "@" not in image and not image.startswith("sha256:") else str(tags[0])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path"},
            "image": {"type": "str"},
            "container": {"type": "str"},
            "archive": {"type": "path"},
            "method": {"type": "str", "choices": ["auto", "run", "copy"], "default": "auto"},
            "engine": {"type": "str", "default": "docker"},
            "capability": {"type": "str", "default": "12.1"},
            "requires": {"type": "list", "elements": "str", "default": []},
            "expected_version": {"type": "str"},
            "driver_cuda": {"type": "str"},
            "cache": {"type": "path"},
            "checksum": {"type": "bool", "default": True},
            "families": {"type": "list", "elements": "dict"},
            "packages": {"type": "list", "elements": "str"},
            "jit_targets": {"type": "dict"},
            "flashinfer_cubin_ignored_since": {"type": "str"},
        },
        mutually_exclusive=[("paths", "image", "container"), ("paths", "archive"), ("container", "archive")],
        required_one_of=[("paths", "image", "container", "archive")],
        supports_check_mode=True,
    )
    params = module.params
    try:
        found = scan(params, keep=not module.check_mode)
        found = _cubin_report.report(
            found,
            requires=params["requires"],
            jit_targets=params["jit_targets"],
            cubin_ignored_since=params["flashinfer_cubin_ignored_since"] or "",
            tag=_tag(params["image"] or "", found),
            expected_version=params["expected_version"] or "",
            driver_cuda=params["driver_cuda"] or "",
        )
    except _cubin.CubinError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"cache: {error.filename or params['cache']} cannot be written ({error.strerror})")
    module.exit_json(changed=False, msg=f"{found['verdict']} on {found['capability']}", **found)


if __name__ == "__main__":
    main()
