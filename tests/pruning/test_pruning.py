"""Pruned networks compute the same as masked ones, and pruned weights stay pruned."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pufferfish_bench import pruning
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import warmup
from pufferfish_bench.config import build
from pufferfish_bench.config.settings import config_dir
from pufferfish_bench.core import Method, Observer, Run
from pufferfish_bench.distributed.surgery import fingerprint
from pufferfish_bench.lowrank import counting, stable_rank
from pufferfish_bench.methods.eb_train import EBTrain
from pufferfish_bench.methods.lth import LTH, MASK
from pufferfish_bench.methods.pufferfish import Pufferfish
from pufferfish_bench.pruning import channels
from pufferfish_bench.records import files
from pufferfish_bench.records.files import EPOCHS, RUN, read_rows
from pufferfish_bench.trainer import Stopped
from pufferfish_bench.training import triggers
from tests.support.nets import PUFFERFISH, TINY_LAYERS, TinyNet
from tests.support.training import EPOCHS_TRAINED, STEPS, record, resumed_to_the_same_end, train, uninterrupted_runs

PRUNED = ("vgg11", "vgg19", "vgg19_lth", "resnet18", "resnet50", "wrn50_2")


def model_named(name: str, *overrides: str) -> nn.Module:
    with initialize_config_dir(config_dir(), version_base="1.3"):
        config = compose("config", [f"model={name}", "profile=smoke", *overrides])
    return build.build("model", config.model)


def with_random_norms(model: nn.Module) -> nn.Module:
    """Random BatchNorm parameters and statistics, in double precision."""
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                for tensor in (norm.weight, norm.bias, norm.running_mean):
                    tensor.copy_(torch.randn(tensor.shape, generator=random))
                norm.running_var.copy_(torch.rand(norm.running_var.shape, generator=random) + 0.5)
    return model.double()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("ratio", [0.3, 0.7])
@pytest.mark.parametrize("name", PRUNED)
def test_the_pruned_net_computes_the_same_as_the_masked_net(name: str, ratio: float, training: bool):
    torch.manual_seed(0)
    model, masked = (with_random_norms(model_named(name, "model.net.width=0.1")) for _ in range(2))
    masked.load_state_dict(model.state_dict())
    scales = pruning.scales(model)
    masks = pruning.at_least_one(pruning.channel_masks(scales, ratio), scales)
    before = counting.parameters(model)
    channels.remove(model, masks)
    channels.silence(masked, masks)
    assert counting.parameters(model) < before
    images = torch.randn(3, 3, 64, 64, dtype=torch.float64)
    for net in (model, masked):
        net.train(training)
        for dropout in net.modules():
            if isinstance(dropout, nn.Dropout):
                dropout.eval()
    assert model(images).detach() == pytest.approx(masked(images).detach(), abs=1e-9)


@pytest.mark.parametrize("name", PRUNED)
def test_the_structure_of_a_pruned_net_can_be_rebuilt_from_its_shapes(name: str):
    model, other = model_named(name), model_named(name)
    with_random_norms(model)
    left = channels.remove(model, pruning.at_least_one(pruning.channel_masks(pruning.scales(model), 0.6), pruning.scales(model)))
    channels.resize(other, left)
    assert {key: value.shape for key, value in other.state_dict().items()} == {
        key: value.shape for key, value in model.state_dict().items()
    }
    other.double().load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    assert torch.equal(other.eval()(images), model.eval()(images))


def test_a_channel_that_any_path_writes_is_kept_and_a_path_without_batchnorm_keeps_all_channels():
    model = model_named("resnet18", "model.net.width=0.1")
    masks = {name: torch.zeros(len(scale), dtype=torch.bool) for name, scale in pruning.scales(model).items()}
    masks["layer2.0.shortcut.bn"][1] = True
    masks["layer2.1.bn2"][3] = True
    for name in ("layer1.0.bn1", "layer1.1.bn1", "layer2.0.bn1", "layer2.1.bn1", "layer3.0.bn2", "layer4.0.bn2"):
        masks[name][0] = True
    for name in ("layer3.0.bn1", "layer3.1.bn1", "layer4.0.bn1", "layer4.1.bn1"):
        masks[name][0] = True
    left = channels.remove(model, masks)
    assert left["layer1.0.conv1"][0] == left["layer1.1.conv2"][1] == left["conv1"][1] == 6  # the stem has no BatchNorm
    assert left["layer2.1.conv1"][0] == left["layer2.0.shortcut.conv"][1] == left["layer3.0.conv1"][0] == 2
    assert left["linear"] == [1, 10]


def test_a_net_whose_channels_cannot_be_traced_is_refused():
    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(self.norm(self.conv(x)))

    with pytest.raises(InputError, match="cannot be followed through"):
        channels.find_channels(Strange())


@given(st.integers(0, 2**30), st.floats(0.05, 0.95))
def test_channel_masks_keep_the_largest_scales_over_all_layers(seed: int, ratio: float):
    random = torch.Generator().manual_seed(seed)
    scales = {name: torch.rand(count, generator=random) for name, count in (("a", 7), ("b", 1), ("c", 20))}
    masks = pruning.channel_masks(scales, ratio)
    assert sum(int(mask.sum()) for mask in masks.values()) == 28 - int(ratio * 28) - 1
    kept = torch.cat([scales[name][masks[name]] for name in scales])
    gone = torch.cat([scales[name][~masks[name]] for name in scales])
    assert len(kept) == 0 or kept.min() > gone.max()
    assert all(mask.any() for mask in pruning.at_least_one(masks, scales).values())


def test_the_distance_between_masks_is_the_fraction_of_entries_that_differ():
    one = {"a": torch.tensor([True, True, False]), "b": torch.tensor([True])}
    other = {"a": torch.tensor([True, False, False]), "b": torch.tensor([False])}
    assert pruning.distance(one, one) == 0
    assert pruning.distance(one, other) == 0.5


@given(st.integers(0, 2**30), st.floats(0.05, 0.9))
def test_the_smallest_of_the_remaining_weights_are_pruned(seed: int, share: float):
    random = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(shape, generator=random) for name, shape in (("a", (5, 3)), ("b", (20,)))}
    masks = {name: torch.rand(weight.shape, generator=random) < 0.8 for name, weight in weights.items()}
    left = pruning.prune_smallest(weights, masks, share)
    remaining = sum(int(mask.sum()) for mask in masks.values())
    assert sum(int(mask.sum()) for mask in left.values()) == remaining - int(share * remaining)
    assert all(not (left[name] & ~masks[name]).any() for name in masks)
    kept = torch.cat([weights[name][left[name]].abs() for name in masks])
    gone = torch.cat([weights[name][masks[name] & ~left[name]].abs() for name in masks])
    assert len(gone) == 0 or len(kept) == 0 or kept.min() > gone.max()


def eb_train(**changes: object) -> EBTrain:
    settings = {"prune_ratio": 0.5, "penalty": 1e-2, "masks": 2, "distance": 0.6, "search_epochs": 3, "reinit": False}
    settings |= {"search_milestones": None}
    return EBTrain(**settings | changes)


def lth(**changes: object) -> LTH:
    return LTH(**{"prune_share": 0.2, "rewind_steps": 0, "levels": 1, "sparsity": None, "layers": TINY_LAYERS} | changes)


def waiting() -> Pufferfish:
    """The switch waits for the stable ranks, which also choose the ranks."""
    trigger = partial(triggers.stable_rank_settled, tolerance=10.0, patience=2)
    settings = PUFFERFISH | {"trigger": trigger, "ranks": "stable_rank"}
    return Pufferfish(warmup_epochs=3, start="svd", momentum="fresh", **settings)


METHODS = {
    "eb_train": eb_train,
    "eb_reinit": partial(eb_train, reinit=True, search_milestones=[1, 2]),
    "lth": lth,
    "waiting": waiting,
}
uninterrupted = uninterrupted_runs(METHODS)


@pytest.mark.parametrize("stop_after", [1, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS, 2 * STEPS + 3, 3 * STEPS, 3 * STEPS + 1])
def test_a_pruning_run_stopped_at_any_step_and_resumed_equals_the_uninterrupted_run(
    uninterrupted, stop_after: int, tmp_path: Path
):
    name, whole, directory = uninterrupted
    resumed_to_the_same_end(whole, directory, tmp_path, METHODS[name], stop_after=stop_after)


@pytest.mark.parametrize("stop_in", range(EPOCHS_TRAINED))
def test_a_phase_that_may_end_early_does_not_end_before_its_epoch_is_evaluated(uninterrupted, stop_in: int, tmp_path: Path):
    name, _, directory = uninterrupted

    class StopInEvaluation(Observer):
        reached = False

        def evaluation_started(self, run: Run) -> None:
            self.reached = run.epoch == stop_in

    stop = StopInEvaluation()
    with pytest.raises(Stopped):
        train(tmp_path, METHODS[name](), observers=[stop], stop_requested=lambda: stop.reached)
    train(tmp_path, METHODS[name]())
    assert record(tmp_path) == record(directory)


def test_eb_train_stops_searching_when_the_mask_is_stable_and_continues_with_a_smaller_net(tmp_path: Path):
    run = train(tmp_path, eb_train(distance=1.1))  # any two masks are close enough
    rows = read_rows(tmp_path / EPOCHS)
    assert [row["phase"] for row in rows] == ["search", "search", "retrain", "retrain"]
    assert "mask_distance" not in rows[0]
    assert run.operations[1]["note"] == "ticket found after 2 epochs"
    assert 0 <= rows[1]["mask_distance"] <= 1
    assert rows[-1]["parameters"] < rows[0]["parameters"] == counting.parameters(TinyNet())
    assert run.operations[1]["ticket"]


def test_the_search_uses_its_own_milestones_and_retraining_those_of_the_schedule(tmp_path: Path):
    train(tmp_path, eb_train(distance=-1.0, search_milestones=[1, 2]))  # the schedule: 0.05, divided by ten from epoch 3 on
    assert [row["learning_rate"] for row in read_rows(tmp_path / EPOCHS)] == pytest.approx([0.05, 0.005, 0.0005, 0.005])


def test_without_a_ticket_eb_train_prunes_at_the_end_of_its_search_and_says_so(tmp_path: Path):
    run = train(tmp_path, eb_train(distance=-1.0))
    assert [row["phase"] for row in read_rows(tmp_path / EPOCHS)] == ["search"] * 3 + ["retrain"]
    assert not run.operations[1]["ticket"]
    assert "no ticket found" in run.operations[1]["note"]


def test_a_search_that_is_too_short_for_its_masks_warns_when_it_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    method = eb_train(masks=4)
    assert method.plan(EPOCHS_TRAINED, TinyNet())[0].epochs == method.plan(EPOCHS_TRAINED, TinyNet())[0].epochs
    train(tmp_path, method)
    assert caplog.text.count("no ticket can be found: the search compares 4 masks, one per epoch, but lasts 3 epochs") == 1


def test_the_penalty_adds_the_gradient_of_the_l1_norm_of_the_scales(tmp_path: Path):
    class Gradients(Observer):
        def __init__(self) -> None:
            self.norms: list[Tensor] = []

        def step_ended(self, run: Run) -> None:
            self.norms.append((run.model.norm.weight.grad.clone(), run.model.norm.weight.detach().clone()))

    with_penalty, without = Gradients(), Gradients()
    train(tmp_path / "a", eb_train(penalty=0.5), observers=[with_penalty])
    train(tmp_path / "b", eb_train(penalty=0.0), observers=[without])
    difference = with_penalty.norms[0][0] - without.norms[0][0]
    assert difference == pytest.approx(torch.full_like(difference, 0.5))  # all scales start at 1


def test_reinit_keeps_the_structure_but_none_of_the_weights(uninterrupted, tmp_path: Path):
    class AfterSurgery(Observer):
        weights: Tensor

        def phase_started(self, run: Run) -> None:
            self.weights = run.model.conv1.weight.detach().clone()
            self.scales = run.model.norm.weight.detach().clone()

    carried, fresh = AfterSurgery(), AfterSurgery()
    train(tmp_path / "a", eb_train(), observers=[carried])
    train(tmp_path / "b", eb_train(reinit=True), observers=[fresh])
    assert carried.weights.shape == fresh.weights.shape
    assert not torch.equal(carried.weights, fresh.weights)
    assert torch.equal(fresh.scales, torch.ones_like(fresh.scales))


@pytest.mark.parametrize("rewind_steps", [0, 3])
def test_each_level_starts_from_the_rewound_weights_except_for_the_pruned_ones(tmp_path: Path, rewind_steps: int):
    class Starts(Observer):
        def __init__(self) -> None:
            self.at: dict[int, Tensor] = {}
            self.level: list[tuple[Tensor, Tensor]] = []

        def run_started(self, run: Run) -> None:
            self.at[0] = run.model.conv2.weight.detach().clone()
            self.fresh = {name: tensor.clone() for name, tensor in run.model.norm.state_dict().items()}

        def step_ended(self, run: Run) -> None:
            if run.phase_index == 0:
                self.at.setdefault(run.epoch * STEPS + run.step, run.model.conv2.weight.detach().clone())

        def phase_started(self, run: Run) -> None:
            if run.phase_index:
                self.level.append((run.model.conv2.weight.detach().clone(), run.model.conv2.mask.clone()))
                if rewind_steps == 0:
                    norm = run.model.norm.state_dict()
                    assert all(torch.equal(norm[name], tensor) for name, tensor in self.fresh.items())

    seen = Starts()
    train(tmp_path, lth(levels=2, rewind_steps=rewind_steps), observers=[seen])
    assert len(seen.level) == 2
    for weight, mask in seen.level:
        assert torch.equal(weight, seen.at[rewind_steps] * mask)
    assert (seen.level[0][1] | ~seen.level[1][1]).all()  # pruned weights stay pruned


def test_pruned_weights_never_change_and_the_others_do(tmp_path: Path):
    class Watching(Observer):
        steps = 0

        def __init__(self) -> None:
            self.before: dict[int, Tensor] = {}

        def step_ended(self, run: Run) -> None:
            for layer in (run.model.conv1, run.model.conv2):
                if hasattr(layer, MASK):
                    self.steps += 1
                    assert not layer.weight[~layer.mask].any()
                    now = layer.weight[layer.mask].detach().clone()
                    before = self.before.get(id(layer), now + 1)
                    assert len(before) != len(now) or (before != now).float().mean() > 0.9
                    self.before[id(layer)] = now

    watching = Watching()
    train(tmp_path, lth(), observers=[watching])
    assert watching.steps == 2 * EPOCHS_TRAINED * STEPS


def test_levels_restart_the_learning_rate_and_record_the_remaining_weights(tmp_path: Path):
    train(tmp_path, lth(levels=2))
    rows = read_rows(tmp_path / EPOCHS)
    assert len(rows) == 3 * EPOCHS_TRAINED
    rates = [row["learning_rate"] for row in rows]
    assert rates[:EPOCHS_TRAINED] == rates[EPOCHS_TRAINED : 2 * EPOCHS_TRAINED] == rates[2 * EPOCHS_TRAINED :]
    assert len(set(rates)) > 1
    total = counting.parameters(TinyNet())
    prunable = TinyNet().conv1.weight.numel() + TinyNet().conv2.weight.numel()
    once = prunable - int(0.2 * prunable)
    twice = once - int(0.2 * once)
    assert [row["nonzero_parameters"] for row in rows[::EPOCHS_TRAINED]] == [
        total, total - prunable + once, total - prunable + twice,
    ]  # fmt: skip


def test_lth_prunes_until_it_reaches_the_size_of_the_pufferfish_net():
    model = model_named("vgg19_lth", "model.net.width=1.0")
    with initialize_config_dir(config_dir(), version_base="1.3"):
        config = compose("config", ["model=vgg19_lth", "method=lth"])
    method = build.build("method", config.method)
    assert method.size_of_pufferfish(model) == 8_107_466
    assert len(method.plan(160, model)) == 6  # 0.8^5 of the convolutions: 0.8^4 is a little larger than the Pufferfish net
    assert [len(lth(levels=None, sparsity=sparsity).plan(4, model)) for sparsity in (0.2, 0.36, 0.488, 0.5)] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("build", "changes", "word"),
    [
        (eb_train, {"prune_ratio": 1.0}, "prune_ratio=1.0"),
        (eb_train, {"masks": 1}, "masks=1"),
        (lth, {"prune_share": 0.0}, "prune_share=0.0"),
        (lth, {"levels": 1, "sparsity": 0.5}, "give one of them"),
        (lth, {"levels": 0}, "levels=0"),
        (lth, {"rewind_steps": -1}, "rewind_steps=-1"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(build, changes: dict, word: str):
    with pytest.raises(InputError, match=word):
        build(**changes)


@pytest.mark.parametrize(("method", "word"), [(eb_train, "has no BatchNorm2d"), (lth, "has none")])
def test_a_model_without_prunable_layers_is_refused(method, word: str):
    model = nn.Linear(2, 2)
    with pytest.raises(InputError, match=word):
        method().check(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_rewind_step_that_is_never_reached_is_refused_at_once(tmp_path: Path):
    with pytest.raises(InputError, match="rewind_steps=28"):
        train(tmp_path, lth(rewind_steps=EPOCHS_TRAINED * STEPS))


def test_a_target_size_that_is_never_reached_is_refused():
    with pytest.raises(InputError, match="never gets as small"):
        lth(levels=None, sparsity=0.998).plan(4, TinyNet())


def test_channels_that_are_read_before_their_batchnorm_are_kept():
    class PreActivation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.body = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
            self.norm, self.other = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.body(self.norm(x).relu()) + self.other(x)

    model, masked = PreActivation().eval(), PreActivation().eval()
    masked.load_state_dict(model.state_dict())
    masks = {"norm": torch.tensor([True, False, True, False])}
    channels.remove(model, masks)
    channels.silence(masked, masks)
    images = torch.randn(2, 3, 5, 5)
    assert model(images).detach() == pytest.approx(masked(images).detach(), abs=1e-6)


def test_a_search_that_leaves_nothing_to_retrain_is_refused():
    with pytest.raises(InputError, match="nothing would be retrained"):
        eb_train(search_epochs=4).plan(4, TinyNet())


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**30))
def test_the_stable_rank_lies_between_one_and_the_rank(rank: int, size: int, seed: int):
    random = torch.Generator().manual_seed(seed)
    layer = nn.Linear(size, 8, bias=False)
    weight = torch.randn(8, rank, generator=random) @ torch.randn(rank, size, generator=random)
    layer.weight.data = weight
    S = torch.linalg.svdvals(weight)
    assert stable_rank(layer) == pytest.approx(float(S.square().sum() / S[0] ** 2), rel=1e-3)
    assert 1 - 1e-3 <= stable_rank(layer) <= min(rank, size, 8) + 1e-3


def rows(**columns: list[float | None]) -> list[dict[str, float]]:
    length = len(next(iter(columns.values())))
    return [{key: values[place] for key, values in columns.items() if values[place] is not None} for place in range(length)]


def test_each_trigger_fires_on_its_own_criterion():
    seen = rows(stable_rank_change=[0.9, 0.3, 0.05, 0.05, 0.04], mask_distance=[None, None, None, 0.2, 0.05])
    history = [2.0, 1.0, 0.999, 0.998, 0.5]

    def first(function, **settings: float) -> int | None:
        return triggers.first_epoch(partial(function, **settings), seen, history)

    assert first(triggers.fixed_epoch, epoch=3) == 3
    assert first(triggers.fixed_epoch, epoch=9) is None
    assert first(triggers.stable_rank_settled, tolerance=0.1, patience=1) == 3
    assert first(triggers.stable_rank_settled, tolerance=0.1, patience=3) == 5
    assert first(triggers.masks_settled, distance=0.1) == 5
    assert first(triggers.plateau, patience=2, improvement=0.01) == 4


def test_a_triggered_switch_happens_in_the_epoch_that_the_record_predicts(tmp_path: Path):
    run, directory = train(tmp_path, waiting()), tmp_path
    seen = [row for row in read_rows(directory / EPOCHS) if row["phase"] == "warmup"]
    assert len(seen) == 2 == triggers.first_epoch(run.plan[0].until.__self__.trigger, seen, run.history)
    done = run.operations[1]
    assert done["note"] == "stable_rank_settled after 2 epochs"
    assert set(done["layers"]) | set(done["left"]) == {"conv2", "fc1"}
    monitor = run.plan[0].until.__self__.monitor
    for name, (out, inputs) in {"conv2": (8, 72), "fc1": (12, 32)}.items():
        rank = min(out, round(out * monitor.last[name] / monitor.first[name]))
        assert done["layers"].get(name, {"rank": None})["rank"] == (rank if rank * (out + inputs) < out * inputs else None)


def test_the_triggers_of_a_search_are_reported_too(tmp_path: Path, capsys: pytest.CaptureFixture):
    settings = {"name": "eb", "method": {"prune_ratio": 0.5, "penalty": 1e-4}}
    note = "ticket found after 2 epochs"
    files.write_json(
        tmp_path / RUN,
        {"format": 2, "settings": settings, "operations": [{"note": note}], "summary": {"metric": "test_accuracy"}},
    )  # fmt: skip
    found = [
        {"phase": "search", "epoch": number, "test_accuracy": 50.0, "mask_distance": 0.3 - 0.25 * number} for number in (0, 1)
    ]
    files.rewrite_rows(tmp_path / EPOCHS, found)
    warmup.main([str(tmp_path)])
    said = capsys.readouterr().out
    assert note in said
    assert re.search(r"mask_distance \(distance 0\.1\) +after epoch 2", said)
    assert "fixed_epoch" not in said


def test_monitoring_the_warm_up_does_not_change_the_run(tmp_path: Path):
    class Blind(Pufferfish):
        phase_started = Method.phase_started
        after_epoch = Method.after_epoch

    whole = train(tmp_path / "a", Pufferfish(warmup_epochs=2, start="svd", momentum="fresh", **PUFFERFISH))
    blind = train(tmp_path / "b", Blind(warmup_epochs=2, start="svd", momentum="fresh", **PUFFERFISH))
    assert fingerprint(whole.model) == fingerprint(blind.model)
