"""The laws of the training loop, on a tiny net with every kind of layer."""

import io
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.core import Message, Method, Observer, Phase, Reducer, Run
from pufferfish_bench.distributed.surgery import fingerprint
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.methods.pufferfish import Pufferfish
from pufferfish_bench.records.files import EPOCHS, RUN, read_json, read_rows
from pufferfish_bench.reducers.powersgd import PowerSGD
from pufferfish_bench.tasks.images.task import ImageClassification
from pufferfish_bench.trackers.tensorboard import TensorBoard
from pufferfish_bench.trainer import Stopped
from pufferfish_bench.training import memory_format, optimizers
from pufferfish_bench.training.checkpoints import Checkpoints
from pufferfish_bench.training.recorder import Recorder
from pufferfish_bench.training.terminal import Terminal
from tests.support.nets import PUFFERFISH, tiny_task
from tests.support.training import EPOCHS_TRAINED, METHODS, STEPS, record, resumed_to_the_same_end, train, uninterrupted_runs


def structure(run: Run) -> list[dict[str, Any]]:
    """What the surgeries did, without the time it took."""
    return [{**done, "seconds": None, "layers": list(done["layers"])} for done in run.operations if done]


uninterrupted = uninterrupted_runs(METHODS)


@pytest.mark.parametrize("stop_after", range(1, EPOCHS_TRAINED * STEPS))
def test_a_run_stopped_at_any_step_and_resumed_equals_the_uninterrupted_run(uninterrupted, stop_after: int, tmp_path: Path):
    name, whole, directory = uninterrupted
    resumed = resumed_to_the_same_end(whole, directory, tmp_path, METHODS[name], stop_after=stop_after)
    assert structure(resumed) == structure(whole)


@pytest.mark.parametrize("stop_after", [1, STEPS, STEPS + 3, 2 * STEPS, 2 * STEPS + 1])
def test_phase_started_is_called_once_before_the_first_step_of_each_phase_and_not_again_after_a_resume(
    stop_after: int, tmp_path: Path
):
    class Drawing(Pufferfish):
        """Draws a random number at the start of each phase, so that a resume that draws again changes the weights."""

        def __init__(self) -> None:
            super().__init__(warmup_epochs=2, start="svd", momentum="carry", **PUFFERFISH)
            self.drawn: dict[str, float] = {}

        def phase_started(self, run: Run) -> None:
            super().phase_started(run)
            assert run.phase.name not in self.drawn
            assert bool(run.optimizer.state) == (run.phase.name == "low_rank")  # the carried momentum is already there
            assert run.reducer.world is run.world
            self.drawn[run.phase.name] = float(torch.rand(()))
            starts.append((run.phase.name, run.epoch, run.step, run.watch.timed_steps))

        def after_step(self, run: Run) -> None:
            run.model.fc2.bias.data += 0.01 * self.drawn[run.phase.name]

        def state_dict(self) -> dict[str, Any]:
            return {"monitor": super().state_dict(), "drawn": self.drawn}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state["monitor"])
            self.drawn = state["drawn"]

    starts: list[tuple[str, int, int, int]] = []
    whole = train(tmp_path / "whole", Drawing())
    once = [("warmup", 0, 0, 0), ("low_rank", 2, 0, 0)]
    assert starts == once
    starts.clear()
    resumed_to_the_same_end(whole, tmp_path / "whole", tmp_path / "stopped", Drawing, stop_after=stop_after)
    assert starts == once


@pytest.mark.parametrize("stop_in", range(EPOCHS_TRAINED))
def test_a_run_stopped_during_evaluation_evaluates_again_and_trains_no_step_twice(uninterrupted, stop_in: int, tmp_path: Path):
    class StopInEvaluation(Observer):
        reached = False

        def evaluation_started(self, run: Run) -> None:
            self.reached = run.epoch == stop_in

    name, whole, directory = uninterrupted
    stop = StopInEvaluation()
    with pytest.raises(Stopped):
        train(tmp_path, METHODS[name](), observers=[stop], stop_requested=lambda: stop.reached)
    assert len(record(tmp_path)) == stop_in
    resumed = train(tmp_path, METHODS[name]())
    assert fingerprint(resumed.model) == fingerprint(whole.model)
    assert record(tmp_path) == record(directory)


@pytest.mark.parametrize("checkpoint_every", [1, 2, 3])
@pytest.mark.parametrize("killed_in", range(EPOCHS_TRAINED))
def test_a_run_that_died_resumes_from_its_last_checkpoint(uninterrupted, killed_in: int, checkpoint_every: int, tmp_path: Path):
    class Death(Observer):
        def step_ended(self, run: Run) -> None:
            if run.epoch == killed_in and run.step == 3:
                raise SystemExit

    name, whole, directory = uninterrupted
    with pytest.raises(SystemExit):
        train(tmp_path, METHODS[name](), observers=[Death()], checkpoint_every=checkpoint_every)
    resumed = train(tmp_path, METHODS[name](), checkpoint_every=checkpoint_every)
    assert fingerprint(resumed.model) == fingerprint(whole.model)
    assert record(tmp_path) == record(directory)


