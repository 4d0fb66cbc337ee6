"""What every equality is measured against: transformers' own model and processor, nothing of ours.

    reference = Reference(folder)                                  # float32 on the CPU, sdpa
    answer = reference.generate(messages, images, max_new_tokens=48)
    answer.token_ids, answer.logprobs, answer.gaps                 # one entry per generated token
    report = compare(answer, token_ids, logprobs)                  # ours against it; raises AssertionError

`messages` are OpenAI's: content is text or a list of parts; a part of type `image` or `image_url` stands for the next
of `images`, canonical RGB as [height, width, 3] uint8 arrays or PIL images. What a URL says is not looked at.

The rule: tokens are equal and logprobs differ by at most 1e-4, step by step; a token may differ only where the
reference's two likeliest tokens were less than 1e-4 apart. From there on the two texts are different prompts, so the
comparison of that answer ends; such ends are counted, and a test says how many it allows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor, GenerationConfig

TOLERANCE = 1e-4

Message: TypeAlias = Mapping[str, Any]
Picture: TypeAlias = "npt.NDArray[np.uint8] | Image.Image"


@dataclass(frozen=True)
class Answer:
    """A greedy answer and how sure the model was of each token."""

    prompt_ids: tuple[int, ...]  # placeholders expanded
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of the token taken, by the raw distribution
    gaps: tuple[float, ...]  # between the two likeliest tokens' logits
    text: str  # special tokens left out


@dataclass(frozen=True)
class Comparison:
    """How far an answer of ours was compared, and how close it came."""

    equal_tokens: int
    near_tie: bool  # ended at a token where the reference itself was undecided
    largest_difference: float  # of logprobs


class Reference:
    """A checkpoint as transformers serves it. Greedy only; sampling settings of the folder are left out."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> None:
        self.processor = AutoProcessor.from_pretrained(folder, local_files_only=True)
        self.model = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=dtype, attn_implementation=attention, local_files_only=True
        ).eval()
        self.eos_token_ids = self.model.generation_config.eos_token_id
        # What a call leaves open is filled in from here: the folder's end tokens, temperature, penalties.
        self.model.generation_config = GenerationConfig()

    def generate(
        self,
        messages: Sequence[Message],
        images: Sequence[Picture] = (),
        max_new_tokens: int = 48,
        ignore_eos: bool = True,
    ) -> Answer:
        """The greedy answer; with ignore_eos false it ends behind the checkpoint's own end token."""
        return self.generate_from(self.inputs(messages, images), max_new_tokens, ignore_eos)[0]

    def inputs(self, messages: Sequence[Message], images: Sequence[Picture] = (), **template: Any) -> dict[str, Tensor]:
        """The processor's output for one conversation: what the model's forward takes."""
        text = self.processor.apply_chat_template(
            [_plain(message) for message in messages], add_generation_prompt=True, tokenize=False, **template
        )
        return dict(self.processor(text=[text], images=_pictures(images) or None, return_tensors="pt"))

    def inputs_from_ids(self, token_ids: Sequence[int], images: Sequence[Picture] = ()) -> dict[str, Tensor]:
        """As `inputs`, for a prompt already tokenised, placeholders expanded: text that must not become special."""
        ids = torch.tensor([list(token_ids)])
        made = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        made["mm_token_type_ids"] = (ids == self.model.config.image_token_id).int()
        if images:
            made |= dict(self.processor.image_processor(images=_pictures(images), return_tensors="pt"))
        return made

    def generate_from(
        self, inputs: Mapping[str, Tensor], max_new_tokens: int = 48, ignore_eos: bool = True
    ) -> list[Answer]:
        """Greedy answers to a batch of prompts of equal length."""
        settings = GenerationConfig(
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=None if ignore_eos else self.eos_token_ids,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        with torch.inference_mode():
            made = self.model.generate(**inputs, generation_config=settings)
        logits = torch.stack(made.logits, dim=1).float()  # [prompts, steps, vocab]
        length = inputs["input_ids"].shape[1]
        return [
            self._answer(prompt.tolist(), tokens[length:], steps)
            for prompt, tokens, steps in zip(inputs["input_ids"], made.sequences, logits, strict=True)
        ]

    def _answer(self, prompt_ids: list[int], token_ids: Tensor, logits: Tensor) -> Answer:
        logprobs = logits.log_softmax(-1).gather(1, token_ids[:, None])[:, 0]
        best = logits.topk(2, dim=-1).values
        return Answer(
            prompt_ids=tuple(prompt_ids),
            token_ids=tuple(token_ids.tolist()),
            logprobs=tuple(logprobs.tolist()),
            gaps=tuple((best[:, 0] - best[:, 1]).tolist()),
            text=self.processor.tokenizer.decode(token_ids, skip_special_tokens=True),
        )


def compare(answer: Answer, token_ids: Sequence[int], logprobs: Sequence[float]) -> Comparison:
    """Holds ours against the reference by the rule on top of this file; AssertionError names the step that breaks it.

    Where the comparison did not end before, both must have the same length.
    """
    assert len(token_ids) == len(logprobs)
    largest = 0.0
    for step, (wanted, found) in enumerate(zip(answer.token_ids, token_ids, strict=False)):
        if wanted != found:
            gap = answer.gaps[step]
            assert gap < TOLERANCE, f"step {step}: token {found}, reference {wanted} with a gap of {gap:.2e}"
            return Comparison(step, near_tie=True, largest_difference=largest)
        difference = abs(answer.logprobs[step] - logprobs[step])
        assert difference <= TOLERANCE, f"step {step}: logprob {logprobs[step]}, reference {answer.logprobs[step]}"
        largest = max(largest, difference)
    assert len(token_ids) == len(answer.token_ids), f"{len(token_ids)} tokens, reference {len(answer.token_ids)}"
    return Comparison(len(token_ids), near_tie=False, largest_difference=largest)


def _plain(message: Message) -> dict[str, Any]:
    """A message as the template takes it: image parts of any spelling become `image`."""
    content = message["content"]
    if isinstance(content, str):
        return {"role": message["role"], "content": content}
    parts = [
        {"type": "text", "text": part["text"]} if part["type"] == "text" else {"type": "image"} for part in content
    ]
    return {"role": message["role"], "content": parts}


def _pictures(images: Sequence[Picture]) -> list[Image.Image]:
    return [image if isinstance(image, Image.Image) else Image.fromarray(image) for image in images]
