"""Every model x method x reducer takes its steps on torch's meta device: forward, backward, reduction, optimizer, surgery and
evaluation.

There a tensor on the wrong device, and a value that the host reads, fails. So the code of a GPU is rehearsed without one.

This cannot find: what only values show (a kernel that computes something wrong, a NaN, an overflow of float16); branches for
CUDA alone (`is_cuda`: torch's fused LSTM, logits in one piece), AMP, operations that CUDA does not have, too little memory, the
order of streams, and collectives that do not match between ranks. Batches are prepared on the CPU. What is read between steps
(the loss of an epoch, the metrics) passes through `World.on_host`. What a method measures after an epoch, the beam search of a
final result, the choice of what to prune, and checkpoints need values and are left out. In the decomposition of a matrix the host
may read values (here 1), and the solver's own code does not run. Batches in parts are rehearsed with one method only.
"""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from pufferfish_bench.core import Run
from pufferfish_bench.lowrank import svd
from pufferfish_bench.training import accumulation, optimizers
from tests.support.meta import RECIPES, OffDevice, meta_device, rehearse  # noqa: F401  (a fixture)
from tests.support.reducers import REDUCERS
from tests.support.repository import configured

CONVOLUTIONAL = ("any", "resnet18", "resnet50", "vgg11", "vgg19", "vgg19_lth", "wrn50_2")  # what eb_train and lth can prune
NETS = [name for name in configured("model") if name not in RECIPES]
NAMED_FOR_A_REDUCER = [name for name in configured("method") if name in REDUCERS]  # plain training with that reducer
PRUNING = ("eb_train", "lth")
METHODS = [name for name in configured("method") if name not in NAMED_FOR_A_REDUCER]
COMBINATIONS = [(net, method) for net in NETS for method in METHODS if method not in PRUNING or net in CONVOLUTIONAL]
WITH_MOMENTUM = partial(optimizers.sgd, momentum=0.9, nesterov=False, weight_decay=1e-4, decay_vectors=True)
OTHERS = [name for name in REDUCERS if name != "allreduce"]
PHASES = {
    "vanilla": ["train"], "hybrid": ["low_rank"], "low_rank": ["low_rank"], "pufferfish": ["warmup", "low_rank"],
    "eb_train": ["search", "retrain"], "lth": ["level0", "level1"],
}  # fmt: skip

pytestmark = [
    pytest.mark.usefixtures("meta_device"),
    pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter"),
]


@pytest.mark.parametrize(("net", "method"), COMBINATIONS)
def test_every_model_method_and_reducer_stays_on_its_device(net: str, method: str):
    """With each reducer a step in each phase; with allreduce also the evaluation and the surgery, which know no reducer."""
    trained = rehearse(net, method, "allreduce", others=OTHERS).trained
    assert [phase for phase, _ in trained] == [phase for phase in PHASES[method] for _ in REDUCERS]


def test_the_matrix_has_every_reducer():
    phases = rehearse("vgg11", "pufferfish", "allreduce", others=OTHERS).trained
    kinds = {kind for _, kind in phases}
    assert kinds == {"AllReduce", "HalfPrecision", "DDP", "DDPHalfPrecision", "DDPPowerSGD", "NoCommunication", "PowerSGD",
                     "StochasticBinary", "Signum", "TopK"}  # fmt: skip
    assert len(COMBINATIONS) * len(REDUCERS) == 696


# torch's DDP rebuilds its buckets on the host after the first step, and its PowerSGD draws its first random numbers there
@pytest.mark.parametrize("reducer", [name for name in REDUCERS if not name.startswith("ddp")])
@pytest.mark.parametrize("net", ["lstm", "resnet18"])
def test_the_state_that_a_reducer_keeps_between_steps_stays_on_its_device(net: str, reducer: str):
    trained = rehearse(net, "pufferfish", reducer, steps=3).trained
    assert [phase for phase, _ in trained] == ["warmup"] * 3 + ["low_rank"] * 3


@pytest.mark.parametrize("net", [net for net in NETS if net != "lstm"])  # whose momentum cannot be carried
def test_carried_momentum_stays_on_its_device(net: str):
    def carry(trainer: Any) -> None:
        trainer.method.factorise.carry_momentum = True
        trainer.optimizer = WITH_MOMENTUM

    assert [phase for phase, _ in rehearse(net, "pufferfish", "allreduce", change=carry).trained] == PHASES["pufferfish"]


def cpu_number(run: Run, gradient: Tensor) -> None:
    gradient.mul_(torch.tensor(0.5))


def cpu_tensor(run: Run, gradient: Tensor) -> None:
    gradient.add_(torch.zeros(gradient.shape))


def random_numbers_of_the_cpu(run: Run, gradient: Tensor) -> None:
    gradient.add_(torch.randn(gradient.shape).to(gradient.device))


def host_copy(run: Run, gradient: Tensor) -> None:
    run.best_weights["copy"] = gradient.cpu()


FAULTS = {
    cpu_number: (OffDevice, "on cpu"),  # works on a GPU, but the host waits for the copy if it has to be made each time
    cpu_tensor: (OffDevice, "on cpu"),
    random_numbers_of_the_cpu: (OffDevice, "on cpu"),
    host_copy: (NotImplementedError, "Cannot copy out of meta tensor"),
    lambda run, gradient: gradient.sum().item(): (RuntimeError, "cannot be called on meta tensors"),
    lambda run, gradient: float(gradient.sum()): (RuntimeError, "cannot be called on meta tensors"),
    lambda run, gradient: bool((gradient > 0).all()): (RuntimeError, "cannot be called on meta tensors"),
    lambda run, gradient: gradient[gradient > 0]: (NotImplementedError, "nonzero"),
    lambda run, gradient: gradient.tolist(): (NotImplementedError, "meta"),
}


@pytest.mark.parametrize("place", ["after_backward", "after_step"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_in_a_step_is_found(fault: Any, place: str):
    def plant(trainer: Any) -> None:
        own = getattr(trainer.method, place)

        def hook(run: Run) -> None:
            own(run)
            with torch.no_grad():
                fault(run, run.model.linear.weight.grad)

        setattr(trainer.method, place, hook)

    kind, words = FAULTS[fault]
    with pytest.raises(kind, match=words):
        rehearse("resnet18", "vanilla", "allreduce", change=plant)


@pytest.mark.parametrize(
    ("part", "kind"), [("loss", OffDevice), ("evaluate", RuntimeError), ("reduce", RuntimeError), ("batch", OffDevice)]
)
def test_a_planted_fault_in_another_part_is_found(part: str, kind: type[Exception]):
    """A CPU tensor in the loss or as a batch, a value that the evaluation or the reduction reads."""
    with pytest.raises(kind):
        rehearse("resnet18", "vanilla", "allreduce", change=partial(plant_in, part))


def plant_in(part: str, trainer: Any) -> None:
    if part == "reduce":
        make = trainer.reducer

        def reducer(**where: Any) -> Any:
            made = make(**where)
            own = made.reduce
            made.reduce = lambda: own() if made.gradient.sum() else []
            return made

        trainer.reducer = reducer
        return
    fit = trainer.fit

    def with_fault(*, task: Any, **others: Any) -> Any:
        task = copy.copy(task)
        loss, batches = task.loss, task.batches
        if part == "loss":
            task.loss = lambda model, batch: loss(model, batch) * torch.ones(1).sum()
        elif part == "batch":
            task.batches = lambda epoch, start: (
                (images, torch.zeros(2, dtype=torch.int64)) for images, _ in batches(epoch, start)
            )
        else:
            task.evaluate = lambda model: {"test_accuracy": float(model(torch.zeros(2, 3, 32, 32, device="meta")).mean())}
        return fit(task=task, **others)

    trainer.fit = with_fault


# images, streams of text, sentence pairs, words that are masked, words that come next
KINDS = ["resnet18", "lstm", "transformer", "hf_encoder", "hf_decoder"]


@pytest.mark.parametrize("net", KINDS)
def test_the_parts_of_a_batch_stay_on_their_device_with_every_reducer(net: str):
    rehearsal = rehearse(net, "pufferfish", "allreduce", others=OTHERS, accumulate=2)
    assert rehearsal.accumulate == 2
    assert [phase for phase, _ in rehearsal.trained] == [phase for phase in PHASES["pufferfish"] for _ in REDUCERS]


@pytest.mark.parametrize("reducer", REDUCERS)
def test_a_planted_fault_in_the_accumulation_of_gradients_is_found(reducer: str, monkeypatch: pytest.MonkeyPatch):
    """The loss of a part is read after its backward pass."""
    backward = accumulation.backward

    def reads(run: Run, batch: Any, weight: Any, *others: Any, **more: Any) -> Tensor:
        loss = backward(run, batch, weight, *others, **more)
        return loss if weight is None else loss.new_tensor(loss.item())

    monkeypatch.setattr(accumulation, "backward", reads)
    rehearse("resnet18", "vanilla", reducer)  # not in a batch that is computed at once
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        rehearse("resnet18", "vanilla", reducer, accumulate=2)


@pytest.mark.parametrize("part", ["gram_svd", "full_svd"])
def test_a_planted_fault_in_the_decomposition_of_a_layer_is_found(part: str, monkeypatch: pytest.MonkeyPatch):
    """A CPU tensor among the singular values."""
    own = getattr(svd, part)

    def faulty(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor, float]:
        U, S, Vh, energy = own(matrix, rank)
        return U, S + torch.zeros(rank), Vh, energy

    rehearse("resnet18", "pufferfish", "allreduce")
    monkeypatch.setattr(svd, part, faulty)
    with pytest.raises(OffDevice, match="on cpu"):
        rehearse("resnet18", "pufferfish", "allreduce")