def test_the_model_before_the_switch_equals_the_vanilla_model(tmp_path: Path):
    seen = {}

    class Look(Observer):
        def epoch_ended(self, run: Run, row: dict[str, Any]) -> None:
            seen.setdefault(row["epoch"], []).append(row["loss"])

    train(tmp_path / "a", METHODS["vanilla"](), observers=[Look()])
    train(tmp_path / "b", METHODS["pufferfish"](), observers=[Look()])
    assert [len(set(losses)) for losses in seen.values()] == [1, 1, 2, 2]


def test_the_switch_replaces_the_warmed_up_weights_by_their_svd(tmp_path: Path):
    before: dict[str, torch.Tensor] = {}

    class Look(Observer):
        def epoch_ended(self, run: Run, row: dict[str, Any]) -> None:
            if row["epoch"] == 1:
                before.update({name: tensor.clone() for name, tensor in run.model.state_dict().items()})

        def phase_started(self, run: Run) -> None:
            if run.phase.name != "low_rank":
                return
            for name in ("conv2", "fc1"):
                layer = run.model.get_submodule(name)
                u, v, energy = lowrank.truncated_svd(before[f"{name}.weight"], layer.u.weight.shape[0])
                assert torch.equal(layer.u.weight.flatten(1), u)
                assert torch.equal(layer.v.weight.flatten(1), v)
                assert run.operations[-1]["layers"][name]["energy"] == energy
            assert torch.equal(run.model.norm.running_var, before["norm.running_var"])
            assert not run.optimizer.state  # fresh

    run = train(tmp_path, METHODS["pufferfish"](), observers=[Look()])
    assert before
    switch = read_json(tmp_path / RUN)["operations"]
    assert [operation["phase"] for operation in switch] == ["low_rank"]
    assert list(switch[0]["layers"]) == ["conv2", "fc1"]
    assert all(set(done) == {"rank", "energy", "random_energy", "seconds"} for done in switch[0]["layers"].values())
    assert switch[0]["seconds"] >= sum(done["seconds"] for done in switch[0]["layers"].values()) > 0
    assert run.parameters == sum(parameter.numel() for parameter in run.model.parameters())


POWERSGD_MOMENTUM = {
    "optimizer": partial(optimizers.powersgd_momentum, momentum=0.9, weight_decay=1e-4, decay_vectors=False),
    "reducer": partial(PowerSGD, rank=1, seed=3, measure_wait=False),
}


@pytest.mark.parametrize("stop_after", [3, 2 * STEPS, 3 * STEPS + 2])
def test_powersgds_momentum_survives_a_resume_and_the_switch(stop_after: int, tmp_path: Path):
    whole = train(tmp_path / "whole", METHODS["carry"](), **POWERSGD_MOMENTUM)
    with pytest.raises(Stopped):
        train(tmp_path / "stopped", METHODS["carry"](), stop_after=stop_after, **POWERSGD_MOMENTUM)
    resumed = train(tmp_path / "stopped", METHODS["carry"](), **POWERSGD_MOMENTUM)
    assert fingerprint(resumed.model) == fingerprint(whole.model)
    assert record(tmp_path / "stopped") == record(tmp_path / "whole")
    heavy_ball = train(tmp_path / "sgd", METHODS["carry"](), reducer=POWERSGD_MOMENTUM["reducer"])
    assert fingerprint(heavy_ball.model) != fingerprint(whole.model)


@pytest.mark.parametrize("changes", [{}, POWERSGD_MOMENTUM])
def test_carried_momentum_is_the_old_momentum_expressed_in_the_new_parameters(changes: dict, tmp_path: Path):
    momenta: dict[str, torch.Tensor] = {}

    class Look(Observer):
        def epoch_ended(self, run: Run, row: dict[str, Any]) -> None:
            if row["epoch"] == 1:
                state = run.optimizer.state
                momenta.update({name: state[p]["momentum_buffer"].clone() for name, p in run.model.named_parameters()})

        def phase_started(self, run: Run) -> None:
            if run.phase.name != "low_rank":
                return
            now = {name: run.optimizer.state[p]["momentum_buffer"] for name, p in run.model.named_parameters()}
            for name in ("conv1.weight", "conv1.bias", "norm.weight", "norm.bias", "fc2.weight", "fc2.bias"):
                assert torch.equal(now.pop(name), momenta[name])
            assert torch.equal(now.pop("fc1.v.bias"), momenta["fc1.bias"])
            for name in ("conv2", "fc1"):
                u, v = lowrank.chain_rule(momenta[f"{name}.weight"], run.model.get_submodule(name))
                assert torch.equal(now.pop(f"{name}.u.weight"), u)
                assert torch.equal(now.pop(f"{name}.v.weight"), v)
            assert not now

    train(tmp_path, METHODS["carry"](), observers=[Look()], **changes)
    assert momenta


