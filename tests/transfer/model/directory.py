"""Which workers there are just now, and what clients ask about."""

from random import Random

from tests.transfer.model.values import Picture, Prompt
from triptych.journey import Endpoint

Chosen = tuple[tuple[Endpoint, ...], Endpoint, Endpoint]


class Directory:
    """Living workers by role; whoever looks may be a little behind."""

    def __init__(self, random: Random) -> None:
        self.by_role: dict[str, dict[str, Endpoint]] = {"encode": {}, "prefill": {}, "decode": {}}
        pictures = [Picture(random.randbytes(16), random.choice((1, 1, 2, 3))) for _ in range(16)]
        self.prompts = [_prompt(random, pictures) for _ in range(24)]

    def choose(self, random: Random, pictures: int) -> Chosen | None:
        """An encoder for each picture, a prefill worker, a decode worker."""
        encoders, prefills, decodes = (list(self.by_role[role].values()) for role in ("encode", "prefill", "decode"))
        if not (encoders and prefills and decodes):
            return None
        chosen = tuple(random.choice(encoders) for _ in range(pictures))
        return chosen, random.choice(prefills), random.choice(decodes)


def _prompt(random: Random, pictures: list[Picture]) -> Prompt:
    chosen = tuple(random.choice(pictures) for _ in range(random.choice((0, 1, 1, 2, 3))))
    chunks = max(1, len(chosen))
    return Prompt(random.randbytes(16), chosen, tuple(random.choice((1, 1, 2)) for _ in range(chunks)))
