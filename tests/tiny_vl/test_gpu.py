"""What only a GPU can show: its attention kernels, compiled pieces and the recorded step agree with the plain ones."""

from random import Random

import pytest
import torch
from PIL import Image
from torch import Tensor

from tools.tiny_vl.attention import Way, attention_by
from tools.tiny_vl.chat import ChatEncoder
from tools.tiny_vl.config import Geometry, Recipe
from tools.tiny_vl.grids import Grids
from tools.tiny_vl.network import Network
from tools.tiny_vl.optimizer import Optimizer
from tools.tiny_vl.packer import Packer
from tools.tiny_vl.packing import Batch, Caps
from tools.tiny_vl.parameters import Layout, Parameters, initial_weights
from tools.tiny_vl.scenes import Blank, Picture, Sample, Turn
from tools.tiny_vl.stepper import Inbox, Stepper, Tally
from tools.tiny_vl.tokenizer import build_tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
CAPS = Caps(patches=4096, tokens=2048, images=64, windows=256, sequences=32, labels=256, turns=32)


def a_batch() -> Batch:
    rng = Random(2)
    packer = Packer(CAPS, ChatEncoder(build_tokenizer(["the"])), Grids(), ("read",))
    for number in range(12):
        size = (28 * rng.randint(2, 9), 28 * rng.randint(2, 9))
        image = Image.frombytes("RGB", size, rng.randbytes(3 * size[0] * size[1]))
        assert packer.add(Sample((Turn((Picture(image, Blank()), "What is the word?"), str(number), "read"),)))
    return packer.finish()


def run(way: Way, compute: torch.dtype, compiled: bool) -> tuple[float, list[Tensor]]:
    device = torch.device("cuda")
    parameters = Parameters(Layout.of(Geometry()), initial_weights(Geometry(), 1).to(device), compute)
    network = Network(Geometry(), attention_by(way), device, compiled)
    loss, _ = network.loss(parameters.leaves, a_batch().to(device).tensors())
    grads = torch.autograd.grad(loss, list(parameters.leaves.values()))
    return loss.item(), [grad.float() for grad in grads]


@pytest.mark.parametrize(("way", "compiled"), [("flash", False), ("varlen", False), ("flash", True)])
def test_fast_ways_agree_with_exact_arithmetic(way: Way, compiled: bool) -> None:
    loss, grads = run(way, torch.bfloat16, compiled)
    exact_loss, exact_grads = run("segments", torch.float32, False)
    assert loss == pytest.approx(exact_loss, rel=0.01)
    difference = torch.cat([(a - b).flatten() for a, b in zip(grads, exact_grads, strict=True)]).norm()
    # 1.7 % is usual for bfloat16.
    assert difference < 0.05 * torch.cat([grad.flatten() for grad in exact_grads]).norm()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_recorded_step_trains_like_a_plain_one(compiled: bool) -> None:
    losses = []
    for graphed in (False, True):
        device = torch.device("cuda")
        parameters = Parameters(Layout.of(Geometry()), initial_weights(Geometry(), 1).to(device), torch.bfloat16)
        optimizer = Optimizer(parameters, Recipe())
        inbox, tally = Inbox(a_batch(), 1, device), Tally(1, device)
        network = Network(Geometry(), attention_by("flash"), device, compiled)
        stepper = Stepper(network, parameters, optimizer, inbox, tally, graphed)
        torch.cuda.synchronize()
        seen = []
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            for _ in range(20):
                inbox.put(0, a_batch())
                inbox.take(0)
                optimizer.rates.fill_(1e-3)
                stepper.run()
                seen.append(tally.read().loss)
        losses.append(seen)
    assert all(seen[-1] < 0.8 * seen[0] for seen in losses)
    # Sums in another order: steps on one batch, learnt by heart by then, blow that up.
    assert losses[1][:6] == pytest.approx(losses[0][:6], rel=0.05)
