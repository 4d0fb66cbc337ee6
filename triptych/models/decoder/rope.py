"""The angles of a step's tokens."""

import torch
from torch import Tensor

from triptych.models.decoder.rope_rule import RopeRule


class Rope:
    """A RopeRule's frequencies on a device, in float32 whatever the model computes in."""

    def __init__(self, rule: RopeRule, device: torch.device) -> None:
        self._scale = rule.scale
        self._frequencies = frequencies(rule).to(device)
        self._axes = torch.tensor(rule.axes, device=device) if any(rule.axes) else None

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [tokens, head_size / 2] float32, contiguous, of positions [3, tokens] int64."""
        if self._axes is None:
            along = positions[0].float()[:, None]
        else:
            along = positions.t().float().index_select(1, self._axes)
        angles = along * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        return (cos, sin) if self._scale == 1 else (cos * self._scale, sin * self._scale)


def frequencies(rule: RopeRule) -> Tensor:
    """[head_size / 2] float32, as transformers computes them, to the last bit."""
    periods = rule.theta ** (torch.arange(0, rule.head_size, 2, dtype=torch.float32) / rule.head_size)
    plain = 1.0 / periods
    if rule.yarn is None:
        return plain
    slow = 1.0 / (rule.yarn.factor * periods)
    number = torch.arange(rule.head_size // 2, dtype=torch.float32)
    ramp = 1 - ((number - rule.yarn.low) / (rule.yarn.high - rule.yarn.low)).clamp(0, 1)
    return slow * (1 - ramp) + plain * ramp
