"""Whether two processes can share a GPU's memory, as workers of one host do: the owner's half, and the verdict."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping

import torch

from triptych.doctor.finding import Asked, Finding, fail, ok, warn
from triptych.errors import TransferFailed
from triptych.transfer.cuda_events import export_event, new_shared_event, new_stream
from triptych.transfer.cuda_runtime import BindingsMissing, allocate, device_uuid, export_memory

NUM_BYTES = 8 << 20
_READER_SECONDS = 60.0
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_BINDINGS_ADVICE = "pip install cuda-bindings: slabs are then allocated so that neighbours can open them"
_IPC_ADVICE = "containers need one IPC and PID namespace (--ipc=host --pid=host), or leave it to NIXL between them"


def look_cuda_ipc(asked: Asked) -> Finding:
    if asked.device == "cpu" or not torch.cuda.is_available():
        return ok("no GPU to share")
    try:
        shared = [_share(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]
    except BindingsMissing as error:
        return fail(error.message, _BINDINGS_ADVICE)
    except TransferFailed as error:
        return fail(error.message, _IPC_ADVICE)
    return ok(f"another process has read {NUM_BYTES >> 20} MiB out of {', '.join(shared)}, behind an event of this one")


def _share(device: torch.device) -> str:
    """The device's name, once another process has read what this one wrote there. Raises TransferFailed."""
    memory = allocate(device, NUM_BYTES)
    event = new_shared_event()
    with torch.cuda.device(device), torch.cuda.stream(new_stream(device)):
        memory.tensor().view(torch.int64).copy_(torch.arange(NUM_BYTES // 8, device=device))
        event.record()
        handles = {"memory": export_memory(memory).hex(), "event": export_event(event).hex()}
    told = _read_elsewhere({**handles, "device": device_uuid(device)})
    if told:
        raise TransferFailed(f"another process cannot read {device}: {told}")
    return str(device)


def _read_elsewhere(where: Mapping[str, str]) -> str:
    """Why not; empty where the bytes were right."""
    command = [sys.executable, "-m", "triptych.doctor.gpu_reader", json.dumps(where)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_READER_SECONDS)
    except subprocess.TimeoutExpired:
        return f"it took longer than {_READER_SECONDS:g} s"
    if done.returncode == 0:
        return ""
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return lines[-1] if lines else f"it ended with status {done.returncode}"


def look_segments(asked: Asked) -> Finding:
    if asked.device == "cpu":
        return ok("not asked for: workers run on the CPU")
    return judge_segments(os.environ, importlib.util.find_spec("cuda") is not None)


def judge_segments(environment: Mapping[str, str], has_bindings: bool) -> Finding:
    """Memory of torch's expandable segments cannot be opened by others, so slabs must not lie there. Pure.

    has_bindings: the package by which slabs are allocated apart
    """
    found = {name: environment[name] for name in _VARIABLES if environment.get(name)}
    is_on = any("expandable_segments:true" in value.replace(" ", "").lower() for value in found.values())
    if not is_on:
        return ok("off")
    seen = f"on, by {' and '.join(found)}"
    if has_bindings:
        return ok(f"{seen}; slabs lie outside of them")
    return warn(f"{seen}, and there is no cuda.bindings to keep slabs out of them", _BINDINGS_ADVICE)
