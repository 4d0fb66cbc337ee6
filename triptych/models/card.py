"""A model as the router knows it: folder, template, limits, end tokens, geometry, fingerprint. No torch.

Everything is read from the folder's JSON and text files, as `transformers` would read them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from types import MappingProxyType
from typing import Any

from triptych.errors import ConfigError
from triptych.models.adapter import Adapter, adapter_for, require_known_family
from triptych.models.checkpoint import read_header, weights_files
from triptych.models.config_values import open_regular, read_json, read_optional_json, text_config, whole_number
from triptych.models.fingerprint import fingerprint
from triptych.models.folder import CONFIG_FILE, model_name, resolve_folder
from triptych.sampling import SAMPLING_RANGES

__all__ = ["ModelCard", "load_card", "resolve_dtype", "resolve_folder"]

DTYPES = ("float32", "bfloat16", "float16")

_SAMPLING_NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_STORED_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True, eq=False)
class ModelCard:
    """What is known of a checkpoint without reading its weights."""

    folder: Path
    name: str
    config: Mapping[str, Any]  # config.json
    adapter: Adapter
    eos_token_ids: tuple[int, ...]
    max_model_len: int  # tokens, prompt and output together
    vocab_size: int  # rows of the embedding table; the tokenizer may know fewer
    chat_template: str
    fingerprint: bytes  # 32 bytes; equal where two processes hold the same model in the same dtype
    dtype: str  # as asked for: float32, bfloat16, float16 or auto
    default_sampling: Mapping[str, float]  # what generation_config.json sets of temperature, top_p, top_k, ...
    load_format: str = "auto"  # auto: weights are the folder's; dummy: drawn at random, the folder's are not looked at


def load_card(
    model: str,
    dtype: str,
    progress: Callable[[str], None] = lambda line: None,
    load_format: str = "auto",
    precision: str = "",
) -> ModelCard:
    """The card of the embedded model, a local folder or a hub id; ConfigError names what is missing or wrong.

    dtype:       part of the fingerprint; `resolve_dtype` turns `auto` into the one that is computed in.
    load_format: `dummy` for a folder that needs no weights: they are drawn at random, the same ones in every process
    precision:   part of the fingerprint, as LanguageSettings.precision says
    """
    if dtype not in ("auto", *DTYPES):
        raise ConfigError(f"serve.dtype is {dtype!r}, expected auto or one of {', '.join(DTYPES)}")
    folder = resolve_folder(model, progress, _accepted)
    config = _accepted(folder / CONFIG_FILE)
    text = text_config(config)
    adapter = adapter_for(config, image_processor_config(folder))
    tokenizer_ids = _added_token_ids(folder)
    _check_placeholder(adapter, tokenizer_ids)
    generation = read_optional_json(folder / "generation_config.json")
    return ModelCard(
        folder=folder,
        name=model_name(model, folder),
        config=MappingProxyType(config),
        adapter=adapter,
        eos_token_ids=_eos_token_ids(folder, generation, config, tokenizer_ids),
        max_model_len=whole_number(text, "max_position_embeddings"),
        vocab_size=whole_number(text, "vocab_size"),
        chat_template=_chat_template(folder),
        fingerprint=fingerprint(folder, f"{dtype} {precision}".rstrip(), with_weights=load_format != "dummy"),
        dtype=dtype,
        default_sampling=MappingProxyType(_default_sampling(generation)),
        load_format=load_format,
    )


def _accepted(file: Path) -> dict[str, Any]:
    """The numbers of a model that can be served, by its config.json. Raises ConfigError for any other."""
    config = read_json(file)
    require_known_family(config)
    if "quantization_config" in config:
        raise ConfigError(f"{file.parent} holds quantised weights, expected float32, bfloat16 or float16")
    return config


def resolve_dtype(card: ModelCard, dtype: str, device_type: str) -> str:
    """The dtype a device computes in: `auto` is float32 on the CPU and the checkpoint's own elsewhere."""
    if dtype in DTYPES:
        return dtype
    if dtype != "auto":
        raise ConfigError(f"dtype is {dtype!r}, expected auto or one of {', '.join(DTYPES)}")
    if device_type == "cpu":
        return "float32"
    for values in (card.config, text_config(card.config)):
        named = values.get("dtype") or values.get("torch_dtype")
        if named in DTYPES:
            return str(named)
    return _stored_dtype(card.folder)


