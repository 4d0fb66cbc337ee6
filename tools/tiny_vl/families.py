"""The kinds of question tiny-vl is trained and measured on, and the families that the bounds are stated for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of question.

    family: the row of the model card it belongs to
    bound: smallest share of answers that must match exactly; None: reported only
    early_weight, weight: share of the training samples that are drawn for it (further turns about the same picture
        come on top), until EARLY_UNTIL and after it
    """

    name: str
    family: str
    bound: float | None
    early_weight: float
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
    "blank": 0.98,
    "extras": None,
}

# Shares of the training samples, in the first quarter of training and from then on. First comes what all else rests on,
# reading and binding; later the kinds that learn slowly, because a yes, a label or an ordinal tells little about why it
# was right. Questions about figures get most of their training from second and third turns, so their shares look small.
_WEIGHTS: dict[str, dict[str, tuple[float, float]]] = {
    "reading": {"read": (0.079, 0.044), "read-words": (0.054, 0.046)},
    "reading-small": {"read-small": (0.052, 0.029)},
    "reading-look-alike": {"read-look-alike": (0.046, 0.025)},
    "shapes": {
        "name": (0.010, 0.005),
        "list": (0.016, 0.010),
        "shape-of": (0.010, 0.005),
        "colour-of": (0.010, 0.005),
    },
    "counts": {"count-all": (0.015, 0.013), "count-shape": (0.016, 0.035), "count-colour": (0.016, 0.023)},
    "relations": {
        "left-of": (0.010, 0.007),
        "right-of": (0.010, 0.007),
        "above": (0.010, 0.007),
        "below": (0.010, 0.007),
        "between": (0.012, 0.010),
        "edge": (0.010, 0.008),
        "is-where": (0.016, 0.024),
        "exists": (0.015, 0.016),
    },
    "binding": {"colour-of-shape": (0.032, 0.020), "shape-of-colour": (0.032, 0.020)},
    "multi-image": {
        "nth-says": (0.029, 0.020),
        "nth-shows": (0.015, 0.010),
        "nth-asks": (0.016, 0.028),
        "first-last": (0.013, 0.009),
        "same-text": (0.022, 0.052),
        "same-shape": (0.012, 0.020),
        "same-colour": (0.012, 0.019),
        "how-many-images": (0.005, 0.004),
        "earlier-turn": (0.014, 0.013),
    },
    "which-image": {"which-says": (0.042, 0.058), "which-shows": (0.036, 0.036)},
    "letter-grid": {"grid-dense": (0.038, 0.028), "grid-loose": (0.038, 0.028)},
    "chart": {"tallest": (0.022, 0.030), "shortest": (0.022, 0.030)},
    "receipt": {"total": (0.024, 0.016), "price-of": (0.028, 0.046)},
    "text-only": {
        "echo": (0.012, 0.008),
        "arithmetic": (0.010, 0.010),
        "sequence": (0.006, 0.005),
        "facts": (0.005, 0.005),
        "greeting": (0.003, 0.004),
        "memory": (0.004, 0.006),
        "who-are-you": (0.002, 0.002),
    },
    "multi-turn": {
        "chat-again": (0.009, 0.017),
        "chat-switch": (0.009, 0.017),
        "chat-memory": (0.004, 0.006),
        "chat-next": (0.006, 0.010),
    },
    "blank": {"blank": (0.015, 0.030)},
    # Answers that list all there is to see: they teach what the short answers of other kinds rest on.
    "extras": {
        "bar-labels": (0.005, 0.006),
        "bar-order": (0.010, 0.016),
        "count-bars": (0.003, 0.004),
        "items": (0.003, 0.004),
        "prices": (0.004, 0.006),
        "all-say": (0.010, 0.011),
        "all-show": (0.007, 0.010),
        "differ": (0.004, 0.010),
    },
}
EARLY_UNTIL = 0.25  # of the training: so long the early weights hold

KINDS: dict[str, Kind] = {
    name: Kind(name, family, _BOUND_BY_FAMILY[family], *weights)
    for family, kinds in _WEIGHTS.items()
    for name, weights in kinds.items()
}

FAMILIES: dict[str, tuple[Kind, ...]] = {
    family: tuple(kind for kind in KINDS.values() if kind.family == family) for family in _BOUND_BY_FAMILY
}
