"""What a model family is to the router: geometry, placeholders, prompt parts. No torch, no pixels.

The other half of a family, vision tower and language model, is built by `loading.py` where it is computed.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from triptych.errors import ConfigError
from triptych.journey import Grid
from triptych.models.plan import ItemPlan
from triptych.models.qwen2_5_vl.adapter import Qwen25VLAdapter
from triptych.multimodal.layout import ItemPart

__all__ = ["Adapter", "ItemPlan", "adapter_for"]


class Adapter(Protocol):
    """One checkpoint's geometry. Everything is told by sizes; nobody has decoded a pixel yet."""

    @property
    def placeholder_text(self) -> str:
        """What the chat template writes where an image goes, once per image."""

    @property
    def placeholder_id(self) -> int:
        """The token that stands at every prompt position that takes an embedding row."""

    @property
    def max_item_rows(self) -> int:
        """No image becomes more embedding rows than this, whatever its size and options."""

    @property
    def max_item_tokens(self) -> int:
        """The most patches a single image can have: what one encoder batch must be able to hold."""

    @property
    def atomic_items(self) -> bool:
        """Whether an image attends to itself both ways in the decoder, so that no chunk may end inside it."""

    @property
    def option_names(self) -> frozenset[str]:
        """Processor options a request may set per image."""

    def detail_options(self, detail: str) -> Mapping[str, int]:
        """The options that OpenAI's `detail` of an image (auto, low, high, original) stands for; none: the model's own.

        They never make an image larger than it would be without.
        """

    def plan(self, width: int, height: int, options: Mapping[str, int]) -> ItemPlan:
        """What an image of this size (pixels, after orientation) becomes.

        Raises InvalidMedia for a size the model refuses, InvalidRequest for an option that is unknown or cannot work.
        """

    def contexts(self, grid: Grid) -> Mapping[str, tuple[int, ...]]:
        """By kind, the patches of each stretch that the tower's layers attend inside of, as the tower orders them.

        Apart from `plan`, which is made for every image of every request: only the encoder has a use for it.
        """

    def part(self, plan: ItemPlan, digest: bytes, width: int, height: int, media: int) -> ItemPart:
        """The item as it goes into the prompt in place of one `placeholder_text`."""

    def processor_options(self, width: int, height: int, grid: Grid) -> Mapping[str, Any]:
        """Arguments under which the model's own image processor cuts an image of this size into this grid.

        An item carries its grid, not the options that led to it. Raises InvalidMedia where none lead there.
        """


_ADAPTER_BY_MODEL_TYPE: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Adapter]] = {
    "qwen2_5_vl": Qwen25VLAdapter.from_config,
}


def adapter_for(config: Mapping[str, Any], processor_config: Mapping[str, Any]) -> Adapter:
    """The adapter of a checkpoint, told by the `model_type` in its `config.json`.

    processor_config: the image processor's own settings. Raises ConfigError for a family that is not known.
    """
    require_known_family(config)
    return _ADAPTER_BY_MODEL_TYPE[str(config["model_type"])](config, processor_config)


def require_known_family(config: Mapping[str, Any]) -> None:
    """Raises ConfigError. To be asked first: others lack files that ours have, and their names would tell nothing."""
    model_type = config.get("model_type")
    if str(model_type) not in _ADAPTER_BY_MODEL_TYPE:
        raise ConfigError(f"model_type is {model_type!r}; known ones: {', '.join(sorted(_ADAPTER_BY_MODEL_TYPE))}")
