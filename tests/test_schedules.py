"""Learning rates over whole runs, as the recipes have them, and what the optimizers decay."""

from collections.abc import Callable

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import nn

from pufferfish_bench import main, optimizers
from pufferfish_bench.schedules import Clock


def recipe(*overrides: str) -> tuple[DictConfig, Callable[[Clock], float]]:
    """The settings of a run, and its rate at any moment."""
    with initialize_config_dir(main.config_dir(), version_base="1.3"):
        config = compose("config", list(overrides))
    return config, instantiate(config.schedule)


def trace(*overrides: str) -> list[float]:
    """The rate in each epoch of a run."""
    config, schedule = recipe(*overrides)
    return [schedule(Clock(epoch, 0, 391, 0)) for epoch in range(config.epochs)]


def test_the_cifar_recipe_is_the_papers():
    assert trace("model=resnet18") == pytest.approx([0.1] * 150 + [0.01] * 100 + [0.001] * 50)


def test_the_lottery_recipe_is_the_papers():
    assert trace("model=vgg19_lth") == pytest.approx([0.1] * 80 + [0.01] * 40 + [0.001] * 40)


def test_the_language_recipe_is_the_authors():
    config, schedule = recipe("model=lstm", "method=pufferfish")
    assert (config.epochs, config.method.warmup_epochs, config.batch_size, config.clip_norm) == (40, 10, 20, 0.25)
    assert (config.optimizer.momentum, config.optimizer.weight_decay, config.dataset.segment) == (0.0, 0.0, 35)
    better = [100.0 - epoch for epoch in range(40)]
    rates = [schedule(Clock(epoch, 0, 2984, 10 * (epoch >= 10), better[:epoch])) for epoch in range(40)]
    assert rates == [20.0] * 10 + [10.0] * 30  # halved at the switch
    worse = [*better[:10], 95.0, *better[11:]]  # after the switch: a quarter
    assert [schedule(Clock(epoch, 0, 2984, 10, worse[:epoch])) for epoch in (10, 11, 12)] == [10.0, 2.5, 2.5]


@pytest.mark.parametrize(
    ("model", "epochs", "expected"),
    [
        # 114 steps an epoch: the authors' rate rises for 1,122 epochs and starts anew at the switch
        ("transformer", 400, {0: 1.93e-9, 9: 1.98e-6, 10: 1.93e-9, 399: 8.56e-5}),
        ("transformer_tuned", 100, {0: 8.73e-8, 9: 8.97e-5, 35: 3.49e-4, 99: 2.08e-4}),
        ("transformer_paper_text", 400, {0: 0.001, 10: 0.001, 399: 0.001}),
    ],
)
def test_the_translation_recipes_have_the_rates_they_promise(model: str, epochs: int, expected: dict[int, float]):
    config, schedule = recipe(f"model={model}", "method=pufferfish")
    assert (config.epochs, config.method.warmup_epochs, config.batch_size) == (epochs, 10, 256)
    rates = {epoch: schedule(Clock(epoch, 0, 114, 10 * (epoch >= 10))) for epoch in expected}
    assert rates == pytest.approx(expected, rel=5e-3)


def test_the_paper_profile_has_the_papers_settings():
    with initialize_config_dir(main.config_dir(), version_base="1.3"):
        config = compose("config", ["model=vgg19", "method=pufferfish"])
    assert (config.epochs, config.method.warmup_epochs, config.batch_size) == (300, 80, 128)
    assert (config.optimizer.momentum, config.optimizer.weight_decay, config.optimizer.decay_vectors) == (0.9, 1e-4, True)
    assert not config.optimizer.nesterov
    assert config.deterministic
    assert (config.model.width, config.dataset.train_images) == (1.0, None)


def test_the_imagenet_recipe_is_the_papers_and_its_variant_that_of_the_eb_comparison():
    recipes = {}
    for model in ("resnet50", "wrn50_2", "resnet50_eb"):
        with initialize_config_dir(main.config_dir(), version_base="1.3"):
            config = compose("config", [f"model={model}", "method=pufferfish"])
        assert (config.epochs, config.method.warmup_epochs, config.batch_size) == (90, 10, 256)
        assert (config.optimizer.momentum, config.optimizer.weight_decay, config.optimizer.decay_vectors) == (0.9, 1e-4, False)
        assert (config.dataset.classes, config.dataset.image_size, list(config.dataset.crop_area)) == (1000, 224, [0.08, 1])
        recipes[model] = config.dataset.label_smoothing, trace(f"model={model}")
    decays = [0.1] * 30 + [0.01] * 30 + [0.001] * 20 + [0.0001] * 10
    assert recipes["resnet50"] == recipes["wrn50_2"] == (0.1, pytest.approx(decays))
    assert recipes["resnet50_eb"] == (0.0, pytest.approx([0.1] * 30 + [0.01] * 30 + [0.001] * 30))


def test_the_fully_low_rank_net_spares_no_first_layers_and_a_rank_of_ones_own_goes_before_the_models():
    with initialize_config_dir(main.config_dir(), version_base="1.3"):
        config = compose("config", ["model=resnet50", "method=low_rank", "model.low_rank.ranks={layer1.0.conv1: 3}"])
        plain = compose("config", ["model=vgg19", "method=low_rank"])
    assert config.method.layers.first is None
    assert config.method.layers.ranks == {"layer[234].0.downsample.0": 0.125, "layer1.0.conv1": 3}
    assert plain.method.layers == dict(plain.model.low_rank) | {"first": None, "ranks": {}}


def test_vectors_are_decayed_or_exempt_as_told():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    for decay_vectors, expected in ((True, {1: 0.1, 4: 0.1}), (False, {1: 0.0, 4: 0.1})):
        optimizer = optimizers.sgd(model, momentum=0.9, nesterov=False, weight_decay=0.1, decay_vectors=decay_vectors)
        decay = {p.ndim: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        assert decay == expected
        assert sum(len(group["params"]) for group in optimizer.param_groups) == 4
