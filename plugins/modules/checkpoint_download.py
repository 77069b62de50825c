#!/usr/bin/python
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_download
short_description: Download a checkpoint from a Hugging Face hub into the cache of the box, with progress
version_added: 0.1.0
description:
  - Downloads one revision of a repository into the Hugging Face cache of the box, with the library inside the engine's
    image, in a transient systemd unit. An interrupted playbook does not interrupt the download, and the next run waits
    for the same one; an interrupted download goes on where it was.
  - A revision whose weights are complete on the box is left alone, and nobody is asked for it.
  - Nothing that runs on the box is touched.
author:
  - gb10.fleet maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gb10.fleet._attributes
  - gb10.fleet._progress
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  repo:
    description: The repository, as C(owner/name).
    type: str
    required: true
  revision:
    description: The commit, as 40 hex digits.
    type: str
    required: true
  image:
    description: The image, by digest, whose library downloads. It has to be on the box.
    type: str
    required: true
  folder:
    description: The Hugging Face home on the box, the folder that contains C(hub).
    type: path
    default: /var/lib/gb10-fleet/huggingface
  env:
    description: Environment variables of the download, by name, for example C(HF_ENDPOINT) for a mirror.
    type: dict
    default: {}
  token:
    description: A token for gated repositories.
    type: str
  program:
    description: Where the collection's program lies on the box, see M(gb10.fleet.box_program).
    type: path
    default: /usr/local/lib/gb10-fleet/fleet.pyz
"""

EXAMPLES = r"""
- name: Download a checkpoint
  gb10.fleet.checkpoint_download:
    repo: nvidia/Qwen3.6-35B-A3B-NVFP4
    revision: 0123456789abcdef0123456789abcdef01234567
    image: vllm/vllm-openai@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
"""

RETURN = r"""
finished:
  description: Whether the checkpoint is complete.
  returned: success
  type: bool
progress:
  description: How much has arrived, in one line.
  returned: success
  type: str
  sample: 12.10 of 22.31 GB
path:
  description: The folder of the revision on the box.
  returned: always
  type: str
  sample: /var/lib/gb10-fleet/huggingface/hub/models--nvidia--Qwen3.6-35B-A3B-NVFP4/snapshots/0123
"""

import json

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gb10.fleet.plugins.module_utils import _docker, _download, _instance, _job, _status


def main() -> None:
    """Begin the download or join it, then wait for a moment."""
    module = AnsibleModule(
        argument_spec={
            "repo": {"type": "str", "required": True},
            "revision": {"type": "str", "required": True},
            "image": {"type": "str", "required": True},
            "folder": {"type": "path", "default": "/var/lib/gb10-fleet/huggingface"},
            "env": {"type": "dict", "default": {}},
            "token": {"type": "str", "no_log": True},
            "program": {"type": "path", "default": "/usr/local/lib/gb10-fleet/fleet.pyz"},
            "begin": {"type": "bool", "default": True},
            "step": {"type": "int", "default": 8},
        },
        supports_check_mode=True,
    )
    given = module.params
    wanted = _download.Wanted(
        repo=given["repo"],
        revision=given["revision"],
        image=given["image"],
        folder=given["folder"],
        env=tuple(f"{name}={value}" for name, value in sorted(given["env"].items())),
    )
    path = str(wanted.snapshot)
    if given["begin"] and wanted.is_complete():
        module.exit_json(changed=False, finished=True, progress="the checkpoint is on the box", path=path)
    if module.check_mode:
        module.exit_json(changed=True, finished=True, progress="the checkpoint would be downloaded", path=path)
    job = _job.Job(
        name=_status.job_name("download", f"{wanted.repo}@{wanted.revision}"),
        description=f"Download {wanted.repo}",
        argv=("/usr/bin/python3", given["program"], "download", _request(wanted)),
        secrets={"HF_TOKEN": given["token"]} if given["token"] else {},
    )
    try:
        outcome = _job.wait(module.run_command, job, begin=given["begin"], step_s=given["step"])
    except (_docker.DockerError, _instance.UnitError) as error:
        module.fail_json(msg=str(error))
    if outcome.failed:
        module.fail_json(
            msg=f"{wanted.repo} at {wanted.revision} could not be downloaded: {outcome.message}. Nothing that runs on "
            "the box was touched.",
            path=path,
        )
    module.exit_json(changed=True, finished=outcome.finished, progress=outcome.message, path=path)


def _request(wanted: _download.Wanted) -> str:
    return json.dumps(
        {
            "repo": wanted.repo,
            "revision": wanted.revision,
            "image": wanted.image,
            "folder": wanted.folder,
            "env": wanted.env,
        }
    )


if __name__ == "__main__":
    main()
