"""GPUs, their driver, and whether torch can compute on them."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from triptych.config import GIB
from triptych.doctor.finding import Asked, Finding, fail, ok, warn

_DRIVER = Path("/proc/driver/nvidia/version")
_TRIED_CAPABILITY = (8, 0)  # bfloat16, and what our kernels are compiled for
_SIDE = 256


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What there is, before anybody says whether it will do."""

    driver: str  # the kernel module's version; empty: none is loaded
    torch_cuda: str  # what torch was built for; empty: the CPU alone
    gpus: tuple[Gpu, ...] = ()
    reason: str = ""  # why torch cannot use them, where it cannot


def look_gpu(asked: Asked) -> Finding:
    if asked.device == "cpu":
        return ok("not asked for: workers run on the CPU")
    return judge_gpu(gpu_facts(), asked.device, asked.settings.serve.gpu_share)


def gpu_facts() -> GpuFacts:
    driver = driver_version(_DRIVER.read_text()) if _DRIVER.exists() else ""
    built_for = torch.version.cuda or ""
    if not torch.cuda.is_available():
        return GpuFacts(driver, built_for, reason=_refusal() if driver and built_for else "")
    return GpuFacts(driver, built_for, tuple(_describe(index) for index in range(torch.cuda.device_count())))


def driver_version(text: str) -> str:
    """Out of what the kernel module says of itself."""
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return match.group(1) if match else "of unknown version"


def _refusal() -> str:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "torch sees no device: is CUDA_VISIBLE_DEVICES empty, or the device not passed into the container?"


def _describe(index: int) -> Gpu:
    """Raises RuntimeError where the GPU computes nothing, or something wrong: a crash is a finding."""
    ones = torch.ones(_SIDE, _SIDE, device=f"cuda:{index}")
    if int((ones @ ones).sum().item()) != _SIDE**3:
        raise RuntimeError(f"cuda:{index} computes wrong products")
    free, total = torch.cuda.mem_get_info(index)
    return Gpu(torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index), total, free)


def judge_gpu(facts: GpuFacts, device: str, gpu_share: float) -> Finding:
    """device: auto or cuda; gpu_share: of each GPU, that workers will take"""
    if not facts.gpus:
        return _judge_none(facts, device)
    told = ", ".join(f"{gpu.name} {gpu.total_bytes / GIB:.0f} GiB" for gpu in facts.gpus)
    seen = f"{told}; driver {facts.driver or 'unknown'}, torch for CUDA {facts.torch_cuda}"
    old = [gpu for gpu in facts.gpus if gpu.capability < _TRIED_CAPABILITY]
    if old:
        major, minor = old[0].capability
        return warn(f"{seen}; {old[0].name} has compute capability {major}.{minor}", "8.0 or later is what was tried")
    full = [gpu for gpu in facts.gpus if gpu.free_bytes < gpu_share * gpu.total_bytes]
    if full:
        free = f"{full[0].name} has {full[0].free_bytes / GIB:.1f} GiB free"
        advice = f"end what holds the rest, or lower serve.gpu_share ({gpu_share:g})"
        return warn(f"{seen}; {free}", advice)
    return ok(seen)


def _judge_none(facts: GpuFacts, device: str) -> Finding:
    """auto: a server starts all the same, on the CPU, which nobody with a GPU means."""
    complain = fail if device == "cuda" else warn
    if facts.driver and not facts.torch_cuda:
        seen = f"driver {facts.driver}, but this torch is built for the CPU alone"
        return complain(seen, "install torch for CUDA, or use --device cpu")
    if facts.driver:
        seen = f"driver {facts.driver}, but torch for CUDA {facts.torch_cuda} uses no GPU: {facts.reason}"
        return complain(seen, "nvidia-smi tells whether the driver works; it must be as new as torch's CUDA wants")
    if device == "cuda":
        return fail("no NVIDIA driver here", "install it, or pass the GPU into the container, or use --device cpu")
    return ok("no NVIDIA GPU here: workers run on the CPU")