def image_processor_config(folder: Path) -> dict[str, Any]:
    """The image processor's settings; those inside processor_config.json count first, as in transformers."""
    nested = read_optional_json(folder / "processor_config.json").get("image_processor")
    if isinstance(nested, dict):
        return nested
    return read_json(folder / "preprocessor_config.json")


def _stored_dtype(folder: Path) -> str:
    for file in weights_files(folder):
        for entry in read_header(file).entries.values():
            if entry.dtype in _STORED_DTYPES:
                return _STORED_DTYPES[entry.dtype]
    raise ConfigError(f"{folder} stores no weights of a known dtype; set serve.dtype")


def _added_token_ids(folder: Path) -> dict[str, int]:
    """Special and added tokens of the tokenizer by their text."""
    tokens = read_json(folder / "tokenizer.json").get("added_tokens", [])
    try:
        return {token["content"]: int(token["id"]) for token in tokens}
    except (TypeError, KeyError, ValueError) as error:
        raise ConfigError(f"{folder / 'tokenizer.json'} has malformed added_tokens: {error!r}") from error


def _check_placeholder(adapter: Adapter, tokenizer_ids: Mapping[str, int]) -> None:
    found = tokenizer_ids.get(adapter.placeholder_text)
    if found != adapter.placeholder_id:
        raise ConfigError(
            f"config.json puts images at token {adapter.placeholder_id}, "
            f"the tokenizer has {adapter.placeholder_text} as {found}"
        )


def _eos_token_ids(
    folder: Path, generation: Mapping[str, Any], config: Mapping[str, Any], tokenizer_ids: Mapping[str, int]
) -> tuple[int, ...]:
    """Where generation stops: as generation_config.json says, else config.json, else the tokenizer."""
    for values in (generation, config, text_config(config)):
        ids = values.get("eos_token_id")
        if ids is not None:
            listed = ids if isinstance(ids, list) else [ids]
            return tuple(whole_number({"eos_token_id": each}, "eos_token_id", at_least=0) for each in listed)
    token = read_optional_json(folder / "tokenizer_config.json").get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    if isinstance(content, str) and content in tokenizer_ids:
        return (tokenizer_ids[content],)
    raise ConfigError(f"{folder} names no end token: generation_config.json and config.json lack eos_token_id")


def _chat_template(folder: Path) -> str:
    """The template by transformers' precedence; of several named ones, the default."""
    jinja = folder / "chat_template.jinja"
    candidates = (
        read_optional_json(folder / "processor_config.json").get("chat_template"),
        read_optional_json(folder / "chat_template.json").get("chat_template"),
        _text(jinja) if jinja.exists() else None,
        read_optional_json(folder / "tokenizer_config.json").get("chat_template"),
    )
    for found in candidates:
        if isinstance(found, list):
            found = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        if isinstance(found, dict):
            found = found.get("default")
        if isinstance(found, str) and found:
            return found
    raise ConfigError(f"{folder} has no chat template, expected chat_template.jinja or one in tokenizer_config.json")


def _text(file: Path) -> str:
    try:
        with open_regular(file) as stream:
            return TextIOWrapper(stream, encoding="utf-8").read()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error


def _default_sampling(generation: Mapping[str, Any]) -> dict[str, float]:
    """Checked at load: else every request would fail of them, or be answered otherwise than the file says."""
    named = {name: generation.get(name) for name in _SAMPLING_NAMES}
    return {name: _sampling_value(name, value) for name, value in named.items() if value is not None}


def _sampling_value(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"generation_config.json has {name} {value!r}, expected a number")
    least, most = SAMPLING_RANGES[name]
    if name == "top_k":
        if value != -1 and not (least <= value <= most and value == int(value)):
            raise ConfigError(f"generation_config.json has top_k {value!r}, expected -1, 0 (off) or a whole number")
    elif not least <= value <= most:
        raise ConfigError(f"generation_config.json has {name} {value!r}, expected {least:g} to {most:g}")
    return value
