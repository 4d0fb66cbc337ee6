"""What the router knows of an image before anyone has decoded it."""

from dataclasses import dataclass

from triptych.errors import InvalidRecord
from triptych.journey import Grid


@dataclass(frozen=True, slots=True)
class ItemPlan:
    """What one image will become, told by its size alone.

    The model's own image processor, given the same image, makes exactly this grid; encoders check it.
    """

    grid: Grid  # patches before merging
    merged: Grid  # embedding rows as they stand in the prompt
    encoder_tokens: int  # patches the encoder attends over
    rows: int  # embedding rows

    def __post_init__(self) -> None:
        if self.encoder_tokens != self.grid.patches or self.rows != self.merged.patches:
            raise InvalidRecord(
                f"plan of {self.encoder_tokens} encoder tokens and {self.rows} rows over grids of "
                f"{self.grid.patches} and {self.merged.patches}"
            )
