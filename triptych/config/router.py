"""`[router]`: the HTTP edge."""

from dataclasses import dataclass, field

from triptych.config.checks import require, require_choice, require_network, require_positive
from triptych.config.sizes import GIB, MIB


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
    drain_seconds: float = 15.0  # that answers under way get when the server is told to stop; then they fail
    default_max_tokens: int = 0  # 0: whatever the context leaves
    status_interval_seconds: float = 0.5
    status_timeout_seconds: float = 5.0  # a worker is lost once three questions in a row went unanswered for so long
    self_test: bool = True  # workers take nothing before a known image has gone through them and come out right
    api_key: str = field(default="", repr=False)  # one key, of an operator; its tenant is called "default"
    api_keys_file: str = ""  # TOML with a table [[keys]] for each (router/edge/auth.py); read again when it changes
    api_keys: tuple[str, ...] = field(default=(), repr=False)  # NAME=KEY or NAME=sha256:DIGEST, for the environment
    usage_log: str = ""  # a file that gets one line of JSON for each request; empty: none
    admin_host: str = "127.0.0.1"
    admin_port: int = 0  # /metrics, /admin/ and /v1/cluster move there; 0: they stay on the main port
    cors_origins: tuple[str, ...] = ()  # of pages whose scripts may ask, as https://example.com; *: of any; empty: none
    # Names by which a server without keys that listens on loopback alone may be called, beside localhost, addresses and
    # names without a dot; *: any. What stands before it may pass on the name that it has outside.
    allowed_hosts: tuple[str, ...] = ()
    max_connections: int = 4096  # beyond that many, requests are answered 503
    max_head_bytes: int = 64 << 10  # of a request's line and headers
    chat_template: str = ""  # file with a template in place of the model's own, e.g. one that tells it of tools
    log_level: str = "info"

    def __post_init__(self) -> None:
        for name in ("host", "admin_host"):  # none would be every address that this machine has
            require(bool(getattr(self, name).strip()), f"router.{name}", getattr(self, name), "an address, or a name")
        require(0 <= self.port <= 65535, "router.port", self.port, "0 to 65535")
        require_choice("router.log_level", self.log_level, ("debug", "info", "warning", "error", "critical"))
        require(0 <= self.admin_port <= 65535, "router.admin_port", self.admin_port, "0 (none) to 65535")
        is_apart = (self.admin_host, self.admin_port) != (self.host, self.port) or self.port == 0
        require(is_apart, "router.admin_port", self.admin_port, "another port than router.port")
        for port in self.allow_media_ports:
            require(0 < port <= 65535, "router.allow_media_ports", port, "ports of 1 to 65535")
        for cidr in self.allow_media_cidrs:
            require_network("router.allow_media_cidrs", cidr)
        for name in ("media_cache_bytes", "media_names_bytes"):
            require(getattr(self, name) >= 0, f"router.{name}", getattr(self, name), "0 (none) or more")
        require_positive(
            *("router", self, "max_body_bytes", "max_image_bytes", "max_image_pixels", "media_budget_bytes"),
            *("max_request_pixels", "max_request_media_bytes", "concurrent_fetches", "fetches_per_host"),
            *("fetch_timeout_seconds", "request_timeout_seconds", "stage_timeout_seconds", "status_interval_seconds"),
            *("status_timeout_seconds", "max_connections", "max_head_bytes", "drain_seconds"),
        )
