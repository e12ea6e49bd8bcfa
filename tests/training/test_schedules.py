"""The recipes' learning rates over whole runs, and which parameters the optimizers decay."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config import build
from pufferfish_bench.config.settings import config_dir
from pufferfish_bench.paper import tables
from pufferfish_bench.training import optimizers
from pufferfish_bench.training.schedules import Clock
from tests.support.nets import TinyNet
from tests.support.repository import MODELS


def recipe(*overrides: str) -> tuple[DictConfig, Callable[[Clock], float]]:
    """The settings of a run, and its learning rate as a function of the clock."""
    with initialize_config_dir(config_dir(), version_base="1.3"):
        config = compose("config", list(overrides))
    return config, build.build("schedule", config.schedule)


def trace(*overrides: str) -> list[float]:
    """The learning rate in each epoch of a run."""
    config, schedule = recipe(*overrides)
    return [schedule(Clock(epoch, 0, 391, 0)) for epoch in range(config.epochs)]


def test_the_cifar_recipe_matches_the_paper():
    assert trace("model=resnet18") == pytest.approx([0.1] * 150 + [0.01] * 100 + [0.001] * 50)


def test_the_lth_recipe_matches_the_paper():
    assert trace("model=vgg19_lth") == pytest.approx([0.1] * 80 + [0.01] * 40 + [0.001] * 40)


def test_the_distributed_recipe_ramps_up_once_per_epoch_like_the_papers_and_optionally_again_after_the_switch():
    rising = [0.1, 0.4, 0.7, 1.0, 1.3]
    assert trace("model=resnet18_distributed") == pytest.approx(rising + [1.6] * 145 + [0.16] * 100 + [0.016] * 50)
    config, schedule = recipe("model=resnet18_distributed", "schedule.ramp_again=true")
    assert (config.epochs, config.warmup_epochs, config.batch_size) == (300, 80, 2048)
    for step in (0, 24):  # constant within an epoch
        assert [schedule(Clock(epoch, step, 25, 0)) for epoch in range(7)] == pytest.approx([*rising, 1.6, 1.6])
        assert [schedule(Clock(80 + epoch, step, 25, 80)) for epoch in range(7)] == pytest.approx([*rising, 1.6, 1.6])


def test_a_ramp_shorter_than_an_epoch_rises_with_every_step_to_the_full_rate():
    _, schedule = recipe("model=resnet18_distributed", "schedule.ramp_epochs=0.25", "schedule.learning_rate=1.6")
    rates = [schedule(Clock(0, step, 100, 0)) for step in range(100)]
    assert rates == pytest.approx([0.1 + 1.5 * step / 25 for step in range(25)] + [1.6] * 75)


def figure6(profile: str) -> list[tuple[str, ...]]:
    return [cell.overrides for cell in tables.read("figure6", profile).cells]


def ramped(profile: str) -> list[tuple[str, ...]]:
    """Every model whose recipe has a ramp, without and with a second ramp after the switch."""
    models = [(f"model={model}", f"profile={profile}", "method=pufferfish") for model in MODELS]
    found = [words for words in models if recipe(*words)[0].schedule.get("ramp_epochs")]
    assert found
    return [(*words, f"schedule.ramp_again={again}") for words in found for again in ("false", "true")]


@pytest.mark.parametrize("profile", tables.PROFILES)
@pytest.mark.parametrize("cells", [figure6, ramped])
def test_despite_ramps_the_rate_is_full_for_most_of_the_warm_up_and_of_the_epochs_before_the_first_decay(cells, profile: str):
    for overrides in cells(profile):
        check_ramp(*recipe(*overrides))


def check_ramp(config: DictConfig, schedule: Callable[[Clock], float]) -> None:
    full, switch, decay = config.schedule.learning_rate, config.warmup_epochs, config.schedule.milestones[0]
    steps = 62  # steps per epoch of the miniature: 8,000 images, two workers
    for start, end in ((0, switch), (switch, decay)):
        moments = [divmod(step, steps) for step in range(start * steps, int(end * steps))]
        at_full = [math.isclose(schedule(Clock(epoch, step, steps, start)), full) for epoch, step in moments]
        assert sum(at_full) > len(at_full) / 2
        assert at_full[-1]
    assert config.schedule.ramp_epochs > 0
    assert schedule(Clock(0, 0, steps, 0)) == pytest.approx(full / 16)


@pytest.mark.parametrize("profile", tables.PROFILES)
def test_the_distributed_recipes_apply_no_weight_decay_to_vectors(profile: str):
    config, _ = recipe("model=resnet18_distributed", f"profile={profile}")
    assert config.optimizer.decay_vectors is False


def test_signum_has_the_authors_rate_for_each_data_set():
    ramped = [5e-5, 2e-4, 3.5e-4, 5e-4, 6.5e-4] + [8e-4] * 145 + [8e-5] * 100 + [8e-6] * 50
    assert trace("model=resnet18_distributed", "method=signum") == pytest.approx(ramped)
    assert trace("model=resnet18", "method=signum") == pytest.approx([8e-4] * 150 + [8e-5] * 100 + [8e-6] * 50)
    for model in ("resnet50", "wrn50_2"):
        assert trace(f"model={model}", "method=signum") == pytest.approx([1e-4] * 30 + [1e-5] * 30 + [1e-6] * 20 + [1e-7] * 10)


def test_a_setting_for_one_method_does_not_change_the_identity_of_other_methods_runs():
    for method, rate in (("vanilla", "signum_learning_rate=0.5"), ("signum", "search_milestones=[7]")):
        (plain, changed) = (build.identify([f"method={method}", *words], [1])[0] for words in ((), (rate,)))
        assert plain == changed
    for method, rate in (("signum", "signum_learning_rate=0.5"), ("eb_train", "search_milestones=[7]")):
        (plain, changed) = (build.identify([f"method={method}", *words], [1])[0] for words in ((), (rate,)))
        assert plain[0] != changed[0]


@pytest.mark.parametrize(("profile", "of_search", "after"), [("paper", [30, 60, 80], [30, 60]), ("cpu", [9, 18, 24], [9, 18])])
def test_eb_train_decays_vectors_and_searches_with_the_authors_milestones(profile: str, of_search: list[int], after: list[int]):
    config, _ = recipe("model=resnet50_eb", "method=eb_train", f"profile={profile}")
    assert config.optimizer.decay_vectors is True
    assert config.schedule.milestones == after
    search, retrain = build.build("method", config.method).plan(config.epochs, TinyNet())
    assert (search.schedule, retrain.schedule) == ({"milestones": of_search}, {})
    for others in (("model=resnet50_eb", "method=pufferfish"), ("model=resnet50_eb", "method=vanilla")):
        assert recipe(*others, f"profile={profile}")[0].optimizer.decay_vectors is False
    plain, _ = recipe("model=resnet50", "method=eb_train", f"profile={profile}")
    assert [phase.schedule for phase in build.build("method", plain.method).plan(plain.epochs, TinyNet())] == [{}, {}]


def test_the_language_model_recipe_matches_the_authors():
    config, schedule = recipe("model=lstm", "method=pufferfish")
    assert (config.epochs, config.method.warmup_epochs, config.batch_size, config.clip_norm) == (40, 10, 20, 0.25)
    assert (config.optimizer.momentum, config.optimizer.weight_decay, config.dataset.segment) == (0.0, 0.0, 35)
    better = [100.0 - epoch for epoch in range(40)]
    rates = [schedule(Clock(epoch, 0, 2984, 10 * (epoch >= 10), better[:epoch])) for epoch in range(40)]
    assert rates == [20.0] * 10 + [10.0] * 30  # halved at the switch
    worse = [*better[:10], 95.0, *better[11:]]  # worse after the switch: a quarter of the rate
    assert [schedule(Clock(epoch, 0, 2984, 10, worse[:epoch])) for epoch in (10, 11, 12)] == [10.0, 2.5, 2.5]


@pytest.mark.parametrize(
    ("model", "epochs", "expected"),
    [
        # 114 steps per epoch: the authors' rate rises for 1,122 epochs and restarts at the switch
        ("transformer", 400, {0: 1.93e-9, 9: 1.98e-6, 10: 1.93e-9, 399: 8.56e-5}),
        ("transformer_tuned", 100, {0: 8.73e-8, 9: 8.97e-5, 35: 3.49e-4, 99: 2.08e-4}),
        ("transformer_paper_text", 400, {0: 0.001, 10: 0.001, 399: 0.001}),
    ],
)
def test_the_translation_recipes_have_the_documented_rates(model: str, epochs: int, expected: dict[int, float]):
    config, schedule = recipe(f"model={model}", "method=pufferfish")
    assert (config.epochs, config.method.warmup_epochs, config.batch_size) == (epochs, 10, 256)
    rates = {epoch: schedule(Clock(epoch, 0, 114, 10 * (epoch >= 10))) for epoch in expected}
    assert rates == pytest.approx(expected, rel=5e-3)


def test_the_paper_profile_uses_the_papers_settings():
    with initialize_config_dir(config_dir(), version_base="1.3"):
        config = compose("config", ["model=vgg19", "method=pufferfish"])
    assert (config.epochs, config.method.warmup_epochs, config.batch_size) == (300, 80, 128)
    assert (config.optimizer.momentum, config.optimizer.weight_decay, config.optimizer.decay_vectors) == (0.9, 1e-4, True)
    assert not config.optimizer.nesterov
    assert config.deterministic
    assert (config.model.net.width, config.dataset.train_images) == (1.0, None)


def test_the_imagenet_recipe_matches_the_paper_and_its_variant_the_eb_comparison():
    recipes = {}
    for model in ("resnet50", "wrn50_2", "resnet50_eb"):
        with initialize_config_dir(config_dir(), version_base="1.3"):
            config = compose("config", [f"model={model}", "method=pufferfish"])
        assert (config.epochs, config.method.warmup_epochs, config.batch_size) == (90, 10, 256)
        assert (config.optimizer.momentum, config.optimizer.weight_decay, config.optimizer.decay_vectors) == (0.9, 1e-4, False)
        assert (config.dataset.classes, config.dataset.image_size, list(config.dataset.crop_area)) == (1000, 224, [0.08, 1])
        recipes[model] = config.dataset.label_smoothing, trace(f"model={model}")
    decays = [0.1] * 30 + [0.01] * 30 + [0.001] * 20 + [0.0001] * 10
    assert recipes["resnet50"] == recipes["wrn50_2"] == (0.1, pytest.approx(decays))
    assert recipes["resnet50_eb"] == (0.0, pytest.approx([0.1] * 30 + [0.01] * 30 + [0.001] * 30))


def test_the_fully_low_rank_net_factors_from_the_first_layer_and_a_users_rank_overrides_the_models():
    with initialize_config_dir(config_dir(), version_base="1.3"):
        config = compose("config", ["model=resnet50", "method=low_rank", "model.low_rank.ranks={layer1.0.conv1: 3}"])
        plain = compose("config", ["model=vgg19", "method=low_rank"])
    assert config.method.layers.first is None
    assert config.method.layers.ranks == {"layer[234].0.downsample.0": 0.125, "layer1.0.conv1": 3}
    assert plain.method.layers == dict(plain.model.low_rank) | {"first": None, "ranks": {}}


def test_decay_vectors_decides_whether_vectors_are_decayed():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    for decay_vectors, expected in ((True, {1: 0.1, 4: 0.1}), (False, {1: 0.0, 4: 0.1})):
        optimizer = optimizers.sgd(model, momentum=0.9, nesterov=False, weight_decay=0.1, decay_vectors=decay_vectors)
        decay = {p.ndim: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        assert decay == expected
        assert sum(len(group["params"]) for group in optimizer.param_groups) == 4


def powersgd_momentum(model: nn.Module, *, momentum: float = 0.9, decay_vectors: bool = False) -> optimizers.PowerSGDMomentum:
    return optimizers.powersgd_momentum(model, momentum=momentum, weight_decay=0.1, decay_vectors=decay_vectors)


def give_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


@pytest.mark.parametrize("decay_vectors", [False, True])
def test_powersgds_momentum_steps_by_the_gradient_and_its_momentum(decay_vectors: bool):
    model = TinyNet().double()
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    momenta = [torch.zeros_like(parameter) for parameter in expected]
    optimizer = powersgd_momentum(model, decay_vectors=decay_vectors)
    for step, rate in enumerate((0.1, 0.1, 0.02)):
        give_gradients(model, step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        sent = [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
        for place, gradient in enumerate(sent):
            decay = 0.1 if expected[place].ndim > 1 or decay_vectors else 0.0
            gradient += decay * expected[place]
            momenta[place] = 0.9 * momenta[place] + gradient
            expected[place] -= rate * (gradient + momenta[place])
        torch.testing.assert_close([parameter.detach() for parameter in model.parameters()], expected)


def test_powersgds_momentum_continues_from_its_saved_state():
    whole, stopped = TinyNet(), TinyNet()
    stopped.load_state_dict(whole.state_dict())
    first, second = powersgd_momentum(whole), powersgd_momentum(stopped)
    for step in range(4):
        if step == 2:
            saved = copy.deepcopy(second.state_dict())
            second = powersgd_momentum(stopped)
            second.load_state_dict(saved)
        for model, optimizer in ((whole, first), (stopped, second)):
            for group in optimizer.param_groups:
                group["lr"] = 0.1
            give_gradients(model, step)
            optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), stopped.parameters(), strict=True))


@pytest.mark.parametrize("momentum", [0.0, 1.0, -0.1])
def test_powersgds_momentum_without_a_momentum_would_double_the_step_and_is_refused(momentum: float):
    with pytest.raises(InputError, match=rf"optimizer\.momentum={momentum} .*optimizer=sgd"):
        powersgd_momentum(TinyNet(), momentum=momentum)


def test_powersgds_momentum_is_optional_and_not_the_default():
    default, _ = recipe("model=resnet18_distributed", "method=powersgd")
    chosen, _ = recipe("model=resnet18_distributed", "method=powersgd", "optimizer=powersgd_momentum")
    assert default.optimizer._target_.endswith("optimizers.sgd")
    optimizer = instantiate(chosen.optimizer)(TinyNet())
    assert isinstance(optimizer, optimizers.PowerSGDMomentum)
    assert [(group["momentum"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.9, 1e-4), (0.9, 0.0)]
