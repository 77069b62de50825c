# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Wrong inventories, one fault each: site.yml stops before a connection, naming the file, the key and the remedy."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import sys
import typing as t

import ansible_runner
import pytest

CHECKOUT = pathlib.Path(__file__).parents[3]
SCRIPTS = pathlib.Path(sys.executable).parent
DIGEST = "sha256:" + "ab" * 32
COMMIT = "0123456789abcdef0123456789abcdef01234567"

HOSTS = """\
sparks:
  hosts:
    spark-1:
      ansible_host: 192.0.2.1
      ansible_ssh_executable: {ssh}
"""
PAIR = (
    HOSTS
    + """\
    spark-2:
      ansible_host: 192.0.2.2
      ansible_ssh_executable: {ssh}
others:
  hosts:
    desk:
      ansible_host: 192.0.2.3
"""
)
CATALOGUE = f"""\
model_catalogue:
  writer:
    checkpoint:
      repo: example/writer
      revision: {COMMIT}
    image:
      name: vllm/vllm-openai
      digest: {DIGEST}
    vllm: "0.32.0"
    max_model_len: 4096
    max_num_seqs: 4
"""
BOX = "model_roles: [writer]\n"


@dataclasses.dataclass(frozen=True)
class Fault:
    """A wrong inventory: the text of a box's host_vars and of the group's, and what the message has to say."""

    says: tuple[str, ...]
    box: str = BOX
    group: str = CATALOGUE
    where: str = "host_vars/spark-1.yml"
    hosts: str = HOSTS


def in_group(old: str, new: str, *says: str) -> Fault:
    """A fault in the catalogue of the group."""
    changed = CATALOGUE.replace(old, new)
    if changed == CATALOGUE:
        raise ValueError(old)
    return Fault(says=says, group=changed, where="group_vars/sparks.yml")


