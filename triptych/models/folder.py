"""From what a user calls a model to the folder that holds it. No torch."""

from collections.abc import Callable
from pathlib import Path

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from triptych.errors import ConfigError

EMBEDDED_MODEL = "tiny-vl"
CONFIG_FILE = "config.json"

_WANTED_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.safetensors")


def resolve_folder(
    model: str, progress: Callable[[str], None], accept: Callable[[Path], object] = lambda config: None
) -> Path:
    """The folder of a model: the embedded one (`tiny-vl`), a local folder, or a Hugging Face hub id, downloaded.

    progress: told in one line what is about to take long.
    accept:   given the config.json of a hub's model before its weights are fetched; what it raises is raised.
    Raises ConfigError saying what was looked for where.
    """
    if model == EMBEDDED_MODEL:
        return Path(__file__).parent / "tiny_vl"
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if not _looks_like_hub_id(model):
        raise ConfigError(f"serve.model is {model!r}: no such folder, expected one, a hub id or {EMBEDDED_MODEL!r}")
    progress(f"fetching {model} from the Hugging Face hub (files already in its cache are kept)")
    try:
        accept(Path(hf_hub_download(model, CONFIG_FILE)))
        return Path(snapshot_download(model, allow_patterns=list(_WANTED_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(f"serve.model is {model!r}: no such folder, and the hub said: {error}") from error


def model_name(model: str, folder: Path) -> str:
    """What clients call it: the last part of the path or hub id."""
    return model if model == EMBEDDED_MODEL else (Path(model).name.strip(".") or folder.name)


def _looks_like_hub_id(model: str) -> bool:
    parts = model.split("/")
    return len(parts) == 2 and all(parts) and not model.startswith((".", "~"))
