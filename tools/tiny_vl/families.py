"""The kinds of question tiny-vl is trained and measured on, and the families that the bounds are stated for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of question.

    family: the row of the model card it belongs to
    bound: smallest share of answers that must match exactly; None: reported only
    weight: share of the training samples that are drawn for it (further turns about the same picture come on top)
    """

    name: str
    family: str
    bound: float | None
    weight: float


_BOUND_BY_FAMILY: dict[str, float | None] = {
    "reading": 0.97,
    "reading-small": None,
    "reading-look-alike": None,
    "shapes": 0.98,
    "counts": 0.98,
    "relations": 0.98,
    "binding": 0.96,
    "multi-image": 0.96,
    "which-image": 0.93,
    "letter-grid": 0.95,
    "chart": 0.90,
    "receipt": 0.90,
    "text-only": 0.96,
    "multi-turn": 0.96,
    "blank": None,
}

# Questions about figures get most of their training from the second and third turns, so their weights look small.
_WEIGHTS: dict[str, dict[str, float]] = {
    "reading": {"read": 0.092, "read-words": 0.056},
    "reading-small": {"read-small": 0.056},
    "reading-look-alike": {"read-look-alike": 0.050},
    "shapes": {"name": 0.010, "list": 0.016, "shape-of": 0.010, "colour-of": 0.010},
    "counts": {"count-all": 0.015, "count-shape": 0.015, "count-colour": 0.015},
    "relations": {
        "left-of": 0.010,
        "right-of": 0.010,
        "above": 0.010,
        "below": 0.010,
        "between": 0.015,
        "edge": 0.010,
        "is-where": 0.015,
        "exists": 0.015,
    },
    "binding": {"colour-of-shape": 0.034, "shape-of-colour": 0.034},
    "multi-image": {
        "nth-says": 0.030,
        "nth-shows": 0.015,
        "nth-asks": 0.016,
        "first-last": 0.015,
        "same-text": 0.020,
        "same-shape": 0.012,
        "same-colour": 0.012,
        "how-many-images": 0.006,
        "earlier-turn": 0.015,
    },
    "which-image": {"which-says": 0.043, "which-shows": 0.043},
    "letter-grid": {"grid-dense": 0.040, "grid-loose": 0.040},
    "chart": {"tallest": 0.022, "shortest": 0.022},
    "receipt": {"total": 0.028, "price-of": 0.028},
    "text-only": {
        "echo": 0.012,
        "arithmetic": 0.011,
        "sequence": 0.006,
        "facts": 0.005,
        "greeting": 0.002,
        "memory": 0.004,
        "who-are-you": 0.002,
    },
    "multi-turn": {"chat-again": 0.014, "chat-switch": 0.014},
    "blank": {"blank": 0.015},
}

KINDS: dict[str, Kind] = {
    name: Kind(name, family, _BOUND_BY_FAMILY[family], weight)
    for family, weights in _WEIGHTS.items()
    for name, weight in weights.items()
}

FAMILIES: dict[str, tuple[Kind, ...]] = {
    family: tuple(kind for kind in KINDS.values() if kind.family == family) for family in _BOUND_BY_FAMILY
}
