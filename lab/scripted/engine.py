# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""``vllm serve`` of the lab's scripted image: real flags, a real boot log, and answers as a script has them.

Runs inside the image, on its Python 3.11 and with nothing but the standard library. Which fault it has is one word in
the environment variable GB10_LAB_FAULT or, with more weight, in a file in the cache folder of the instance::

    echo hang_mid_stream > /var/lib/gb10-fleet/cache/scripted/lab-fault      # from now on, and after every start
    echo hang_mid_stream 0 > /var/lib/gb10-fleet/cache/scripted/lab-fault    # until this engine ends
    echo exit_0_at_boot 2 > /var/lib/gb10-fleet/cache/scripted/lab-fault     # and for two more starts

The file is read at every start and before every answer, so a fault can come and go while the engine serves.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import pathlib
import signal
import sys
import threading
import time
import typing as t

from lab.scripted.faults import ANSWERS, AT_BOOT, LINES, WHILE_SERVING, BootError
from tests.unit.support.faults import FAULTS
from tests.unit.support.openai_server import Exchange, OpenAIServer

VERSION = "0.32.0"
CACHE = pathlib.Path.home() / ".cache"
FAULT_FILE = CACHE / "lab-fault"
HUB = CACHE / "huggingface" / "hub"
FLAGS = pathlib.Path(__file__).resolve().parents[2] / "flags.json"
_BLOCK = 16
_COMPILED_BYTES = 1 << 16
_DTYPE_BYTES = 2
_POLL_S = 0.1


class Fault(t.NamedTuple):
    """What the engine is told to do wrong, and after how many starts it is over (None: never)."""

    name: str = "none"
    starts: int | None = None

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Understand "NAME" and "NAME STARTS"."""
        name, _, starts = text.strip().partition(" ")
        return cls(name or "none", int(starts) if starts.strip() else None)


def told(path: pathlib.Path = FAULT_FILE) -> Fault:
    """Return the fault that the engine has now."""
    try:
        return Fault.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Fault.parse(os.environ.get("GB10_LAB_FAULT", ""))


def told_at_start(path: pathlib.Path = FAULT_FILE) -> Fault:
    """Return the fault of an engine that starts, and count the start."""
    fault = told(path)
    if fault.starts is None:
        return fault
    if fault.starts <= 0:
        path.unlink(missing_ok=True)
        return told(path)
    path.write_text(f"{fault.name} {fault.starts - 1}\n", encoding="utf-8")
    return fault


def parser(flags: dict[str, t.Any]) -> argparse.ArgumentParser:
    """Return a parser of the flags that this vLLM has, so that an unknown one is refused in vLLM's words."""
    made = argparse.ArgumentParser(prog="vllm serve", usage="vllm serve [model_tag] [options]", allow_abbrev=False)
    made.add_argument("model_tag", nargs="?", default="")
    for name, flag in flags.items():
        if flag.get("action") == "help":
            continue
        names = (name, *flag.get("alias", ()))
        dest = name.lstrip("-").replace("-", "_")
        if flag.get("action") in {"bool", "true"}:
            made.add_argument(*names, dest=dest, action="store_true")
            for off in flag.get("off", ()):
                made.add_argument(off, dest=dest, action="store_false")
        elif flag.get("action") == "append":
            made.add_argument(*names, dest=dest, action="append")
        else:
            made.add_argument(*names, dest=dest, nargs=flag.get("nargs"))
    return made


