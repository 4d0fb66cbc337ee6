"""`[serve]`: what to start, of which model, and how it lies on nodes and GPUs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from triptych.config.checks import require, require_choice
from triptych.journey import Role

TOPOLOGIES: Mapping[str, tuple[frozenset[Role], ...]] = {
    "e+p+d": (frozenset({Role.ENCODE}), frozenset({Role.PREFILL}), frozenset({Role.DECODE})),
    "ep+d": (frozenset({Role.ENCODE, Role.PREFILL}), frozenset({Role.DECODE})),
    "e+pd": (frozenset({Role.ENCODE}), frozenset({Role.PREFILL, Role.DECODE})),
    "epd": (frozenset({Role.ENCODE, Role.PREFILL, Role.DECODE}),),
}

MOST_ROUTERS = 256  # processes of one server, on one machine

PLACEMENTS = ("any", "same_node", "pack", "spread")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What to start, and of which model."""

    model: str = "tiny-vl"  # the embedded model, a local folder, or a hub id
    served_name: str = ""  # empty: the model's last path component
    topology: str = "e+p+d"
    encoders: int = 1
    prefills: int = 1
    decodes: int = 1
    routers: int = 1  # processes behind one port; what the server may hold is shared among them
    device: str = "auto"  # auto, cpu, cuda
    dtype: str = "auto"  # auto: float32 on the CPU, the checkpoint's own on CUDA
    load_format: str = "auto"  # auto: weights from the folder; dummy: random ones, of a folder without (for measuring)
    gpu_share: float = 0.9  # of each GPU's total memory, over all workers placed on it
    gpu_shares: tuple[str, ...] = ()  # of a GPU, for each worker of a role: encode=0.2, decode=0.5. Others: as below
    gpus_per_worker: float = 0.0  # that each worker asks Ray for; 0: an equal share of those that are there at start
    max_workers: int = 64  # at first, and that `triptych scale` may ask for: each takes 0.9 GB and more
    drain_seconds: float = 0.0  # that a worker gets for what it has when it is to go. 0: router.request_timeout_seconds
    # That a device may take for one step, or one batch of images: a worker that takes longer gets nothing new, and one
    # that takes half as long again is ended, so that another takes its place. 0: 30 on CUDA, 300 on the CPU, which may
    # have a long prompt of a large model to compute.
    step_seconds: float = 0.0
    # How workers lie on nodes. same_node: all on one, as CUDA IPC wants it; pack: on as few as it takes; spread: on as
    # many as there are; any: as Ray has it. What is added to same_node later waits for room there.
    placement: str = "any"
    pin_tiers: bool = False  # a worker waits for a node with its roles' resources (deploy/): triptych_encode: 1, ...
    # By which routers and workers prove that they belong together. Empty: whoever starts them together makes one.
    cluster_secret: str = field(default="", repr=False)
    # auto: join the Ray that runs here or start one; local: always start one; or where a Ray is: workers then live on
    # when this server is killed, and the next one takes them over.
    ray: str = "auto"
    cluster: str = "triptych"  # by this name a later server finds them in that Ray
    cpu_threads: int = 0  # per worker, for CPU arithmetic; 0: all cores. Steps that only decode take half of them
    profile_folder: str = ""  # where workers look for questions what their device does (services/profiling.py)

    @property
    def is_detached(self) -> bool:
        """Whether workers outlive the server that has started them."""
        return self.ray not in ("auto", "local")

    def __post_init__(self) -> None:
        require_choice("serve.topology", self.topology, tuple(TOPOLOGIES))
        require_choice("serve.device", self.device, ("auto", "cpu", "cuda"))
        require_choice("serve.dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        for entry in self.gpu_shares:
            name, _, share = entry.partition("=")
            require(
                bool(name) and is_share(share), "serve.gpu_shares", entry, "ROLE=SHARE, a share above 0 and at most 1"
            )
        require_choice("serve.placement", self.placement, PLACEMENTS)
        require(self.cluster.isidentifier(), "serve.cluster", self.cluster, "a name of letters, digits and _")
        require_choice("serve.load_format", self.load_format, ("auto", "dummy"))
        for name in ("encoders", "prefills", "decodes", "routers", "max_workers"):
            require(getattr(self, name) >= 1, f"serve.{name}", getattr(self, name), "at least 1")
        require(self.routers <= MOST_ROUTERS, "serve.routers", self.routers, f"at most {MOST_ROUTERS}")
        require(
            0 <= self.drain_seconds < math.inf, "serve.drain_seconds", self.drain_seconds, "0 (the default) or more"
        )
        require(0 <= self.step_seconds < math.inf, "serve.step_seconds", self.step_seconds, "0 (the default) or more")
        require(self.cpu_threads >= 0, "serve.cpu_threads", self.cpu_threads, "0 (the default) or more")
        require(
            0 <= self.gpus_per_worker <= 1 or (self.gpus_per_worker > 1 and self.gpus_per_worker % 1 == 0),
            *("serve.gpus_per_worker", self.gpus_per_worker, "0 (the default), a part of one, or a whole number"),
        )
        require(0 < self.gpu_share <= 1, "serve.gpu_share", self.gpu_share, "in (0, 1]")
        length = len(self.cluster_secret)  # the value itself is told nobody
        require(
            *(length == 0 or length >= 32, "serve.cluster_secret", f"{length} characters long"),
            "at least 32 characters that nobody guesses, as `openssl rand -hex 32` makes them",
        )


def is_share(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False
