"""Muon for matrices, AdamW for embedding, norms and biases, on flat buffers and without a word to the host."""

import math

import torch
from torch import Tensor

from tools.tiny_vl.config import Recipe
from tools.tiny_vl.parameters import Parameters

_STEPS = 5
_A, _B, _C = (
    3.4445,
    -4.7750,
    2.0315,
)  # Keller Jordan's quintic: fast rather than exact, singular values end in 0.7 … 1.2
_ADAM_EPSILON = 1e-8


class Optimizer:
    """Momenta of all weights, and the step that applies gradients.

    rates: [2] float32 on the device, Muon's and AdamW's learning rate; set it before a step. On the device, so that a
        step can be replayed from a CUDA graph
    """

    def __init__(self, parameters: Parameters, recipe: Recipe) -> None:
        flat, layout = parameters.flat, parameters.layout
        self._parameters = parameters
        self._recipe = recipe
        self._small = torch.bfloat16 if flat.is_cuda else torch.float32
        self.momentum = torch.zeros_like(flat[: layout.num_matrix])
        self.first = torch.zeros_like(flat[layout.num_matrix :])
        self.second = torch.zeros_like(self.first)
        self.steps = torch.zeros((), device=flat.device)
        self.rates = torch.zeros(2, device=flat.device)

    def state(self) -> dict[str, Tensor]:
        """What a resumed run needs besides the weights; the tensors themselves, not copies."""
        return {"momentum": self.momentum, "first": self.first, "second": self.second, "steps": self.steps}

    @torch.no_grad()
    def step(self, grads: tuple[Tensor, ...]) -> Tensor:
        """Apply gradients, given in the order of the layout's names; returns their norm before clipping (a scalar)."""
        layout, flat = self._parameters.layout, self._parameters.flat
        grad = _flattened(grads)
        norm: Tensor = torch.linalg.vector_norm(grad)
        clip = self._recipe.clip_norm / norm.clamp(min=self._recipe.clip_norm)
        # One bad batch must not poison weights that the host looks at only now and then.
        grad = torch.where(norm.isfinite(), grad * clip, 0.0)
        self._muon(flat[: layout.num_matrix], grad[: layout.num_matrix])
        self._adam(flat[layout.num_matrix :], grad[layout.num_matrix :])
        self._parameters.refresh()
        return norm

    def _muon(self, weights: Tensor, grad: Tensor) -> None:
        kept = self._recipe.momentum
        self.momentum.lerp_(grad, 1.0 - kept)
        wanted = torch.lerp(grad, self.momentum, kept).to(self._small)
        change = torch.empty_like(weights)
        for stack in self._parameters.layout.stacks:
            turned = orthogonal(stack.view(wanted))
            # The size of AdamW's usual update, so that one learning rate suits every shape.
            stack.view(change).copy_(turned).mul_(0.2 * math.sqrt(max(stack.rows, stack.columns)))
        rate = self.rates[0]
        weights.mul_(1.0 - rate * self._recipe.weight_decay).sub_(change * rate)

    def _adam(self, weights: Tensor, grad: Tensor) -> None:
        first, second = self._recipe.adam_betas
        self.steps.add_(1.0)
        self.first.lerp_(grad, 1.0 - first)
        self.second.mul_(second).addcmul_(grad, grad, value=1.0 - second)
        mean = self.first / (1.0 - first**self.steps)
        spread = (self.second / (1.0 - second**self.steps)).sqrt_().add_(_ADAM_EPSILON)
        weights.sub_(mean.div_(spread).mul_(self.rates[1]))


def _flattened(grads: tuple[Tensor, ...]) -> Tensor:
    # Two types, two concatenations: of mixed ones, torch copies tensor by tensor.
    wide = torch.cat([grad.reshape(-1) for grad in grads if grad.dim() > 1])
    thin = torch.cat([grad.reshape(-1) for grad in grads if grad.dim() == 1])
    return torch.cat((wide.float(), thin.float()))


def orthogonal(stack: Tensor) -> Tensor:
    """The nearest orthogonal matrix to each of a stack [count, rows, columns], roughly, by five Newton-Schulz steps."""
    tall = stack.shape[1] > stack.shape[2]
    value = stack.mT if tall else stack
    value = value / torch.linalg.vector_norm(value, dim=(1, 2), keepdim=True, dtype=torch.float32).clamp(min=1e-7)
    value = value.to(stack.dtype)
    for _ in range(_STEPS):
        gram = value @ value.mT
        poly = torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C)
        value = torch.baddbmm(value, poly, value, beta=_A)
    return value.mT if tall else value
