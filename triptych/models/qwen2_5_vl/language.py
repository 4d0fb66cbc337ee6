"""Qwen2.5-VL's decoder without its vision tower: transformers' modules over paged keys and values."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

from triptych.errors import ConfigError
from triptych.models.base import KVGeometry, PagedInputs
from triptych.models.card import ModelCard
from triptych.models.decoder.loading import PREFIXES
from triptych.models.paged_attention import ATTENTION_NAME, PagedStep
from triptych.models.weights import build_empty, fill_module

# Frequencies that depend on the longest sequence of a batch: neighbours would change each other's tokens.
_BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


class Decoder(nn.Module):
    """The parameters: embeddings, layers, and a head of its own unless the embeddings serve as one."""

    def __init__(self, text_config: Any, tied: bool) -> None:
        super().__init__()
        self.model = Qwen2_5_VLTextModel(text_config)
        if not tied:
            self.lm_head = nn.Linear(text_config.hidden_size, text_config.vocab_size, bias=False)

    @property
    def head_weight(self) -> Tensor:
        """[vocab, hidden]"""
        head = self.lm_head if hasattr(self, "lm_head") else self.model.embed_tokens
        weight: Tensor = head.weight
        return weight


class Qwen25VLLanguage:
    """A LanguageModel of one checkpoint, on one device."""

    def __init__(self, decoder: Decoder) -> None:
        config = decoder.model.config
        self.decoder = decoder
        self.hidden_size = int(config.hidden_size)
        self.levels = 1
        self.vocab_size = int(config.vocab_size)
        self.max_model_len = int(config.max_position_embeddings)
        self.dtype = decoder.head_weight.dtype
        self.device = decoder.head_weight.device
        self.kv = KVGeometry(
            layers=int(config.num_hidden_layers),
            kv_heads=int(config.num_key_value_heads),
            head_size=self.hidden_size // int(config.num_attention_heads),
            dtype=self.dtype,
        )

    @torch.no_grad()
    def embed(self, token_ids: Tensor) -> Tensor:
        """Text embeddings [tokens, hidden] of ids [tokens] int64."""
        embedded: Tensor = self.decoder.model.embed_tokens(token_ids)
        return embedded

    @torch.no_grad()
    def forward(self, embeddings: Tensor, inputs: PagedInputs, kv_slab: Tensor) -> Tensor:
        """Logits [asked, vocab] float32 of embeddings [tokens, hidden]; writes the step's K and V into the slab.

        kv_slab: as KVGeometry.slab_shape says, contiguous; whatever lies in it where nothing was written does no harm
        """
        hidden: Tensor = self.decoder.model(
            inputs_embeds=embeddings[None],
            position_ids=inputs.positions[:, None],
            use_cache=False,
            paged=PagedStep(inputs, kv_slab),
        ).last_hidden_state[0]
        return functional.linear(hidden[inputs.logits_at], self.decoder.head_weight).float()


def load_generic(card: ModelCard, dtype: torch.dtype, device: torch.device) -> Qwen25VLLanguage:
    """The decoder of the card's checkpoint, with the modules of transformers. Raises ConfigError."""
    config = Qwen2_5_VLConfig.from_pretrained(card.folder, local_files_only=True)
    text = copy.deepcopy(config.text_config)
    if "sliding_attention" in text.layer_types:
        raise ConfigError("text_config has sliding_attention layers, only full_attention is served")
    if text.rope_parameters.get("rope_type") in _BATCH_DEPENDENT_ROPE:
        raise ConfigError(f"rope_type {text.rope_parameters['rope_type']!r} cannot be batched, use default or yarn")
    text._attn_implementation = ATTENTION_NAME
    decoder = build_empty(lambda: Decoder(text, bool(config.tie_word_embeddings)), dtype, device)
    fill_module(decoder, card, PREFIXES)
    return Qwen25VLLanguage(decoder)
