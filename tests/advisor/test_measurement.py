"""What the advisor measures: simulated workers against real ones, layers as a forward pass calls them, memory of reducers."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from pufferfish_bench import lowrank
from pufferfish_bench.advisor import advice, batches, decisions, layer_times, measurement, method_costs, networks, whole_step
from pufferfish_bench.advisor.copies import duplicate
from pufferfish_bench.advisor.overrides import Chosen
from pufferfish_bench.advisor.whole_step import Conditions
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed.simulated import SimulatedWorld
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.lowrank.lstm import LSTM
from pufferfish_bench.reducers import ddp
from pufferfish_bench.report import advice as report
from pufferfish_bench.training.precision import FullPrecision
from tests.support import advisor_ranks
from tests.support.nets import TinyNet, tiny_task
from tests.support.reducers import attached, backward, reducer_named
from tests.support.torchrun import RANKS, run_ranks

CPU = torch.device("cpu")


def conditions(loss: batches.Loss, rounds: int = 2) -> Conditions:
    return Conditions(
        world=single_process(), optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        precision=FullPrecision(), clip_norm=None, loss=loss, rounds=rounds,
    )  # fmt: skip


def on(*shape: int, rounds: int = 2) -> Conditions:
    """Measures with a random input of this shape; the loss is the sum of the outputs."""
    inputs = torch.randn(shape)
    return conditions(lambda model: model(inputs).sum(), rounds)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("messages")
    done = run_ranks(folder, "tests.support.advisor_ranks", str(folder / "messages.json"))
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "messages.json").read_text())


@pytest.mark.parametrize("name", advisor_ranks.FLAT)
def test_a_reducer_sends_the_same_messages_to_simulated_workers_as_to_real_ones(name: str, real: dict[str, Any]):
    assert advisor_ranks.messages(name, SimulatedWorld(size=RANKS, device=CPU)) == real[name]


def test_the_buckets_of_ddp_are_known_without_ranks(real: dict[str, Any]):
    sizes = ddp.bucket_sizes(list(advisor_ranks.Net().parameters()))
    assert [["allreduce", size] for size in sizes] == real["ddp"]
    assert len(sizes) > 2


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("name", ["allreduce", "fp16", "signum", "topk"])
def test_simulated_workers_with_equal_gradients_agree_with_one_worker(name: str, workers: int):
    left = []
    for world in (single_process(), SimulatedWorld(size=workers, device=CPU)):
        torch.manual_seed(1)
        model = TinyNet()
        make = {"share": 0.5} if name == "topk" else {}
        if name == "allreduce" and world.size == 1:
            reducer = attached("fp16", model, world)  # a single process has no buffer
        else:
            reducer = attached(name, model, world, **make)
        backward(reducer, model, {key: torch.randn(p.shape) for key, p in model.named_parameters()})
        gradients = [p.grad.clone() for p in model.parameters()]
        with reducer.watch.step():
            reducer.reduce()
        left.append(gradients if name == "allreduce" else [p.grad.clone() for p in model.parameters()])
        if name == "allreduce" and world.size > 1:
            torch.testing.assert_close([p.grad for p in model.parameters()], gradients)
    torch.testing.assert_close(*left, rtol=2e-3, atol=1e-4)


def test_a_layer_that_is_slower_when_factorised_is_left():
    model = nn.Sequential(Recurrent(8), nn.Linear(8, 4))
    choice = lowrank.Choice({"0.lstm": 8}, {})  # a rank of the full side, and a loop in the place of one fused kernel
    found = measurement.measure(subject(model, choice, on(30, 2, 8, rounds=9)), (0.5,), 2, lambda words: None)
    [layer] = [each for each in found["layers"] if each["layer"] == "0.lstm"]
    assert set(layer["ranks"]) == {"4", "8"}
    assert layer["advice"].startswith(("leave: slower", "leave at rank 8: slower"))
    assert not layer["factor"]
    assert {method["model"] for method in found["methods"]} == {"full-rank"}


def test_with_every_layer_a_slower_one_is_predicted_but_not_recommended():
    model = nn.Sequential(Recurrent(8), nn.Linear(8, 4))
    choice, how = lowrank.Choice({"0.lstm": 8}, {}), on(30, 2, 8, rounds=9)
    found = measurement.measure(replace(subject(model, choice, how), every_layer=True), (0.5,), 2, lambda words: None)
    assert {method["model"] for method in found["methods"]} == {"full-rank", "Pufferfish"}
    advised = advice.advise(found, networks.parse("1mbit", "0s"), [2, 64], [])
    assert any(row["method"] == "Pufferfish" for row in advised["forecasts"])
    assert all("Pufferfish" not in (each["method"] or "") for each in advised["recommendations"])


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = LSTM(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zero = x.new_zeros(x.shape[1], x.shape[2])
        return self.lstm(x, (zero, zero))[0]


def subject(model: nn.Module, choice: lowrank.Choice, how: Conditions) -> measurement.Subject:
    reducers = {key: reducer_named(key) for key in ("allreduce", "ddp", "topk", "signum")}
    chosen = {key: Chosen(key, {"share": 0.01} if key == "topk" else {}) for key in reducers}
    return measurement.Subject(model, choice, 0.25, reducers, chosen, True, "auto", how)


def test_equal_layers_are_measured_once_and_calls_are_counted():
    twice = nn.Linear(16, 16)
    model = nn.Sequential(nn.Linear(16, 16), twice, twice, nn.Linear(16, 16, bias=False), nn.Linear(16, 12), nn.Linear(12, 9))
    unused = nn.ModuleList([model, nn.Linear(16, 16)])
    names = ["0.0", "0.1", "0.3", "0.4", "0.5", "1"]
    groups = layer_times.used_layers(unused, names, conditions(lambda whole: whole[0](torch.ones(4, 16)).sum()))
    # the first has an input that needs no gradient, the second is called twice
    assert [group.layers for group in groups] == [{"0.0": 1}, {"0.1": 2}, {"0.3": 1}, {"0.4": 1}, {"0.5": 1}]
    same = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
    groups = layer_times.used_layers(same, list("0123"), on(4, 16))
    assert [group.layers for group in groups] == [{"0": 1}, {"1": 1, "2": 1, "3": 1}]


def test_a_layer_with_inputs_of_two_shapes_has_the_time_of_all_its_calls(monkeypatch: pytest.MonkeyPatch):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x)).sum() + self.layer(torch.cat([x, x])).sum()

    taken = iter([[4.0, 1.0], [2.0, 2.5], [9.0, 4.5]])  # of each group: dense, and at rank 8

    def timed(work: dict[str, Any], how: Conditions) -> dict[str, list[float]]:
        return {name: [seconds] for name, seconds in zip(work, next(taken), strict=True)}

    monkeypatch.setattr(layer_times, "timed", timed)
    monkeypatch.setattr(layer_times, "calls_in_a_row", lambda work, how: 1)
    how = conditions(lambda model: model(torch.ones(4, 16)))
    # three groups: the input of the second call needs a gradient, that of the third is larger
    [found] = layer_times.measure(Twice(), lowrank.Choice({"layer": 8}, {}), (0.5,), how, "auto")
    assert found.calls == 3
    assert found.calls * found.dense == pytest.approx(4 + 2 + 9)
    assert found.calls * found.ranks[8].seconds == pytest.approx(1 + 2.5 + 4.5)
    assert found.ranks[8].ratio == pytest.approx(8 / 15)
    assert found.input == (8, 16)


def test_a_layer_that_is_never_called_has_a_row_that_says_so():
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare, self.used = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    found = measurement.measure(
        subject(Unused(), lowrank.Choice({"spare": 4}, {}), on(4, 8)), (0.5,), 4, lambda words: None
    )  # fmt: skip
    spare, used = found["layers"]
    assert (spare["layer"], spare["advice"], spare["calls"]) == ("spare", "leave: not used in the forward pass", 0)
    assert spare["seconds"] is None
    assert used["advice"].startswith("leave: kept by the settings (measured ")
    text = io.StringIO()
    report.layers(found | {"model": "m"}).show(Console(file=text, width=200))
    assert "leave: not used in the forward pass" in text.getvalue()


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("normalised", [nn.utils.spectral_norm, nn.utils.weight_norm])
def test_a_model_that_keeps_computed_weights_is_measured(normalised: Any):
    model = nn.Sequential(normalised(nn.Linear(8, 512)), nn.Linear(512, 512), nn.Linear(512, 4))
    who = replace(subject(model, lowrank.Choice({"1": 2}, {}), on(4, 8)), every_layer=True)
    found = measurement.measure(who, (0.5,), 4, lambda words: None)
    assert {method["model"] for method in found["methods"]} == {"full-rank", "Pufferfish"}
    copied = duplicate(model)
    torch.testing.assert_close(copied.state_dict(), model.state_dict())
    inputs = torch.ones(4, 8)
    before = copied.eval()(inputs)
    with torch.no_grad():
        next(model.parameters()).zero_()
        torch.testing.assert_close(copied(inputs), before)  # its weights are its own


def test_the_computation_of_pufferfish_is_the_dense_one_times_the_ratio_of_each_round(monkeypatch: pytest.MonkeyPatch):
    def measured(steppers: dict[str, whole_step.Stepper], how: Conditions) -> dict[str, dict[str, float]]:
        # the machine becomes slower in the middle of a round: the medians are 2 and 1.5, the median of the ratios is 0.5
        for name, seconds in {"full-rank": (1.0, 2.0, 4.0), "Pufferfish": (0.5, 1.5, 2.0)}.items():
            steppers[name]()  # leaves gradients
            steppers[name].taken = [{"forward": 0.25 * each, "backward": 0.75 * each} for each in (9.0, *seconds)]
        return {name: whole_step.computation(stepper.taken) for name, stepper in steppers.items()}

    monkeypatch.setattr(whole_step, "measure", measured)
    who = replace(subject(TinyNet(), lowrank.Choice({"fc1": 3}, {}), on(4, 3, 8, 8)), every_layer=True)
    found = measurement.measure(who, (0.5,), 4, lambda words: None)
    assert found["steps"]["full-rank"] == {"backward": 1.5, "forward": 0.5}
    assert found["steps"]["Pufferfish"] == pytest.approx({"backward": 0.75, "forward": 0.25})
    [own] = [method for method in found["methods"] if method["label"] == "Pufferfish"]
    assert sum(own["seconds"].values()) == pytest.approx(1.0)
    # of 0.5, 1 and 2 times the median
    assert found["noise"]["full-rank"] == pytest.approx(2 * 1.2533 * 1.4826 * 0.5 / 3**0.5)
    assert found["noise"]["Pufferfish"] == own["noise"] == found["step_ratio"]["noise"]
    assert "full-rank 2 s (noise 107%), Pufferfish 1 s (noise 2%)" in report.step_sentence(found)
    [warning] = report.noise_warnings(found)
    assert warning.startswith("the noise of the whole step is 107%, above 10%")
    assert report.noise_warnings(found | {"noise": {"full-rank": 0.1, "Pufferfish": 0.02}}) == []


@pytest.mark.parametrize("warmup_epochs", [0, 1])
def test_the_memory_of_pufferfish_is_that_of_its_larger_phase(warmup_epochs: int):
    who = subject(TinyNet(), lowrank.Choice({"fc1": 1}, {}), on(4, 3, 8, 8))
    who = replace(who, every_layer=True, plan=decisions.Plan(3, warmup_epochs))
    found = {method["label"]: method["memory"] for method in measurement.measure(who, (), 4, lambda words: None)["methods"]}
    if warmup_epochs:
        assert found["Pufferfish"] == found["vanilla"]
        assert found["Pufferfish + DDP"] == found["DDP"]
    else:
        assert found["Pufferfish"] < found["vanilla"]
        assert found["Pufferfish + DDP"] < found["DDP"]


def test_a_model_whose_output_a_run_refuses_is_refused():
    class Pair(nn.Module):
        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, None]:
            return images.flatten(1)[:, :4], None

    facts, sample = {"input": {"kind": "images"}, "classes": 4}, [torch.zeros(1, 3, 8, 8)]
    for model in (Pair(), nn.Flatten()):
        with pytest.raises(InputError) as of_run:
            tiny_task().prepare(model, sample)
        with pytest.raises(InputError) as of_advice:
            batches.of_sample(sample, facts, batch_size=6, length=9, model=model, device=CPU)
        assert str(of_run.value) == str(of_advice.value)


def test_measuring_leaves_the_model_as_it_was():
    model = TinyNet()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if "running" not in name and "num" not in name}
    who = subject(model, lowrank.Choice({"fc1": 3}, {}), on(4, 3, 8, 8))
    measurement.measure(who, (0.5,), 4, lambda words: None)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in before.items())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_methods_begin_with_vanilla_and_their_bytes_and_memory_are_counted():
    model = TinyNet()
    count = sum(p.numel() for p in model.parameters())
    found = measurement.measure(subject(model, lowrank.Choice({"fc1": 3}, {}), on(4, 3, 8, 8)), (0.5,), 4, lambda words: None)
    vanilla, overlapped, sparse, signs = found["methods"][:4]
    assert vanilla["label"] == "vanilla"
    assert vanilla["messages"] == (("allreduce", 4 * count),)
    # parameters, gradients and momentum, and one number with which ranks report that they arrived
    assert vanilla["memory"] == 3 * 4 * count + 4
    assert overlapped["overlapped"]
    assert sum(size for _, size in overlapped["messages"]) == 4 * count
    assert overlapped["memory"] == 3 * 4 * count
    assert sparse["memory"] == 4 * 4 * count + 4  # and the error
    assert sparse["messages"] == (("allgather", 8 * max(1, count // 100)),)
    assert signs["other_optimizer"]
    assert 3 * 4 * count <= signs["memory"] < 4 * 4 * count  # a momentum of its own, in the place of the optimizer's
    assert set(found["steps"]["full-rank"]) <= {"forward", "backward", "step", "other"}


def test_the_memory_of_a_reducer_is_counted_once():
    reducer = attached("powersgd", nn.Linear(20, 30, bias=False), rank=2)
    # gradient and error in one buffer, update, both messages, the start of Q, the basis, and the number of arrivals
    numbers = 600 + 600 + 2 * 30 + 2 * 20 + 2 * 20 + 2 * 30 + 1
    assert sum(method_costs.storages(reducer).values()) == 4 * numbers


def test_a_step_takes_the_sections_of_the_trainer():
    stepper = whole_step.Stepper(TinyNet(), reducer_named("allreduce"), on(4, 3, 8, 8))
    stepper()
    stepper()
    assert len(stepper.taken) == 2
    assert {"forward", "backward", "communicate", "decode", "step", "other"} <= set(stepper.taken[0])


def test_the_noise_of_a_step_is_that_of_the_ratio_in_each_round():
    def stepper(*seconds: float) -> whole_step.Stepper:
        made = whole_step.Stepper(TinyNet(), reducer_named("allreduce"), on(4, 3, 8, 8))
        made.taken = [{"forward": each, "communicate": 9.0} for each in (100.0, *seconds)]  # the first is not counted
        return made

    how = on(4, 3, 8, 8)
    # the machine becomes ten times slower, for both networks alike
    steady = measurement.step_ratio({"full-rank": stepper(1, 10, 100), "Pufferfish": stepper(0.9, 9, 90)}, how)
    assert steady.ratio == pytest.approx(0.9)
    assert steady.noise == 0.02
    assert steady.faster
    noisy = measurement.step_ratio({"full-rank": stepper(1, 1, 1), "Pufferfish": stepper(0.5, 0.9, 1.3)}, how)
    assert not noisy.faster
    assert measurement.step_ratio({"full-rank": stepper(1)}, how) is None


def test_waiting_is_the_slowest_rank_minus_the_mean():
    assert whole_step.waiting([[1.0, 5.0, 2.0], [3.0, 1.0, 2.0]]) == 1.0  # of 1, 2 and 0


def test_a_made_up_batch_has_the_shapes_of_the_data(tmp_path: Path):
    seen = []

    class Words(nn.Module):
        def forward(self, *inputs: Any) -> tuple[torch.Tensor, None]:
            seen.append(inputs)
            return torch.ones(3), None

    facts = {"input": {"kind": "text"}, "segment": 7, "vocabulary": 50}
    sample = [torch.tensor([[0]])]
    batches.of_sample(sample, facts, batch_size=5, length=9, model=Words(), device=CPU)(Words())
    words, state, following = seen[0]
    assert words.shape == following.shape == (7, 5)
    assert state is None
    images = batches.of_sample([torch.zeros(1, 3, 8, 8)], {}, batch_size=6, length=9, model=TinyNet(), device=CPU)
    assert images(TinyNet()).shape == ()


@pytest.mark.parametrize(("ratio", "said"), [(0.99, True), (0.9, False)])
def test_it_is_said_if_the_whole_step_is_no_faster_although_its_layers_are(ratio: float, said: bool):
    model = TinyNet()
    found = measurement.measure(subject(model, lowrank.Choice({"fc1": 3}, {}), on(4, 3, 8, 8)), (0.5,), 4, lambda words: None)
    whole = {"ratio": ratio, "noise": 0.03, "faster": ratio + 0.03 < 1}
    words = report.step_sentence(found | {"step_ratio": whole, "includes_slower_layers": False})
    assert (f"the whole step did not: {ratio:.2f} of the time, noise 3%" in words) == said
