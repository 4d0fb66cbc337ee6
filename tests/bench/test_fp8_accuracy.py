"""Figures of models that are apart by what is known; and a dry run over random tokens."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench import fp8_accuracy, fp8_products
from bench.fp8_figures import Foretold, exact_figures, logit_figures
from bench.fp8_prompts import exam_prompts
from tests.checkpoints import EMBEDDED, random_checkpoint
from triptych.models.card import load_card


def foretold(logits: Tensor, answer: list[int] | None = None, family: str = "a") -> Foretold:
    return Foretold(family, logits, torch.tensor(answer if answer is not None else logits.argmax(1).tolist()))


def test_equal_logits_are_not_apart() -> None:
    same = foretold(torch.randn(5, 40))
    found = logit_figures([same, same], [same, same])
    assert found.pop("tokens") == 10
    assert found.pop("top1_agreement") == 1
    assert set(found.values()) == {0.0}


def test_differences_are_told_as_what_they_are() -> None:
    wanted = torch.zeros(2, 4)
    wanted[:, 0], wanted[:, 1] = 3.0, 1.0
    found = wanted.clone()
    found[1, 1] += 4.0  # overturns a lead of 2
    figures = logit_figures([foretold(found)], [foretold(wanted)])
    assert figures["tokens"] == 2
    assert figures["logit_error_max"] == 4
    assert figures["logit_error_rms"] == pytest.approx(math.sqrt(16 / 8))
    assert figures["logit_error_relative"] == pytest.approx(0.5 * 2 / float(wanted[1].double().std()))
    assert figures["top1_agreement"] == 0.5
    assert figures["largest_gap_overturned"] == 2
    ours, theirs = found[1].log_softmax(0), wanted[1].log_softmax(0)
    nats = float((theirs.exp() * (theirs - ours)).sum())
    assert figures["kl_max_nats"] == pytest.approx(nats)
    assert figures["kl_mean_nats"] == pytest.approx(nats / 2)


def test_an_answer_is_right_to_the_last_token_or_wrong() -> None:
    logits = torch.eye(4)
    answers = [
        foretold(logits, [0, 1, 2, 3]),
        foretold(logits, [0, 1, 2, 0]),
        foretold(logits[:1], [0], family="b"),
    ]
    found = exact_figures(answers)
    assert (found["all"]["right"], found["all"]["total"]) == (2, 3)
    assert found["families"]["a"]["share"] == 0.5
    assert found["families"]["b"]["share"] == 1
    assert found["all"]["low"] < found["all"]["share"] < found["all"]["high"]


def test_the_exams_prompts_are_conversations_with_their_answers_behind_them() -> None:
    card = load_card(str(EMBEDDED), "auto")
    prompts = list(exam_prompts(card, 1, seed=5))
    assert len({prompt.family for prompt in prompts}) == len(prompts) > 10
    assert any(len(prompt.rows_at) for prompt in prompts)
    for prompt in prompts:
        begin, end = prompt.answer
        assert 0 < begin < end <= len(prompt.token_ids)
        assert prompt.token_ids[end - 1] in card.eos_token_ids, "the answer's end is part of it"
        assert len(prompt.rows_at) == len(prompt.rows)
        assert (prompt.token_ids[prompt.rows_at] == card.adapter.placeholder_id).all()


def test_a_run_over_random_tokens_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "found.json"
    words = ["--model", str(random_checkpoint()), "--samples", "2", "--tokens", "24", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["fp8_accuracy", *words])
    assert fp8_accuracy.main() == 0
    found = json.loads(output.read_text())["variants"]
    assert list(found) == [
        "float32",
        "bfloat16",
        "float32, fp8 weights",
        "float32, fp8 KV",
        "float32, fp8 weights, fp8 KV",
    ]
    errors = {name: figures["logit_error_relative"] for name, figures in found.items() if figures}
    assert 0 < errors["bfloat16"] < errors["float32, fp8 KV"] < errors["float32, fp8 weights, fp8 KV"] < 1


def test_products_are_timed_in_a_dry_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["fp8_products", "--device", "cpu", "--output", str(output)])
    assert fp8_products.main() == 0
    assert not output.exists(), "a dry run is no result"
