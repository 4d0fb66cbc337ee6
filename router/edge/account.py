"""What one HTTP request has taken, summed up while it is answered."""

from dataclasses import dataclass

from triptych.router.observe.recent import Entry


@dataclass(slots=True)
class Account:
    """Numbers of tokens, over all answers that the request asked for.

    error: class of what the last one failed with, though the status may have told success already
    is_judged: whether an answer, or the want of one, was held against a class of service
    entry: what is kept of the last one that came as far as the workers
    """

    model: str = ""
    prompt_tokens: int = 0
    image_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""
    is_judged: bool = False
    entry: Entry | None = None

    @property
    def tokens(self) -> dict[str, int]:
        """By name, as logs have them."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "image_tokens": self.image_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
        }

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens
