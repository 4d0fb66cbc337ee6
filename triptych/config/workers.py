"""`[encoder]`, `[language]` and `[transfer]`: budgets of workers, and how they read from one another."""

from dataclasses import dataclass

from triptych.config.checks import require, require_choice, require_positive
from triptych.config.sizes import GIB, MIB


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """Budgets of one encoder worker."""

    max_items_per_batch: int = 16
    max_encoder_tokens_per_batch: int = 16_384  # pre-merge patches; raised to the largest single item
    arena_bytes: int = 256 * MIB  # encoded rows, kept until released and reused while room lasts
    output_bytes: int = 0  # rows being made or read at once; 0: derived from the largest item and the batch's tokens
    host_cache_bytes: int = 0  # host memory for rows that had to leave the arena; 0: none
    gpu_jpeg: str = "auto"  # decode JPEG files on the GPU. auto: where it is there, and the dtype has 16 bits; on, off
    graphs: str = "auto"  # replay the tower's blocks as CUDA graphs. auto: on CUDA; on, off
    decode_isolation: str = "auto"  # decode in processes that may be lost. auto: with memfd; processes, threads
    preprocess_threads: int = 0  # decode and resize images. 0: 2 on the CPU, half the cores but 8 at most on CUDA
    max_queued_items: int = 4096

    def __post_init__(self) -> None:
        names = ("max_items_per_batch", "max_encoder_tokens_per_batch", "arena_bytes", "max_queued_items")
        require_positive("encoder", self, *names)
        for name in ("output_bytes", "host_cache_bytes", "preprocess_threads"):
            require(getattr(self, name) >= 0, f"encoder.{name}", getattr(self, name), "0 or more")
        for name in ("gpu_jpeg", "graphs"):
            require_choice(f"encoder.{name}", getattr(self, name), ("auto", "on", "off"))
        require_choice("encoder.decode_isolation", self.decode_isolation, ("auto", "processes", "threads"))


ATTENTIONS = ("auto", "sdpa", "triton", "varlen", "flashinfer")


@dataclass(frozen=True, slots=True)
class LanguageSettings:
    """Budgets of one prefill and/or decode worker."""

    max_model_len: int = 0  # 0: the model's own
    block_size: int = 16  # tokens per KV block
    kv_bytes: int = 0  # 0: 512 MiB on the CPU, what gpu_share leaves after weights on CUDA (services/memory_plan.py)
    prefill_chunk_tokens: int = 2048  # per step, over all prompts
    mixed_chunk_tokens: int = 0  # the same where answers are decoded beside, which wait for them. 0: as many
    max_sequences: int = 64  # decoding at once
    decoder: str = "auto"  # lean: our own layers; generic: transformers'. auto: lean where it knows the model
    attention: str = "auto"  # whose kernels: sdpa, triton, varlen, flashinfer. auto: what is right and fastest here
    pipeline: str = "auto"  # plan and launch a step while the one before it runs. auto: on CUDA; on, off
    graphs: str = "auto"  # replay decoding steps as CUDA graphs. auto: on CUDA; on, off
    weights: str = "auto"  # auto: the layers' matrices in the model's dtype; fp8: in 8 bits. The lean decoder alone
    kv_dtype: str = "auto"  # auto: keys and values in the model's dtype; fp8: in 8 bits. The lean decoder alone
    prefix_cache: bool = True  # reuse the KV of an equal beginning, text and images alike
    decode_margin_tokens: int = 0  # reserved behind a prompt, then it grows. 0: as recent answers were long
    swap_bytes: int = 1 * GIB  # host memory for the KV of those that make room when blocks run out. 0: none
    landing_bytes: int = 256 * MIB  # embedding rows pulled in and not yet fused; raised to the largest item

    def __post_init__(self) -> None:
        names = ("block_size", "prefill_chunk_tokens", "max_sequences", "landing_bytes")
        require_positive("language", self, *names)
        require_choice("language.decoder", self.decoder, ("auto", "lean", "generic"))
        require_choice("language.attention", self.attention, ATTENTIONS)
        for name in ("weights", "kv_dtype"):
            require_choice(f"language.{name}", getattr(self, name), ("auto", "fp8"))
        for name in ("pipeline", "graphs"):
            require_choice(f"language.{name}", getattr(self, name), ("auto", "on", "off"))
        require(self.mixed_chunk_tokens >= 0, "language.mixed_chunk_tokens", self.mixed_chunk_tokens, "0 or more")
        require(self.max_model_len >= 0, "language.max_model_len", self.max_model_len, "0 (the model's own) or more")
        for name in ("kv_bytes", "decode_margin_tokens", "swap_bytes"):
            require(getattr(self, name) >= 0, f"language.{name}", getattr(self, name), "0 or more")

    @property
    def precision(self) -> str:
        """What is kept in fewer bits than the model's dtype; empty if nothing is. Answers depend on it."""
        chosen = {"weights": self.weights, "kv": self.kv_dtype}
        return " ".join(f"{what}={kind}" for what, kind in chosen.items() if kind != "auto")

    def longest(self, of_model: int) -> int:
        """Tokens of prompt and answer that are taken, of a model for so many."""
        return min(self.max_model_len or of_model, of_model)


TRANSPORTS = ("local", "cuda_ipc", "shm", "nixl")  # in the order in which they are tried


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """Claims and copies between workers."""

    lease_seconds: float = 30.0
    sweep_interval_seconds: float = 1.0
    copy_timeout_seconds: float = 20.0
    checksums: bool = False  # verify every ref's bytes; always on in tests
    faults: str = ""  # for tests: the folder with what shall go wrong (transfer/faults.py); empty: nothing

    transports: tuple[str, ...] = TRANSPORTS  # which may be used; the nearest that works is
    nixl_interface: str = ""  # network devices for NIXL, as in UCX_NET_DEVICES; empty: a worker's address, and RDMA
    nixl_tls: str = ""  # what UCX may use, as in UCX_TLS (tcp, or rc,cuda); empty: UCX chooses
    nixl_window_bytes: int = (
        0  # of each window that reads over NIXL land in. 0: a 512th of a GPU, 128 to 288 MiB; 8 MiB on the CPU
    )
    nixl_windows: int = 4  # made when the first neighbour is reached by it; a pull has one, a large one up to half
    nixl_staging_bytes: int = 0  # where an owner packs scattered pieces. 0: 256 MiB on CUDA, 32 MiB on the CPU
    nixl_pack_below_bytes: int = 1 * MIB  # pieces that are smaller on average are packed by their owner; 0: never

    def __post_init__(self) -> None:
        require(bool(self.transports), "transfer.transports", self.transports, "one of them at least")
        for name in self.transports:
            require_choice("transfer.transports", name, TRANSPORTS)
        for number in ("nixl_window_bytes", "nixl_staging_bytes", "nixl_pack_below_bytes"):
            require(getattr(self, number) >= 0, f"transfer.{number}", getattr(self, number), "0 or more")
        window = self.nixl_window_bytes  # two pages: of larger pulls one half is read while the other is copied on
        require(window == 0 or window >= 8192, "transfer.nixl_window_bytes", window, "0 (the default) or at least 8192")
        require(self.nixl_windows >= 1, "transfer.nixl_windows", self.nixl_windows, "at least 1")
        for name in ("lease_seconds", "sweep_interval_seconds", "copy_timeout_seconds"):
            require_positive("transfer", self, name)  # timers and messages count from milliseconds to some weeks
            require(0.001 <= getattr(self, name) <= 86400, f"transfer.{name}", getattr(self, name), "0.001 to 86400")