def test_the_sections_of_an_epoch_add_up_to_its_seconds(tmp_path: Path):
    train(tmp_path, METHODS["pufferfish"]())
    for row in read_rows(tmp_path / EPOCHS):
        sections = {key: value for key, value in row.items() if key.startswith("seconds_")}
        assert sum(sections.values()) == pytest.approx(row["seconds"], rel=1e-9)
        assert sections.keys() >= {f"seconds_{name}" for name in ("data", "forward", "backward", "step", "method", "other")}
        first = row["epoch"] in (0, 2)  # the first epoch of a phase
        assert ("seconds_first_steps" in sections) == first
        assert row["timed_steps"] == STEPS - 2 * first


def test_the_learning_rate_of_every_step_is_the_schedule_at_its_clock(tmp_path: Path):
    seen = []

    class Look(Observer):
        def step_ended(self, run: Run) -> None:
            seen.append({group["lr"] for group in run.optimizer.param_groups})

    train(
        tmp_path,
        METHODS["pufferfish"](),
        observers=[Look()],
        schedule=lambda clock: 1e-3 * (1 + clock.epoch * clock.steps + clock.step),
    )
    assert seen == [{1e-3 * (1 + step)} for step in range(EPOCHS_TRAINED * STEPS)]


def test_a_step_is_no_longer_than_the_rate_times_the_clip_norm(tmp_path: Path):
    rate, clip_norm, steep = 0.1, 0.25, 1e3
    lengths = []

    class Look(Observer):
        def phase_started(self, run: Run) -> None:
            self.before = nn.utils.parameters_to_vector(run.model.parameters()).detach().clone()

        def step_ended(self, run: Run) -> None:
            now = nn.utils.parameters_to_vector(run.model.parameters()).detach().clone()
            lengths.append(float((now - self.before).norm()))
            self.before = now

    train(
        tmp_path, Method(), epochs=1, clip_norm=clip_norm, observers=[Look()], schedule=lambda clock: rate,
        wrap=lambda module: lambda images: steep * module(images),  # makes the gradients larger by this factor
        optimizer=partial(optimizers.sgd, momentum=0.0, nesterov=False, weight_decay=0.0, decay_vectors=True),
    )  # fmt: skip
    assert len(lengths) == STEPS
    assert max(lengths) == pytest.approx(rate * clip_norm, rel=1e-3)


def test_the_loss_of_an_epoch_is_the_mean_over_examples_not_over_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    losses = []

    def remembered(task: ImageClassification, model: Any, batch: Any) -> torch.Tensor:
        loss = loss_of(task, model, batch)
        losses.append((float(loss.detach()), len(batch[1])))
        return loss

    loss_of = ImageClassification.loss
    monkeypatch.setattr(ImageClassification, "loss", remembered)
    train(tmp_path, Method(), epochs=1)
    assert [count for _, count in losses] == [8] * 6 + [2]
    (row,) = record(tmp_path)
    assert row["loss"] == pytest.approx(sum(loss * count for loss, count in losses) / 50)
    assert row["loss"] != pytest.approx(sum(loss for loss, _ in losses) / 7)


def test_a_non_finite_loss_names_the_step_and_keeps_the_last_good_checkpoint(tmp_path: Path):
    class Poison(Method):
        def after_step(self, run: Run) -> None:
            if (run.epoch, run.step) == (2, 3):
                run.model.fc2.bias.data.fill_(math.nan)

    with pytest.raises(InputError, match=r"step 5 of epoch 3 .*learning_rate.*epoch00002-step0000000"):
        train(tmp_path, Poison())
    state = Checkpoints(directory=tmp_path / "checkpoints", world=single_process()).load()
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


def test_a_phase_can_end_early_and_its_early_end_survives_a_stop(tmp_path: Path):
    class Early(Method):
        def plan(self, epochs: int, model: nn.Module) -> list[Phase]:
            return [Phase("search", range(epochs), until=lambda run: run.epoch >= 2), Phase("rest", range(epochs))]

    whole = train(tmp_path / "whole", Early())
    assert [row["phase"] for row in record(tmp_path / "whole")] == ["search", "search", "rest", "rest"]
    for stop_after in (13, 14, 15):  # before, at and after the end of the search
        directory = tmp_path / str(stop_after)
        with pytest.raises(Stopped):
            train(directory, Early(), stop_after=stop_after)
        assert fingerprint(train(directory, Early()).model) == fingerprint(whole.model)
        assert record(directory) == record(tmp_path / "whole")