FAULTS: dict[str, Fault] = {
    "unknown model role": Fault(
        ("model_roles[0]", "there is no model role 'wrter'", "did you mean writer"), box="model_roles: [wrter]\n"
    ),
    "unknown model role in the long form": Fault(
        ("model_roles[0].role", "there is no model role 'reader'", "writer"), box="model_roles:\n  - role: reader\n"
    ),
    "model roles are not a list": Fault(
        ("model_roles", "'writer' is a string, not a list", "model_roles: [coordinator]"), box="model_roles: writer\n"
    ),
    "an entry is a number": Fault(
        ("model_roles[0]", "8000 is a whole number", "{role: coordinator, port: 8000}"), box="model_roles: [8000]\n"
    ),
    "an entry without its role": Fault(
        ("model_roles[0].role", "is missing", "role: coordinator"), box="model_roles:\n  - port: 8001\n"
    ),
    "an unknown key of a box": Fault(
        ("model_roles[0].max_seqs", "there is no key 'max_seqs'", "max_num_seqs"),
        box="model_roles:\n  - role: writer\n    max_seqs: 4\n",
    ),
    "a port that is no port": Fault(
        ("model_roles[0].port", "70000 is not between 1024 and 65535"),
        box="model_roles:\n  - {role: writer, port: 70000}\n",
    ),
    "a port in quotes": Fault(
        ("model_roles[0].port", "'8000' is a string, not a whole number", "8000"),
        box='model_roles:\n  - {role: writer, port: "8000"}\n',
    ),
    "a port taken twice": Fault(
        ("model_roles[1].port", "port 8000 is taken by model_roles[0] (writer)", "port: 8001"),
        box="model_roles:\n  - writer\n  - {role: writer, name: second}\n",
    ),
    "a name taken twice": Fault(
        ("model_roles[1].name", "name writer is taken by model_roles[0]", "name: writer-2"),
        box="model_roles:\n  - writer\n  - {role: writer, port: 8001}\n",
    ),
    "a name that cannot be a unit": Fault(
        ("model_roles[0].name", "'Big Writer' is not a name", "vllm-<name>"),
        box='model_roles:\n  - {role: writer, name: "Big Writer"}\n',
    ),
    "tensor parallel on one box": Fault(
        ("model_roles[0]", "tensor_parallel_size is 2, but a box has one GPU", "fits one box"),
        box="model_roles:\n  - {role: writer, tensor_parallel_size: 2}\n",
    ),
    "a serving group of one box": Fault(
        ("serving_group.tensor_parallel_size", "the group sparks has 1 box", "model_roles of spark-1"),
        box=BOX + "serving_address: 192.0.2.1\n",
        group=CATALOGUE + "serving_group: {model_role: writer, tensor_parallel_size: 2}\n",
        where="group_vars/sparks.yml",
    ),
    "an unknown key of a serving group": Fault(
        ("serving_group.modle_role", "there is no key 'modle_role' here", "did you mean model_role?"),
        group=CATALOGUE + "serving_group: {model_role: writer, modle_role: writer}\n",
        where="group_vars/sparks.yml",
    ),
    "a flag of serving groups": in_group(
        "    max_num_seqs: 4\n",
        "    max_num_seqs: 4\n    args: {nnodes: 2}\n",
        "writer.args",
        "sets the flag 'nnodes', which has a key of its own: serving_group",
    ),
    "an image without a digest": Fault(
        ("model_roles[0]", "without a digest, and a tag alone can move", "digest: 'sha256:...'"),
        group=CATALOGUE.replace(f"      digest: {DIGEST}\n", ""),
    ),
    "a tag for a digest": in_group(
        f"digest: {DIGEST}", "digest: v0.32.0", "image.digest", "'v0.32.0' is not a digest", "imagetools inspect"
    ),
    "a tag in the name": in_group(
        "name: vllm/vllm-openai", "name: vllm/vllm-openai:latest", "image.name", "without a tag", "name: and digest:"
    ),
    "a branch for a revision": in_group(
        f"revision: {COMMIT}",
        "revision: main",
        "checkpoint.revision",
        "'main' is not a commit",
        "moves under your feet",
    ),
    "a checkpoint without its repository": in_group(
        "      repo: example/writer\n", "", "checkpoint.repo", "is missing", "add it"
    ),
    "a version that YAML reads as a number": in_group(
        'vllm: "0.32.0"', "vllm: 0.32", "writer.vllm", "0.32 is a number, not a string", "in quotes"
    ),
    "a context that is true": in_group(
        "max_model_len: 4096", "max_model_len: true", "writer.max_model_len", "True is true or false", "131072"
    ),
    "a model role without its context": in_group(
        "    max_model_len: 4096\n", "", "writer.max_model_len", "is missing", "max_model_len: 131072"
    ),
    "an unknown key of a model role": in_group(
        "    max_num_seqs: 4\n",
        "    max_num_seqs: 4\n    reasoning_parsr: qwen3\n",
        "writer.reasoning_parsr",
        "there is no key 'reasoning_parsr'",
        "did you mean reasoning_parser",
    ),
    "a size with a unit": in_group(
        "    max_num_seqs: 4\n",
        "    max_num_seqs: 4\n    kv_cache_memory_bytes: 6G\n",
        "writer.kv_cache_memory_bytes",
        "'6G' is a size with a unit",
        "write plain bytes",
    ),
    "more than the whole memory": in_group(
        "    max_num_seqs: 4\n",
        "    max_num_seqs: 4\n    gpu_memory_utilization: 80\n",
        "writer.gpu_memory_utilization",
        "80 is not above 0 and at most 1",
        "0.6",
    ),
    "a flag that has a key of its own": in_group(
        "    max_num_seqs: 4\n",
        "    max_num_seqs: 4\n    args: {max-model-len: 8192}\n",
        "writer.args",
        "'max-model-len', which has a key of its own: max_model_len",
    ),
    "a flag of the catalogue that this vLLM does not have": Fault(
        ("model_catalogue.writer.args.no_such_flag: writer: vLLM 0.32.0 has no flag --no-such-flag", "FLAG_UNKNOWN"),
        group=CATALOGUE + "    args:\n      no_such_flag: 1\n",
        where="group_vars/sparks.yml:13: ",
    ),
    "a number that YAML reads otherwise": in_group(
        "max_model_len: 4096", "max_model_len: 020000", "writer.max_model_len", "YAML reads 020000 as 8192"
    ),
    "a time for a number": Fault(
        ("model_roles[0].max_num_seqs", "YAML reads 2:30 as 150"),
        box="model_roles:\n  - {role: writer, max_num_seqs: 2:30}\n",
    ),
    "a setting that nothing reads": Fault(
        ("vllm_server_boot_timout: nothing reads this variable", "did you mean vllm_server_boot_timeout?"),
        box=BOX + "vllm_server_boot_timout: 60\n",
    ),
    "a setting of the driver that nothing reads": Fault(
        ("nvidia_driver_versoin: nothing reads this variable", "did you mean nvidia_driver_version?"),
        box=BOX + 'nvidia_driver_versoin: "580.142"\n',
    ),
    "a setting of the container runtime that nothing reads": Fault(
        ("container_runtime_mange: nothing reads this variable", "did you mean container_runtime_manage?"),
        box=BOX + "container_runtime_mange: true\n",
    ),
    "an address that is none": Fault(
        ("vllm_server_listen_address", "'999.1.1.1' is not an IPv4 or IPv6 address"),
        box=BOX + "vllm_server_listen_address: 999.1.1.1\n",
    ),
    "a drafter that nobody named": Fault(
        ("model_roles[0].speculative.model", "dflash drafts with a model of its own", "{model: owner/drafter}"),
        box="model_roles:\n  - {role: writer, speculative: {method: dflash, num_speculative_tokens: 8}}\n",
    ),
    "a flag that this vLLM does not have": Fault(
        (
            "model_roles[0].args.swap_space: writer: vLLM 0.32.0 has no flag --swap-space any more",
            "Remove it",
            "FLAG_REMOVED",
        ),
        box="model_roles:\n  - {role: writer, args: {swap_space: 4}}\n",
    ),
    "no model roles at all": Fault(
        ("model_roles is not there", "model_roles: []"), box="serves: [writer]\n", where="spark-1"
    ),
    "model roles under another name": Fault(
        ("model_role: nothing reads this variable", "did you mean model_roles?"), box="model_role: [writer]\n"
    ),
    "a flag that has a key of its own, with a dot": Fault(
        ("model_roles[0].args", "has a key of its own: speculative"),
        box="model_roles:\n  - {role: writer, args: {speculative_config.method: dflash}}\n",
    ),
    "memory that is taken twice": Fault(
        ("model_roles[0].args", "'cpu_offload_gb', which cannot be used", "share one pool"),
        box="model_roles:\n  - {role: writer, args: {cpu_offload_gb: 90}}\n",
    ),
    "a batch that is a slip of the finger": Fault(
        ("model_roles[0].args", "10000000000 for max_num_batched_tokens", "from 1 to"),
        box="model_roles:\n  - {role: writer, args: {max_num_batched_tokens: 10000000000}}\n",
    ),
    "a secret deep in a flag": Fault(
        ("model_roles[0].args", "has 'token', which looks like a secret"),
        box="model_roles:\n  - {role: writer, args: {hf_overrides: {token: hidden}}}\n",
    ),
    "a secret by its look": Fault(
        ("model_roles[0].env", "has 'PROXY', which looks like a secret"),
        box="model_roles:\n  - {role: writer, env: {PROXY: 'http://me:hidden@192.0.2.9'}}\n",
    ),
    "a line break in an argument": Fault(
        ("model_roles[0].env", "gives A a line break"),
        box='model_roles:\n  - {role: writer, env: {A: "x\\rUser=evil"}}\n',
    ),
    "a model name that is a flag": Fault(
        ("model_roles[0].served_model_name", "is not a list of names"),
        box="model_roles:\n  - {role: writer, served_model_name: [a, --trust-remote-code]}\n",
    ),
    "a number of drafts in words": Fault(
        ("model_roles[0].speculative", "num_speculative_tokens, which is not a whole number"),
        box="model_roles:\n  - {role: writer, speculative: {num_speculative_tokens: x}}\n",
    ),
    "a digest that nobody has filled in": in_group(
        f"digest: {DIGEST}", "digest: sha256:" + "0" * 64, "image.digest", "is not a digest"
    ),
    "a secret of two lines": Fault(
        ("vllm_server_api_key", "it is not one line of text"),
        box=BOX + 'vllm_server_api_key: "hidden\\nLD_PRELOAD=/x"\n',
    ),
    "a key of several words": Fault(
        ("vllm_server_api_key", "it holds spaces, control or non-ASCII characters", "choose one of letters"),
        box=BOX + "vllm_server_api_key: correct horse hidden\n",
    ),
    "a key of another alphabet among the secrets": Fault(
        ("vllm_server_secret_env.VLLM_API_KEY", "which no HTTP header can carry"),
        box=BOX + "vllm_server_secret_env: {VLLM_API_KEY: schlüssel-hidden}\n",
    ),
    "a timeout below nothing": Fault(
        ("vllm_server_boot_timeout", "-5 is not between 1 and"), box=BOX + "vllm_server_boot_timeout: -5\n"
    ),
    "a watch that is too hasty": Fault(
        ("vllm_server_liveness_period", "5 is not between 15 and 86400"), box=BOX + "vllm_server_liveness_period: 5\n"
    ),
    "a watch that restarts for ever": Fault(
        ("vllm_server_liveness_window", "within 60 s there is no time for 3 restarts", "give it 9510 or more"),
        box=BOX + "vllm_server_liveness_window: 60\n",
    ),
    "a variable of another role that is misspelt": Fault(
        ("nvidia_driver_mange: nothing reads this variable; did you mean nvidia_driver_manage?",),
        box=BOX + "nvidia_driver_mange: 5\n",
    ),
    "a driver of another branch": Fault(
        ("nvidia_driver_version", "570.86.10 is not of the branch 580"),
        box=BOX + 'nvidia_driver_version: "570.86.10"\n',
    ),
    "a variable with nothing in it": Fault(
        ("vllm_server_boot_timeout: None is nothing, not a whole number",),
        box=BOX + "vllm_server_boot_timeout:\n",
    ),
    "a watch that is neither on nor off": Fault(
        ("vllm_server_liveness", "'sometimes' is a string, not true or false"),
        box=BOX + "vllm_server_liveness: sometimes\n",
    ),
    "an age in words": Fault(
        ("model_catalogue.writer.restart_after_hours", "is a string, not a whole number"),
        group=CATALOGUE + "    restart_after_hours: nightly\n",
        where="group_vars/sparks.yml",
    ),
    "a secret in the environment": in_group(
        "    max_num_seqs: 4\n",
        "    max_num_seqs: 4\n    env: {HF_TOKEN: hidden}\n",
        "writer.env",
        "'HF_TOKEN', which looks like a secret",
        "vllm_server_secret_env",
    ),
    "an empty environment variable": in_group(
        "    max_num_seqs: 4\n",
        '    max_num_seqs: 4\n    env: {NCCL_IB_GID_INDEX: ""}\n',
        "writer.env",
        "not the same as leaving it unset",
        "remove the line",
    ),
    "a template that cannot be resolved": Fault(
        ("model_roles", "a template or secret in it cannot be resolved", "no_such_variable"),
        box='model_roles: ["{{ no_such_variable }}"]\n',
        where="host_vars/spark-1.yml:1: ",
    ),
    "twins in one subnet": Fault(
        ("fabric.subnets[1]: 192.0.3.0/24 overlaps with fabric.subnets[0]", "shared_subnet: true"),
        box=BOX + "fabric:\n  members: [spark-1, spark-2]\n  subnets: [192.0.3.0/24, 192.0.3.0/24]\n",
    ),
    "an address with a leading zero": Fault(
        ("fabric.members[1].addresses[0]: '192.168.100.012' has a part with a leading zero", "192.168.100.12?"),
        box=BOX + "fabric:\n  members: [spark-1, {box: spark-2, addresses: [192.168.100.012, 192.168.101.12]}]\n",
    ),
    "a member that nobody knows": Fault(
        (
            "fabric.members[1]: spark-2 is no host of the group sparks, nor of the inventory at all",
            "did you mean spark-1?",
        ),
        box=BOX + "fabric:\n  members: [spark-1, spark-2]\n",
    ),
    "a fabric with a template that cannot be resolved": Fault(
        ("fabric: a template or secret in it cannot be resolved",),
        box=BOX + 'fabric:\n  mtu: "{{ nowhere }}"\n',
        where="host_vars/spark-1.yml:3: ",
    ),
    "two names for one box": Fault(
        ("ansible_host: 192.0.2.1 is where spark-1 is reached already", "give spark-2 its own address"),
        group=CATALOGUE + BOX,
        where="hosts.yml:",
        hosts=PAIR.replace("192.0.2.2", "192.0.2.1"),
    ),
    "a known limit that nobody knows": Fault(
        ("model_roles[0].evidence.known_limits: there is no claim 'NO_SUCH_CLAIM'",),
        box="model_roles:\n  - {role: writer, evidence: {known_limits: [NO_SUCH_CLAIM]}}\n",
    ),
    "a way to draft that is misspelt": Fault(
        ("speculative.model", "mtpp drafts with a model of its own, unless mtp is meant"),
        box="model_roles:\n  - {role: writer, speculative: {method: mtpp, num_speculative_tokens: 2}}\n",
    ),
    "a fabric that reaches one of its members": Fault(
        ("fabric.members[1]: spark-2 is a member, and no fabric reaches it",),
        box="fabric:\n  members: [spark-1, spark-2]\n",
        group=CATALOGUE + BOX,
        hosts=PAIR,
    ),
    "a member that the playbooks do not run on": Fault(
        ("fabric.members[1]: desk is no host of the group sparks",),
        box=BOX + "fabric:\n  members: [spark-1, desk]\n",
        group=CATALOGUE + BOX,
        hosts=PAIR,
    ),
    "a fabric without room for its members": Fault(
        ("fabric.first_host: 192.168.100.0/24 has no host number for spark-2: 192.168.100.255", "lower first_host"),
        group=CATALOGUE + BOX + "fabric:\n  members: [spark-1, spark-2]\n  shared_subnet: true\n  first_host: 253\n",
        where="group_vars/sparks.yml",
        hosts=PAIR,
    ),
    "a number of a fabric that YAML reads otherwise": Fault(
        ("fabric.first_host: YAML reads 010 as 8",),
        box=BOX + "fabric:\n  members: [spark-1, spark-2]\n  first_host: 010\n",
    ),
    "a catalogue that is a list": Fault(
        ("model_catalogue", "not a mapping of model roles", "{my-role:"),
        group="model_catalogue: [writer]\n",
        where="group_vars/sparks.yml",
    ),
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run of site.yml came to."""

    status: str
    message: str
    connected: bool
    first_batch: frozenset[str]
    output: str


def run_site(
    folder: pathlib.Path,
    box: str,
    group: str,
    hosts: str = HOSTS,
    *,
    files: t.Mapping[str, str] | None = None,
    tags: str = "",
    playbook: str = "site.yml",
) -> Outcome:
    """Run a playbook, or what of it has some tags, on boxes that cannot be reached, and see whether it was tried."""
    touched = folder / "connected"
    ssh = folder / "ssh"
    ssh.write_text(f"#!/bin/sh\ntouch {touched}\nexit 255\n", encoding="utf-8")
    ssh.chmod(0o755)
    (folder / "runner").mkdir()
    inventory = folder / "inventory"
    for path, text in {
        "hosts.yml": hosts.replace("{ssh}", str(ssh)),
        "group_vars/sparks.yml": group,
        "host_vars/spark-1.yml": box,
        **(files or {}),
    }.items():
        (inventory / path).parent.mkdir(parents=True, exist_ok=True)
        (inventory / path).write_text(text, encoding="utf-8")
    runner = ansible_runner.run(
        private_data_dir=str(folder / "runner"),
        playbook=str(CHECKOUT / playbook),
        inventory=str(inventory),
        cmdline=f"--tags {tags}" if tags else None,
        envvars={"ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"), "PATH": f"{SCRIPTS}:{os.environ['PATH']}"},
        quiet=True,
    )
    batch = {
        event["event_data"]["host"]
        for event in runner.events
        if event["event"] == "runner_on_ok" and event["event_data"]["task"].startswith("Stop where a box")
    }
    failures = [
        event["event_data"]["res"]["msg"]
        for event in runner.events
        if event["event"] in {"runner_on_failed", "runner_on_unreachable"}
    ]
    output = " ".join(runner.stdout.read().split())
    return Outcome(
        t.cast("str", runner.status), "\n".join(map(str, failures)), touched.exists(), frozenset(batch), output
    )


def test_a_key_that_is_written_twice_stops_the_run(tmp_path: pathlib.Path) -> None:
    outcome = run_site(tmp_path, BOX + "model_roles: []\n", CATALOGUE)
    assert outcome.status == "failed"
    assert not outcome.connected


@pytest.mark.parametrize("where", ["group_vars/other.yml", "hosts.yml"])
def test_a_second_serving_group_over_the_same_boxes_is_refused(tmp_path: pathlib.Path, where: str) -> None:
    serving = "serving_group: {model_role: writer}\n"
    hosts = PAIR + "pair: {hosts: {spark-1: , spark-2: }}\nother:\n  hosts: {spark-1: , spark-2: }\n"
    files = {"group_vars/pair.yml": f"# The cable between them.\nfabric: {{members: [spark-1, spark-2]}}\n{serving}"}
    if where == "hosts.yml":
        hosts += f"  vars:\n    {serving}"
    else:
        files[where] = serving
    outcome = run_site(tmp_path, "model_roles: []\n", CATALOGUE + "model_roles: []\n", hosts, files=files)
    assert outcome.status == "failed"
    assert not outcome.connected
    line = len(hosts.splitlines()) if where == "hosts.yml" else 1
    assert re.search(
        rf"spark-1, spark-2 would be in 2 serving groups, other \(\S*{where}:{line}\) and pair \(\S*pair.yml:3\);",
        outcome.message,
    ), outcome.message
    assert len(outcome.message.splitlines()) == 1


def test_every_fault_is_said_at_once(tmp_path: pathlib.Path) -> None:
    box = "model_roles:\n  - role: writer\n    tool_call_parser: bogus\n    reasoning_parser: bogus\n"
    outcome = run_site(tmp_path, box + "    args:\n      swap_space: 4\n      seed: x\n", CATALOGUE)
    places = [line.partition(": ")[0].rpartition("/")[2] for line in outcome.message.splitlines()]
    assert sorted(places) == [f"spark-1.yml:{line}" for line in (3, 4, 6, 7)]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_wrong_inventory_is_refused_before_any_connection(fault: Fault, tmp_path: pathlib.Path) -> None:
    outcome = run_site(tmp_path, fault.box, fault.group, fault.hosts)
    assert outcome.status == "failed"
    assert not outcome.connected
    missing = [words for words in (fault.where, *fault.says) if words not in outcome.message]
    assert not missing, outcome.message
    assert len(outcome.message.splitlines()) == 1, outcome.message
    assert "hidden" not in outcome.message


@pytest.mark.parametrize("tag", ["fabric", "vllm_server", "container_runtime", "nvidia_driver", "preflight"])
def test_a_run_of_some_tags_is_refused_before_any_connection_as_well(tmp_path: pathlib.Path, tag: str) -> None:
    outcome = run_site(tmp_path, BOX + "fabric:\n  members: [spark-1, spark-9]\n", CATALOGUE, tags=tag)
    assert outcome.status == "failed"
    assert not outcome.connected
    assert "fabric.members[1]: spark-9 is no host of the group sparks" in outcome.message


def test_a_run_of_some_tags_checks_the_roles_of_driver_and_container_runtime_as_well(tmp_path: pathlib.Path) -> None:
    outcome = run_site(tmp_path, BOX + "container_runtime_x: true\n", CATALOGUE, tags="preflight")
    assert outcome.status == "failed"
    assert not outcome.connected
    assert "nothing reads container_runtime_x" in outcome.message


def test_a_run_of_some_tags_leaves_the_boxes_of_a_serving_group_in_one_batch(tmp_path: pathlib.Path) -> None:
    group = CATALOGUE + "fabric: {members: [spark-1, spark-2]}\nserving_group: {model_role: writer}\n"
    outcome = run_site(tmp_path, "model_roles: []\n", group, PAIR, tags="vllm_server_serve")
    assert outcome.first_batch == {"spark-1", "spark-2"}, outcome.message


# What only the role's own variables have, with nothing that they look like, or of another type than they have to be.
OF_ROLES = {
    "nvidia_driver_x: true": "nothing reads nvidia_driver_x",
    "container_runtime_x: true": "nothing reads container_runtime_x",
    "nvidia_driver_version: 580.170": "nvidia_driver_version: 580.17 is a number, not a string",
    "nvidia_driver_version:": "nvidia_driver_version: None is nothing, not a string",
    "nvidia_driver_manage: yes please": "nvidia_driver_manage: 'yes please' is a string, not true or false",
    "nvidia_driver_allow_reboot: soon": "nvidia_driver_allow_reboot: 'soon' is a string, not true or false",
    "nvidia_driver_reboot_timeout: 10m": "nvidia_driver_reboot_timeout: '10m' is a string, not a whole number",
    "nvidia_driver_known_limits: {DRIVER_590_48_LEAKS: true}": "is a mapping, not a list; write it like this: [ID",
    "container_runtime_daemon_config: cdi": "container_runtime_daemon_config: 'cdi' is a string, not a mapping",
}


@pytest.mark.parametrize("line", OF_ROLES)
def test_a_wrong_variable_of_driver_or_container_runtime_is_refused_before_any_connection(
    line: str, tmp_path: pathlib.Path
) -> None:
    outcome = run_site(tmp_path, f"{BOX}{line}\n", CATALOGUE)
    assert outcome.status == "failed"
    assert not outcome.connected
    assert OF_ROLES[line] in outcome.message


def test_a_right_inventory_leads_to_a_connection(tmp_path: pathlib.Path) -> None:
    """The proof that the test above can fail: the same box is reached for where nothing is wrong."""
    outcome = run_site(tmp_path, BOX, CATALOGUE)
    assert outcome.connected
    assert "Failed to connect" in outcome.message or "unreachable" in outcome.message.lower()


def test_the_addresses_of_a_fabric_are_said_before_any_connection(tmp_path: pathlib.Path) -> None:
    fabric = "fabric: {members: [spark-1, spark-2]}\n"
    outcome = run_site(tmp_path, BOX, f"{CATALOGUE}{BOX}{fabric}", PAIR, playbook="playbooks/validate.yml")
    assert outcome.status == "successful", outcome.message
    assert not outcome.connected
    assert (
        "spark-1 (192.168.100.11, 192.168.101.11) is in a fabric with spark-2 (192.168.100.12, 192.168.101.12)"
        in outcome.output
    )
