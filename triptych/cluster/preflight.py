"""What can never start is refused in a line that says what to change, before anything is started."""

from pathlib import Path

from triptych.cluster.groups import first_counts
from triptych.cluster.placing import gpus_of, named_shares, require_room
from triptych.cluster.ports import bound
from triptych.cluster.ray_here import joinable, num_gpus
from triptych.config import Settings
from triptych.errors import ConfigError
from triptych.models.card import ModelCard
from triptych.models.config_values import text_config
from triptych.router.edge.auth import KeyFile
from triptych.router.media.file_media import FileMedia
from triptych.router.observe.traces import load_sender
from triptych.router.pipeline.chat_template import ChatTemplate

_LEAST_BLOCKS = 2  # of KV, that a worker can do anything with
_LEAST_BYTES = {"float32": 4, "auto": 2, "bfloat16": 2, "float16": 2}  # of a number


def check(settings: Settings, card: ModelCard) -> None:
    """Raises ConfigError. What only workers can tell, as whether a model fits their memory, is theirs to say."""
    KeyFile(settings.router, settings.slo)
    FileMedia(settings.router).close()
    if settings.observe.otlp_endpoint:
        load_sender()
    if settings.router.chat_template:
        _check_template(settings.router.chat_template)
    if settings.router.admin_port:
        bound(settings.router.admin_host, settings.router.admin_port, flag="--admin-port").close()
    _check_counts(settings)
    _check_kv(settings, card)
    _check_gpus(settings)


def _check_counts(settings: Settings) -> None:
    """What starts with more could not be scaled by one; and of a number without end nobody could start the first."""
    serve = settings.serve
    count = sum(first_counts(serve).values())
    if count > serve.max_workers:
        raise ConfigError(f"{count:.4g} workers are too many; serve.max_workers is {serve.max_workers}")


def _check_template(file: str) -> None:
    try:
        source = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"router.chat_template is {file!r}, which cannot be read: {error}") from error
    try:
        ChatTemplate(source, {})
    except ConfigError as error:
        raise ConfigError(f"router.chat_template is {file!r}: {error}") from error


def _check_kv(settings: Settings, card: ModelCard) -> None:
    """A worker finds the very number, which may be larger."""
    language = settings.language
    if not language.kv_bytes:
        return
    text = text_config(card.config)
    heads = text.get("num_key_value_heads", text.get("num_attention_heads", 1))
    size = text.get("head_dim") or text.get("hidden_size", 1) // text.get("num_attention_heads", 1)
    number = 1 if language.kv_dtype == "fp8" else _LEAST_BYTES[settings.serve.dtype]
    least = _LEAST_BLOCKS * language.block_size * text.get("num_hidden_layers", 1) * 2 * heads * size * number
    if language.kv_bytes < least:
        raise ConfigError(
            f"language.kv_bytes is {language.kv_bytes}, expected at least {least}, which is {_LEAST_BLOCKS} blocks of "
            f"{language.block_size} tokens; a prompt with pictures takes many"
        )


def _check_gpus(settings: Settings) -> None:
    serve = settings.serve
    named_shares(serve)
    if serve.is_detached or joinable() is not None:
        return  # whose GPUs are other machines' as well
    counts, available = first_counts(serve), num_gpus()
    require_room(gpus_of(serve, available, counts), counts, available)