def test_observers_do_not_change_the_run(tmp_path: Path):
    shown = Terminal(console=Console(file=io.StringIO(), force_terminal=True))
    observers = [shown, TensorBoard(directory=tmp_path / "a", manifest={})]
    looked_at = train(tmp_path / "a", METHODS["pufferfish"](), observers=observers, untimed_steps=5, checkpoint_every=3)
    alone = train(tmp_path / "b", METHODS["pufferfish"](), untimed_steps=0)
    assert fingerprint(looked_at.model) == fingerprint(alone.model)
    assert record(tmp_path / "a") == record(tmp_path / "b")
    assert "epoch   4/4" in shown.console.file.getvalue()


def test_the_state_of_a_method_and_a_reducer_survives_a_stop(tmp_path: Path):
    class Counting:
        """Counts its calls; a lost count shows in the weights or in the record."""

        def __init__(self, **where: Any) -> None:
            super().__init__(**where)
            self.calls = 0

        def state_dict(self) -> dict[str, Any]:
            return {"calls": self.calls}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.calls = state["calls"]

        def count(self) -> int:
            self.calls += 1
            return self.calls

    class CountingMethod(Counting, Method):
        def after_step(self, run: Run) -> None:
            run.model.fc2.bias.data += 1e-3 * self.count()

    class CountingReducer(Counting, Reducer):
        def reduce(self) -> list[Message]:
            return [("allreduce", self.count())]

    def go(directory: Path, stop_after: int | None = None) -> Run:
        return train(directory, CountingMethod(), reducer=CountingReducer, stop_after=stop_after)

    whole = go(tmp_path / "whole")
    assert record(tmp_path / "whole")[0]["bytes_sent"] == sum(range(1, STEPS + 1))
    for stop_after in (3, 7, 10):
        with pytest.raises(Stopped):
            go(tmp_path / str(stop_after), stop_after)
        assert fingerprint(go(tmp_path / str(stop_after)).model) == fingerprint(whole.model)
        assert record(tmp_path / str(stop_after)) == record(tmp_path / "whole")


def test_a_compiled_model_trains_like_the_plain_one_and_is_compiled_again_after_the_switch(tmp_path: Path):
    compiled: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        compiled.append(graph)
        return graph.forward  # traced as torch.compile traces it, without waiting for a C++ compiler

    run = train(tmp_path / "compiled", METHODS["pufferfish"](), wrap=partial(torch.compile, dynamic=False, backend=backend))
    plain = train(tmp_path / "plain", METHODS["pufferfish"]())
    assert fingerprint(run.model) == fingerprint(plain.model)
    assert len({str(graph.code) for graph in compiled}) > 1


def test_another_seed_gives_another_model(tmp_path: Path):
    assert fingerprint(train(tmp_path / "a", Method()).model) != fingerprint(train(tmp_path / "b", Method(), seed=6).model)


def test_the_memory_format_is_set_before_the_optimizer_is_created(tmp_path: Path):
    """SGD chooses its implementation by the order of the parameters in memory."""
    seen: list[bool] = []

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        seen.append(memory_format.is_channels_last(model))
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def wrap(model: nn.Module) -> nn.Module:
        memory_format.prepare(model, torch.device("cpu"), True)
        return model

    train(tmp_path, METHODS["pufferfish"](), optimizer=optimizer, wrap=wrap)
    assert len(seen) == 2  # before and after the switch
    assert all(seen)


def test_the_wrapped_module_is_called_and_is_wrapped_again_after_the_switch(tmp_path: Path):
    wrapped: list[str] = []

    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module):
            super().__init__()
            self.inner, self.calls = inner, 0
            wrapped.append(fingerprint(inner))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.inner(images)

    run = train(tmp_path, METHODS["pufferfish"](), wrap=Wrapper)
    assert len(set(wrapped)) == 2
    assert run.module.calls == 2 * (STEPS + 4)  # two epochs of steps and of four test batches


@pytest.mark.parametrize(("first", "then"), [({"network": {"hosts": 2}}, {}), ({}, {"network": {"hosts": 2}})])
def test_a_run_resumed_on_another_network_keeps_the_first_in_its_record_and_reports_the_other(
    first: dict, then: dict, tmp_path: Path
):
    run = SimpleNamespace(plan=[], epoch=0, step=0, operations=[], task=tiny_task())
    Recorder(directory=tmp_path, manifest=dict(first)).run_started(run)
    run.step = 1
    Recorder(directory=tmp_path, manifest=dict(then)).run_started(run)
    record = read_json(tmp_path / RUN)
    assert {key: record[key] for key in record if key == "network"} == first
    assert record["resumed"][0]["network"] == then.get("network")
