"""Settings: one frozen object per process. File, then environment, then flags; a typed value comes out.

A TOML file has one table per dataclass below (`[serve]`, `[router]`, `[encoder]`, `[language]`, `[transfer]`);
`TRIPTYCH_ROUTER_PORT=9000` overrides `[router] port`; command-line flags override both. Unknown names are errors.
"""

import dataclasses
import difflib
import ipaddress
import math
import os
import secrets
import tomllib
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from triptych.errors import ConfigError
from triptych.journey import Role

MIB = 1 << 20
GIB = 1 << 30

CPU_KV_BYTES = 512 * MIB  # where language.kv_bytes is left open

TOPOLOGIES: Mapping[str, tuple[frozenset[Role], ...]] = {
    "e+p+d": (frozenset({Role.ENCODE}), frozenset({Role.PREFILL}), frozenset({Role.DECODE})),
    "ep+d": (frozenset({Role.ENCODE, Role.PREFILL}), frozenset({Role.DECODE})),
    "e+pd": (frozenset({Role.ENCODE}), frozenset({Role.PREFILL, Role.DECODE})),
    "epd": (frozenset({Role.ENCODE, Role.PREFILL, Role.DECODE}),),
}


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
    max_workers: int = 64  # that `triptych scale` may ask for: each takes 850 MB and more
    drain_seconds: float = 0.0  # that a worker gets for what it has when it is to go. 0: router.request_timeout_seconds
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
        _require_choice("serve.topology", self.topology, tuple(TOPOLOGIES))
        _require_choice("serve.device", self.device, ("auto", "cpu", "cuda"))
        _require_choice("serve.dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        for entry in self.gpu_shares:
            name, _, share = entry.partition("=")
            _require(
                bool(name) and _is_share(share), "serve.gpu_shares", entry, "ROLE=SHARE, a share above 0 and at most 1"
            )
        _require_choice("serve.placement", self.placement, PLACEMENTS)
        _require(self.cluster.isidentifier(), "serve.cluster", self.cluster, "a name of letters, digits and _")
        _require_choice("serve.load_format", self.load_format, ("auto", "dummy"))
        for name in ("encoders", "prefills", "decodes", "routers", "max_workers"):
            _require(getattr(self, name) >= 1, f"serve.{name}", getattr(self, name), "at least 1")
        _require(
            0 <= self.drain_seconds < math.inf, "serve.drain_seconds", self.drain_seconds, "0 (the default) or more"
        )
        _require(self.cpu_threads >= 0, "serve.cpu_threads", self.cpu_threads, "0 (the default) or more")
        _require(
            0 <= self.gpus_per_worker <= 1 or (self.gpus_per_worker > 1 and self.gpus_per_worker % 1 == 0),
            *("serve.gpus_per_worker", self.gpus_per_worker, "0 (the default), a part of one, or a whole number"),
        )
        _require(0 < self.gpu_share <= 1, "serve.gpu_share", self.gpu_share, "in (0, 1]")
        length = len(self.cluster_secret)  # the value itself is told nobody
        _require(
            *(length == 0 or length >= 32, "serve.cluster_secret", f"{length} characters long"),
            "at least 32 characters that nobody guesses, as `openssl rand -hex 32` makes them",
        )


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """The HTTP edge: limits on strangers' input, and how long anything may take."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_body_bytes: int = 64 * MIB
    max_image_bytes: int = 20 * MIB
    max_image_pixels: int = 40_000_000
    max_request_pixels: int = 320_000_000  # of all different images of a request, as their headers tell
    max_request_media_bytes: int = 256 * MIB  # of all different images of a request, decoded from base64 or fetched
    max_images_per_prompt: int = 64
    media_budget_bytes: int = 1 * GIB  # compressed media held by all requests in flight
    fetch_timeout_seconds: float = 5.0
    max_redirects: int = 3
    allow_media_cidrs: tuple[str, ...] = ()  # non-public networks that media may be fetched from, e.g. 127.0.0.0/8
    allow_media_ports: tuple[int, ...] = (80, 443)  # of public addresses; empty: any. Opened networks have all
    allow_media_hosts: tuple[str, ...] = ()  # example.com, or .example.com for it and all below it; empty: any host
    # http://[user:password@]host:port. The proxy resolves names, so allow_media_cidrs cannot judge what they lead to:
    # it must refuse inner addresses itself. Hosts, ports and numeric addresses are still judged. No variable names it.
    media_proxy: str = field(default="", repr=False)
    media_roots: tuple[str, ...] = ()  # folders below which file:// URLs are read, symbolic links refused; empty: none
    concurrent_fetches: int = 64
    fetches_per_host: int = 16  # of them
    media_cache_bytes: int = 0  # for fetched images that their servers let us keep; 0: none
    media_names_bytes: int = 128 * MIB  # for images that clients gave a uuid, so that they need not send them again
    isolate_tenants: bool = True  # rows and KV are never shared between keys; without keys there is but one tenant
    request_timeout_seconds: float = 300.0
    stage_timeout_seconds: float = 60.0  # without progress in a stage
    default_max_tokens: int = 0  # 0: whatever the context leaves
    status_interval_seconds: float = 0.5
    status_timeout_seconds: float = 5.0  # a worker is lost once three questions in a row went unanswered for so long
    self_test: bool = True  # workers take nothing before a known image has gone through them and come out right
    api_key: str = field(default="", repr=False)  # one key, of an operator; its tenant is called "default"
    api_keys_file: str = ""  # TOML with a table [[keys]] for each (router/auth.py); read again when it changes
    api_keys: tuple[str, ...] = field(default=(), repr=False)  # NAME=KEY or NAME=sha256:DIGEST, for the environment
    usage_log: str = ""  # a file that gets one line of JSON for each request; empty: none
    admin_host: str = "127.0.0.1"
    admin_port: int = 0  # /metrics, /admin/ and /v1/cluster move there; 0: they stay on the main port
    cors_origins: tuple[str, ...] = ()  # of pages whose scripts may ask, as https://example.com; *: of any; empty: none
    max_connections: int = 4096  # beyond that many, requests are answered 503
    max_head_bytes: int = 64 << 10  # of a request's line and headers
    chat_template: str = ""  # file with a template in place of the model's own, e.g. one that tells it of tools
    log_level: str = "info"

    def __post_init__(self) -> None:
        _require(0 <= self.port <= 65535, "router.port", self.port, "0 to 65535")
        _require_choice("router.log_level", self.log_level, ("debug", "info", "warning", "error", "critical"))
        _require(0 <= self.admin_port <= 65535, "router.admin_port", self.admin_port, "0 (none) to 65535")
        is_apart = (self.admin_host, self.admin_port) != (self.host, self.port) or self.port == 0
        _require(is_apart, "router.admin_port", self.admin_port, "another port than router.port")
        for port in self.allow_media_ports:
            _require(0 < port <= 65535, "router.allow_media_ports", port, "ports of 1 to 65535")
        for cidr in self.allow_media_cidrs:
            _require_network("router.allow_media_cidrs", cidr)
        for name in ("media_cache_bytes", "media_names_bytes"):
            _require(getattr(self, name) >= 0, f"router.{name}", getattr(self, name), "0 (none) or more")
        _require_positive(
            *("router", self, "max_body_bytes", "max_image_bytes", "max_image_pixels", "media_budget_bytes"),
            *("max_request_pixels", "max_request_media_bytes", "concurrent_fetches", "fetches_per_host"),
            *("fetch_timeout_seconds", "request_timeout_seconds", "stage_timeout_seconds", "status_interval_seconds"),
            *("status_timeout_seconds", "max_connections", "max_head_bytes"),
        )


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
        _require_positive("encoder", self, *names)
        for name in ("output_bytes", "host_cache_bytes", "preprocess_threads"):
            _require(getattr(self, name) >= 0, f"encoder.{name}", getattr(self, name), "0 or more")
        for name in ("gpu_jpeg", "graphs"):
            _require_choice(f"encoder.{name}", getattr(self, name), ("auto", "on", "off"))
        _require_choice("encoder.decode_isolation", self.decode_isolation, ("auto", "processes", "threads"))


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
        _require_positive("language", self, *names)
        _require_choice("language.decoder", self.decoder, ("auto", "lean", "generic"))
        _require_choice("language.attention", self.attention, ATTENTIONS)
        for name in ("weights", "kv_dtype"):
            _require_choice(f"language.{name}", getattr(self, name), ("auto", "fp8"))
        for name in ("pipeline", "graphs"):
            _require_choice(f"language.{name}", getattr(self, name), ("auto", "on", "off"))
        _require(self.mixed_chunk_tokens >= 0, "language.mixed_chunk_tokens", self.mixed_chunk_tokens, "0 or more")
        _require(self.max_model_len >= 0, "language.max_model_len", self.max_model_len, "0 (the model's own) or more")
        for name in ("kv_bytes", "decode_margin_tokens", "swap_bytes"):
            _require(getattr(self, name) >= 0, f"language.{name}", getattr(self, name), "0 or more")

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
    nixl_interface: str = ""  # network devices for NIXL, as in UCX_NET_DEVICES; empty: UCX chooses
    nixl_tls: str = ""  # what UCX may use, as in UCX_TLS (tcp, or rc,cuda); empty: UCX chooses
    nixl_window_bytes: int = 0  # of each window that reads over NIXL land in. 0: 128 MiB on CUDA, 8 MiB on the CPU
    nixl_windows: int = 4  # made when the first neighbour is reached by it; a pull has one, a large one up to half
    nixl_staging_bytes: int = 0  # where an owner packs scattered pieces. 0: 256 MiB on CUDA, 32 MiB on the CPU
    nixl_pack_below_bytes: int = 1 * MIB  # pieces that are smaller on average are packed by their owner; 0: never

    def __post_init__(self) -> None:
        _require(bool(self.transports), "transfer.transports", self.transports, "one of them at least")
        for name in self.transports:
            _require_choice("transfer.transports", name, TRANSPORTS)
        for number in ("nixl_window_bytes", "nixl_staging_bytes", "nixl_pack_below_bytes"):
            _require(getattr(self, number) >= 0, f"transfer.{number}", getattr(self, number), "0 or more")
        window = self.nixl_window_bytes  # two pages: of larger pulls one half is read while the other is copied on
        _require(
            window == 0 or window >= 8192, "transfer.nixl_window_bytes", window, "0 (the default) or at least 8192"
        )
        _require(self.nixl_windows >= 1, "transfer.nixl_windows", self.nixl_windows, "at least 1")
        for name in ("lease_seconds", "sweep_interval_seconds", "copy_timeout_seconds"):
            _require_positive("transfer", self, name)  # timers and messages count from milliseconds to some weeks
            _require(0.001 <= getattr(self, name) <= 86400, f"transfer.{name}", getattr(self, name), "0.001 to 86400")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a process may want to know; handed down, never looked up."""

    serve: ServeSettings = field(default_factory=ServeSettings)
    router: RouterSettings = field(default_factory=RouterSettings)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    language: LanguageSettings = field(default_factory=LanguageSettings)
    transfer: TransferSettings = field(default_factory=TransferSettings)


Table = TypeVar("Table")


def load_settings(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Defaults, overridden by file, then environment (TRIPTYCH_TABLE_NAME), then flags ({"table.name": value}).

    Raises ConfigError naming the setting, the value met and what would do.
    """
    values = _read_file(file) if file is not None else {}
    known = {f"{table}.{name}" for table, kind in _tables().items() for name in _fields(kind)}
    values |= _read_environment(os.environ if environment is None else environment, known)
    values |= {key: value for key, value in (flags or {}).items() if value is not None}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(f"unknown setting {unknown[0]!r}; {_suggestion(unknown[0], known)}")
    return Settings(**{table: _build(table, kind, values) for table, kind in _tables().items()})


def with_secret(settings: Settings) -> Settings:
    """The settings of a cluster that is being started: with a secret of its own, unless they name one."""
    if settings.serve.cluster_secret:
        return settings
    serve = dataclasses.replace(settings.serve, cluster_secret=secrets.token_hex(32))
    return dataclasses.replace(settings, serve=serve)


def settings_as_values(settings: Settings) -> dict[str, Any]:
    """The same as JSON values, that `load_settings` takes as flags; for a process that is to have the same settings."""
    return {
        f"{table}.{name}": value
        for table, entries in dataclasses.asdict(settings).items()
        for name, value in entries.items()
    }


def _tables() -> dict[str, type]:
    hints = typing.get_type_hints(Settings)
    return {entry.name: hints[entry.name] for entry in dataclasses.fields(Settings)}


def _fields(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read settings from {file}: {error}") from error
    values: dict[str, Any] = {}
    for table, entries in tables.items():
        if not isinstance(entries, dict):
            raise ConfigError(f"{file}: {table!r} stands outside a table; known tables: {', '.join(_tables())}")
        values |= {f"{table}.{name}": value for name, value in entries.items()}
    return values


def _read_environment(environment: Mapping[str, str], known: Collection[str]) -> dict[str, Any]:
    """What TRIPTYCH_* variables say; a misspelt one must not pass for one that was obeyed."""
    key_by_variable = {"TRIPTYCH_" + key.replace(".", "_").upper(): key for key in known}
    given = {name: value for name, value in environment.items() if name.startswith("TRIPTYCH_")}
    unknown = sorted(given.keys() - key_by_variable.keys())
    if unknown:
        raise ConfigError(f"unknown environment variable {unknown[0]}; {_suggestion(unknown[0], key_by_variable)}")
    return {key_by_variable[name]: value for name, value in given.items()}


def _suggestion(name: str, known: Collection[str]) -> str:
    """The nearest known names, or where to find them all."""
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else "triptych/config.py lists all of them"


def _build(table: str, kind: type[Table], values: Mapping[str, Any]) -> Table:
    chosen = {
        name: _convert(f"{table}.{name}", hint, values[f"{table}.{name}"])
        for name, hint in _fields(kind).items()
        if f"{table}.{name}" in values
    }
    return kind(**chosen)


def _convert(key: str, hint: Any, value: Any) -> Any:
    """The value as the field's type; text (environment) is parsed, anything else must fit as it is."""
    if typing.get_origin(hint) is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise ConfigError(f"{key} is {_shown(key, value)}, expected a list, as [{_shown(key, value)}]")
        inner = typing.get_args(hint)[0]
        return tuple(
            _convert(key, inner, part.strip() if isinstance(part, str) else part) for part in parts if part != ""
        )
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    try:
        if hint is bool and isinstance(value, str):
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[value.lower()]
        if hint is bool and not isinstance(value, bool):
            raise ValueError
        if hint in (int, float) and isinstance(value, bool):
            raise ValueError
        if hint is str and not isinstance(value, str):
            raise ValueError
        if hint is int and not isinstance(value, str) and int(value) != value:
            raise ValueError
        return hint(value)
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{key} is {_shown(key, value)}, expected {hint.__name__}") from None


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False


def _shown(key: str, value: Any) -> str:
    table, name = key.split(".")
    is_secret = not next(entry.repr for entry in dataclasses.fields(_tables()[table]) if entry.name == name)
    return f"of type {type(value).__name__}" if is_secret else repr(value)


def _require(holds: bool, name: str, value: Any, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value!r}, expected {wanted}")


def _require_positive(table: str, settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        _require(0 < value < math.inf, f"{table}.{name}", value, "above 0 and finite")


def _require_network(name: str, cidr: str) -> None:
    try:
        ipaddress.ip_network(cidr)
    except ValueError as error:
        raise ConfigError(f"{name} has {cidr!r}, expected a network as 127.0.0.0/8: {error}") from None


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    _require(value in choices, name, value, "one of " + ", ".join(choices))
