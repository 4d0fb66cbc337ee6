"""What a decoder keeps in 8 bits: its layers' matrices, its keys and values, both or neither, as the settings say."""

import logging
from collections.abc import Sequence

import torch

from triptych.config import LanguageSettings
from triptych.models.decoder.fp8 import Converter
from triptych.models.decoder.weights import Dense, LayerWeights, Product
from triptych.models.kernels.head_shape import HeadShape
from triptych.models.kv_scales import AttentionWeights, KVExponents, fold, kv_exponents, scaling_digest
from triptych.models.quantised import FP8

log = logging.getLogger(__name__)

_PRODUCTS = ("qkv", "out", "gate_up", "down")


class Precision:
    """Finishes the layers of one decoder once their weights are set.

    kv_dtype: of the slab
    """

    def __init__(self, settings: LanguageSettings, shape: HeadShape, dtype: torch.dtype, device: torch.device) -> None:
        """dtype: the model's. May wait for the device."""
        self.kv_dtype = FP8 if settings.kv_dtype == "fp8" else dtype
        self._shape = shape
        self._device = device
        self._convert = Converter(device, dtype) if settings.weights == "fp8" else None
        self._scaled_kv = settings.kv_dtype == "fp8"
        self._exponents: list[KVExponents] = []
        if settings.precision:
            log.info("kept in 8 bits (e4m3): %s", settings.precision)

    @property
    def scaling(self) -> str:
        """Names the scales of all layers' keys and values; empty where there are none. See KVGeometry."""
        return scaling_digest(self._exponents) if self._scaled_kv else ""

    @torch.no_grad()
    def finish(self, layers: Sequence[LayerWeights]) -> None:
        """Changes the layers' weights in place, and replaces their products, as far as the settings ask for it.

        In order, and once; what is replaced is free when the next layer begins. Waits for the device. Raises
        ConfigError for weights that are not finite, where they have to be.
        """
        for number, layer in enumerate(layers):
            self._finish(layer, number)
        if self._convert is not None and self._device.type == "cuda":
            torch.cuda.empty_cache()  # else the wider weights' memory would pass for taken when KV gets its share

    def _finish(self, layer: LayerWeights, number: int) -> None:
        if self._scaled_kv:
            attention = _attention_weights(layer)
            exponents = kv_exponents(attention, self._shape)
            fold(attention, self._shape, exponents)
            self._exponents.append(exponents)
        if self._convert is not None:
            for name in _PRODUCTS:
                setattr(layer, name, self._convert(_dense(getattr(layer, name)), f"layer {number}'s {name}"))


def _attention_weights(layer: LayerWeights) -> AttentionWeights:
    qkv, out = _dense(layer.qkv), _dense(layer.out)
    return AttentionWeights(qkv.weight, qkv.bias, out.weight, layer.input_norm, layer.head_norm)


def _dense(made: Product) -> Dense:
    assert isinstance(made, Dense), f"a layer is finished once, its products were {type(made).__name__} already"
    return made
