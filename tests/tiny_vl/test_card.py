"""The model card says what was measured."""

import json
from pathlib import Path

import pytest

from tools.tiny_vl.card import CARD, RESULTS, filled, of_accuracy, of_faults, of_held_out, sections_from

MEASURED = {
    "what": {"seed": 7, "samples": 20, "model": "abc", "topology": "epd"},
    "machine": {"cores": 2, "processor": "Abacus"},
    "commit": "0123456789abcdef with changes",
    "date": "2026-02-03T04:05:06+00:00",
}


def test_the_committed_card_has_the_committed_figures() -> None:
    assert CARD.read_text() == filled(CARD.read_text(), sections_from(RESULTS)), "run python -m tools.tiny_vl card"


def test_what_was_between_the_markers_goes_and_all_else_stays() -> None:
    card = "before <!-- a -->old<!-- /a --> between <!-- b --><!-- /b --> after"
    assert filled(card, {"a": "new"}) == "before <!-- a -->\nnew\n<!-- /a --> between <!-- b --><!-- /b --> after"
    assert filled(filled(card, {"a": "new"}), {"a": "new"}) == filled(card, {"a": "new"})


@pytest.mark.parametrize("card", ["", "<!-- a -->", "<!-- /a --><!-- a -->", 2 * "<!-- a --><!-- /a -->"])
def test_a_card_without_one_pair_of_markers_is_not_written(card: str) -> None:
    with pytest.raises(ValueError, match="<!-- a --> … <!-- /a -->"):
        filled(card, {"a": "new"})


def test_figures_that_were_never_measured_are_said_to_be_missing(tmp_path: Path) -> None:
    assert sections_from(tmp_path) == dict.fromkeys(("accuracy", "held-out", "faults"), "Not measured yet.")
    kinds = {"read": {"right": 9, "total": 10, "bound": 0.97}}
    accuracy = MEASURED | {"requests": 10, "families": {"reading": {"kinds": kinds}}}
    (tmp_path / "tiny_vl_accuracy.json").write_text(json.dumps(accuracy))
    (tmp_path / "tiny_vl_held_out.json").write_text(json.dumps(accuracy))
    assert sections_from(tmp_path)["accuracy"] == of_accuracy(accuracy)
    assert sections_from(tmp_path)["held-out"] == of_held_out(accuracy)


def test_accuracy_is_told_by_family_and_kind_with_its_origin() -> None:
    kinds = {
        "above": {"right": 10, "total": 10, "bound": 0.98},
        "below": {"right": 9, "total": 10, "bound": 0.98},
    }
    text = of_accuracy(MEASURED | {"requests": 20, "families": {"relations": {"kinds": kinds}}})
    assert (
        "20 questions, abc in topology epd, seed 7, on 2 cores (Abacus), 2026-02-03, commit 0123456 with changes."
        in text
    )
    assert "| **relations** | mean of 2; worst: below 90.0 % | 19 of 20 | **95.0 %** |" in text
    assert "|  | above | 10 of 10 | 100.0 % | 72.2–100.0 | ≥ 98 % |" in text


def test_held_out_figures_have_a_row_for_each_family() -> None:
    kinds = {"above": {"right": 10, "total": 10, "bound": None}, "below": {"right": 5, "total": 10, "bound": None}}
    text = of_held_out(MEASURED | {"requests": 20, "families": {"relations": {"kinds": kinds}}})
    assert text.split("\n")[-1] == "| relations | 15 of 20 | 75.0 % | 53.1–88.8 |"


def test_what_is_not_known_of_another_server_is_said_to_be_unknown() -> None:
    what = {"seed": 7, "model": "theirs", "topology": "unknown", "url": "http://host:1"}
    text = of_accuracy(MEASURED | {"what": what, "requests": 0, "families": {}})
    assert "theirs in topology unknown at http://host:1, seed 7" in text


def test_first_tokens_of_all_families_are_one_row_that_names_the_worst() -> None:
    noticed = {
        "rotated | answers, grid-dense": {"noticed": 18, "total": 20, "bound": 0.8},
        "rotated | first tokens, chart": {"noticed": 20, "total": 20, "bound": 0.99},
        "rotated | first tokens, counts": {"noticed": 19, "total": 20, "bound": 0.99},
    }
    text = of_faults(MEASURED | {"tolerance_nats": 0.01, "noise_nats": 1.2e-05, "noticed": noticed})
    assert "from 0.01 nats on; two healthy runs differ by 1e-05. 20 questions a figure" in text
    rows = text.split("\n")[-2:]
    assert rows[0].startswith("| rotated | answers, grid-dense | 18 of 20 | 90.0 % |")
    assert rows[1].startswith("| rotated | first tokens, 2 families; worst: counts 95.0 % | 39 of 40 | 97.5 % |")
