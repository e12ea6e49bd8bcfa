"""Mixed precision with a scaled loss, as on a GPU, with torch's loss scaler on a CPU."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pufferfish_bench.core import Method, Observer, Reducer, Run
from pufferfish_bench.distributed.surgery import fingerprint
from pufferfish_bench.trainer import Stopped
from pufferfish_bench.training import optimizers
from pufferfish_bench.training.precision import FullPrecision, MixedPrecision
from tests.support.training import train

SCALE = 2.0**10


class Scaled(MixedPrecision):
    """The scaling of MixedPrecision on CUDA, in float32 on a CPU: what it computes must be what FullPrecision computes."""

    def __init__(self, growth_interval: int = 1000):
        self.scales = True
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=growth_interval)

    autocast = FullPrecision.autocast


class Look(Observer):
    """The weights and the scale after every step."""

    def __init__(self, precision: Scaled):
        self.precision = precision
        self.seen: list[tuple[str, float]] = []

    def step_ended(self, run: Run) -> None:
        weights = {name: p.detach().clone() for name, p in run.model.named_parameters()}
        self.seen.append((torch.cat([w.flatten() for w in weights.values()]).sum().item(), self.precision.scaler.get_scale()))


class Overflow(Reducer):
    """A step whose gradient overflows, as in float16; notes the gradients that it is given."""

    at = 3

    def __init__(self, **where: Any):
        super().__init__(**where)
        self.given: list[torch.Tensor] = []

    def attach(self, model: torch.nn.Module) -> torch.nn.Module:
        self.model = model
        return model

    def reduce(self) -> list:
        gradient = self.model.fc2.bias.grad
        self.given.append(gradient.clone())
        if len(self.given) == self.at + 1:
            gradient[0] = torch.inf
        return []


OPTIMIZERS = {
    "sgd": partial(optimizers.sgd, momentum=0.9, nesterov=False, weight_decay=1e-4, decay_vectors=True),
    "adam": partial(optimizers.adam, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0, decay_vectors=True),
    "powersgd_momentum": partial(optimizers.powersgd_momentum, momentum=0.9, weight_decay=1e-4, decay_vectors=True),
}


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_scaled_loss_trains_as_an_unscaled_one(tmp_path: Path, optimizer: str, clip_norm: float | None):
    how = {"optimizer": OPTIMIZERS[optimizer], "clip_norm": clip_norm}
    plain = train(tmp_path / "plain", Method(), **how)
    scaled = train(tmp_path / "scaled", Method(), precision=Scaled(), **how)
    for one, other in zip(plain.model.parameters(), scaled.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_that_overflows_is_skipped_and_the_scale_is_halved(tmp_path: Path, optimizer: str):
    precision = Scaled()
    look = Look(precision)
    how = {"optimizer": OPTIMIZERS[optimizer], "precision": precision, "observers": [look], "reducer": Overflow}
    run = train(tmp_path, Method(), epochs=1, **how)
    weights, scales = zip(*look.seen, strict=True)
    assert scales == (SCALE,) * Overflow.at + (SCALE / 2,) * (len(scales) - Overflow.at)
    assert weights[Overflow.at] == weights[Overflow.at - 1]
    assert len(set(weights)) == len(weights) - 1  # all other steps change the weights
    assert all(p.isfinite().all() for p in run.model.parameters())


def test_a_reducer_is_given_scaled_gradients_and_the_method_unscaled_ones(tmp_path: Path):
    ratios = []

    class Compare(Method):
        def after_backward(self, run: Run) -> None:
            ratios.append(run.reducer.given[-1] / run.model.fc2.bias.grad)

    train(tmp_path, Compare(), epochs=1, precision=Scaled(), reducer=partial(Overflow))
    kept = ratios[: Overflow.at]
    assert kept
    for ratio in kept:
        torch.testing.assert_close(ratio, torch.full_like(ratio, SCALE))


def test_the_scale_survives_a_stop(tmp_path: Path):
    """The scale grows every two steps, so a resumed run differs if it is lost, or if the count since the last growth is."""
    precision = Scaled(growth_interval=2)
    whole = train(tmp_path / "whole", Method(), precision=precision)
    with pytest.raises(Stopped):
        train(tmp_path / "stopped", Method(), precision=Scaled(growth_interval=2), stop_after=9)
    resumed_precision = Scaled(growth_interval=2)
    resumed = train(tmp_path / "stopped", Method(), precision=resumed_precision)
    assert fingerprint(resumed.model) == fingerprint(whole.model)
    assert resumed_precision.state_dict() == precision.state_dict()
    assert precision.scaler.get_scale() > SCALE
