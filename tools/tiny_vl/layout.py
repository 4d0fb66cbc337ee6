"""Where pictures stand among the words."""

from random import Random

from tools.tiny_vl.phrasebook import ORDINALS
from tools.tiny_vl.scenes import Picture
from tools.tiny_vl.setting import Setting

Parts = tuple[str | Picture, ...]


def with_picture(picture: Picture, question: str, setting: Setting, rng: Random) -> Parts:
    """Picture first, question first, or an introduction before both."""
    order = rng.random()
    if order < 0.52:
        return (picture, rng.choices(("", "\n", " "), (88, 8, 4))[0] + question)
    if order < 0.85:
        return (question + rng.choices(("", "\n", " "), (80, 10, 10))[0], picture)
    return (setting.phrase("lead-in", rng), picture, question)


def with_pictures(pictures: list[Picture], question: str, setting: Setting, rng: Random) -> Parts:
    """All pictures with text of one style between them, the question before, after or among them."""
    if len(pictures) == 1:
        return with_picture(pictures[0], question, setting, rng)
    labels = _labels(len(pictures), rng)
    parts: list[str | Picture] = []
    for label, picture in zip(labels, pictures, strict=True):
        parts += [label, picture]
    order = rng.random()
    if order < 0.25:
        parts = [question + rng.choice((" ", "\n") if labels[0] else ("", " ", "\n")), *parts]
    elif order < 0.35:
        parts = [setting.phrase("lead-ins", rng) + (" " if labels[0] else ""), *parts, question]
    elif order < 0.40:
        parts.insert(2 * rng.randint(1, len(pictures) - 1), f" {question} ")
    else:
        parts.append(rng.choices(("", "\n", " "), (75, 15, 10))[0] + question)
    return tuple(_joined(parts))


def _labels(count: int, rng: Random) -> list[str]:
    """The text before each picture."""
    style, noun = rng.random(), rng.choice(("Image", "Picture", "Photo"))
    if style < 0.45:
        return [""] * count
    if style < 0.65:
        form = rng.choice((f"{noun} {{}}:", f"{noun} {{}}: ", f"{noun} {{}}", "{}.", "({})", f"{noun.lower()} {{}}:"))
        labels = [form.format(number) for number in range(1, count + 1)]
    elif style < 0.75:
        form = rng.choice((f"The {{}} {noun.lower()}:", "{}:", f"{{}} {noun.lower()}:"))
        labels = [form.format(ordinal) for ordinal in ORDINALS[:count]]
        labels = [label[0].upper() + label[1:] for label in labels]
    else:
        word = rng.choice(("and", " and ", ",", ", ", "then", "\n", " ", "and this:", ";", "Next:"))
        return ["", *[word] * (count - 1)]
    line = rng.choice(("", "\n", " "))
    return [labels[0], *[line + label for label in labels[1:]]]


def _joined(parts: list[str | Picture]) -> list[str | Picture]:
    """No empty text, and no text next to another."""
    joined: list[str | Picture] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part != "":
            joined.append(part)
    return joined