def log(line: str, process: str = "EngineCore pid=90", level: str = "INFO") -> None:
    """Write a line in vLLM's form."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    sys.stdout.write(f"({process}) {level} {stamp} {line}\n")
    sys.stdout.flush()


def snapshot(model: str, revision: str) -> pathlib.Path:
    """Return the folder of the checkpoint."""
    folder = HUB / f"models--{model.replace('/', '--')}" / "snapshots"
    return folder / revision if revision else next(iter(sorted(folder.glob("*"))), folder)


def bytes_per_token(config: dict[str, t.Any]) -> int:
    """Return what a token takes in the KV cache: keys and values of every layer, in bfloat16."""
    heads = int(config.get("num_key_value_heads") or config["num_attention_heads"])
    head = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    return int(config["num_hidden_layers"]) * 2 * heads * head * _DTYPE_BYTES


def boot(args: argparse.Namespace, fault: Fault) -> None:
    """Say what vLLM says while it boots, with the numbers that the flags and the checkpoint give."""
    log(f"[api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version {VERSION}+cpu", "APIServer pid=1")
    log(f"[utils.py:233] non-default args: {{'model': '{args.model_tag}'}}", "APIServer pid=1")
    log(f"[core.py:109] Initializing a V1 LLM engine (v{VERSION}+cpu) with config: device_config=cpu")
    try:
        config = json.loads((snapshot(args.model_tag, args.revision or "") / "config.json").read_text("utf-8"))
    except OSError as error:
        raise BootError(f"OSError: {args.model_tag} is not a local folder and cannot be loaded: {error}") from error
    try:  # vLLM compiles, and keeps what comes of it
        CACHE.joinpath("compiled").write_bytes(bytes(_COMPILED_BYTES))
    except OSError as error:
        raise BootError(f"OSError: {error}") from error
    if fault.name in AT_BOOT:
        AT_BOOT[fault.name]()
    log("[cpu_model_runner.py:90] Model loading took 0.0 GiB memory and 0.1 seconds")
    pool, length = int(args.kv_cache_memory_bytes or 1 << 30), int(args.max_model_len or 4096)
    blocks = pool // (bytes_per_token(config) * _BLOCK)
    concurrency = blocks / -(-length // _BLOCK)
    numbers = {"tokens": int(concurrency * length), "length": length, "concurrency": concurrency, "gib": pool / 2**30}
    for line in LINES.get(fault.name, LINES["none"]):
        log(line(numbers))
    time.sleep(float(os.environ.get("GB10_LAB_BOOT_S", "0.3")))


class ScriptedServer(OpenAIServer):
    """The server of the tests, whose fault can change while it serves."""

    def __init__(self, host: str, port: int, fault_file: pathlib.Path = FAULT_FILE) -> None:
        super().__init__(host, port)
        self._file = fault_file
        self._switching = threading.Lock()
        self._healthy: dict[str, t.Any] = {}
        self.fault = Fault()

    def settle(self) -> None:
        """Take what is set now for the healthy state, to which every fault is an exception."""
        kept = ("models", "max_model_len", "api_key", "kind", "dead")
        self._healthy = {name: copy.deepcopy(getattr(self, name)) for name in kept}

    def follow(self) -> None:
        """Have the fault that the file names."""
        fault = told(self._file)
        with self._switching:
            if fault.name == self.fault.name:
                return
            vars(self).update(copy.deepcopy(self._healthy))
            self._scripts.clear()
            self.metrics.running = self.metrics.waiting = self.metrics.per_read = 0
            self.metrics.kv_usage = self.metrics.kv_per_read = 0.0
            if fault.name in ANSWERS:
                ANSWERS[fault.name](self)
            elif fault.name in FAULTS:
                FAULTS[fault.name].set_up(self)
            elif fault.name not in {*AT_BOOT, *LINES, *WHILE_SERVING}:
                log(f"[lab] there is no fault {fault.name}; serving on in health", "APIServer pid=1", "ERROR")
            self.fault = fault
        log(f"[lab] the fault is now: {fault.name}", "APIServer pid=1")

    def handle(self, exchange: Exchange) -> None:
        self.follow()
        super().handle(exchange)


def serve(args: argparse.Namespace) -> t.NoReturn:
    """Serve until somebody ends it; a fault may end it from within."""
    with ScriptedServer(args.host or "0.0.0.0", int(args.port or 8000)) as server:  # noqa: S104 - as vLLM does
        server.models = args.served_model_name or [args.model_tag]
        server.max_model_len = int(args.max_model_len or 4096)
        server.api_key = os.environ.get("VLLM_API_KEY", "")
        server.settle()
        log(f"Starting vLLM server on http://{args.host}:{server.port}", "APIServer pid=1")
        sys.stdout.write("(APIServer pid=1) INFO:     Application startup complete.\n")
        sys.stdout.flush()
        while True:
            server.follow()
            if server.fault.name in WHILE_SERVING:
                WHILE_SERVING[server.fault.name](server)
            time.sleep(_POLL_S)


def main() -> int:
    """Be ``vllm``."""
    # The first process of a container ignores what it does not handle. vLLM ends with status 0 when it is asked to.
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))
    words = sys.argv[1:]
    if words[:1] != ["serve"]:
        sys.stderr.write("vllm: error: this engine of the lab can do nothing but serve\n")
        return 2
    args = parser(json.loads(FLAGS.read_text(encoding="utf-8"))).parse_args(words[1:])
    try:
        boot(args, told_at_start())
    except BootError as failure:
        log("[core.py:1510] EngineCore failed to start.", level="ERROR")
        log("[core.py:1510] Traceback (most recent call last):", level="ERROR")
        log(f"[core.py:1510] {failure}", level="ERROR")
        message = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
        sys.stdout.write(f"(APIServer pid=1) {message}\n")
        return 1
    with contextlib.suppress(KeyboardInterrupt):
        serve(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
