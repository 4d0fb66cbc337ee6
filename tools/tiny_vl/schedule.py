"""The learning rate's share of its peak over a run."""

import math

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
