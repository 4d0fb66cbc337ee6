"""What a step's number decides: its learning rate, and the batch it trains on."""

import math
from random import Random

from tools.tiny_vl.config import Recipe


def rate_share(step: int, recipe: Recipe) -> float:
    """Share of the peak rate for a step, counted from 0: up, level, then down a cosine to recipe.final_share."""
    rising = min(1.0, (step + 1) / recipe.warmup_steps) if recipe.warmup_steps else 1.0
    decay_start = recipe.decay_from * recipe.steps
    if step <= decay_start:
        return rising
    done = min(1.0, (step - decay_start) / max(1.0, recipe.steps - decay_start))
    falling = recipe.final_share + (1.0 - recipe.final_share) * 0.5 * (1.0 + math.cos(math.pi * done))
    return min(rising, falling)


def num_batches(recipe: Recipe) -> int:
    """Batches of fresh samples in a whole run."""
    return -(-recipe.steps // recipe.echo)


def newest_batch(step: int, recipe: Recipe) -> int:
    """The last batch that has to be there for a step."""
    return step // recipe.echo


def oldest_batch(step: int, recipe: Recipe) -> int:
    """The first batch that this step or a later one may train on."""
    return max(0, newest_batch(step, recipe) - recipe.echo_window)


def batch_of(step: int, recipe: Recipe) -> int:
    """The batch to train on: the newest when it has just come, one of the window before it in the steps between."""
    newest = newest_batch(step, recipe)
    if step % recipe.echo == 0 or newest == 0:
        return newest
    return Random(f"echo {recipe.seed} {step}").randrange(oldest_batch(step, recipe), newest)
