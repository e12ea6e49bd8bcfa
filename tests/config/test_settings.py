"""Which settings are refused, and with which message; which settings a recipe fills in."""

import enum
import functools
import itertools
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count, InnerShare, Range
from pufferfish_bench.cli import describe
from pufferfish_bench.config import signatures
from pufferfish_bench.config.checks import check_plan
from pufferfish_bench.config.composition import EXPECTED
from pufferfish_bench.config.settings import (
    LAYOUTS,
    NO_CHANGE,
    TYPES,
    Experiment,
    Paths,
    References,
    Runtime,
    Settings,
    config_dir,
    settings_of,
)
from pufferfish_bench.config.suggestions import keys_of, suggestions
from pufferfish_bench.core import Phase
from pufferfish_bench.records.files import RUN, read_json
from tests.support.commands import Command

IMAGES = (
    "profile=smoke", "epochs=2", "dataset.train_images=32", "dataset.test_images=10", "batch_size=16", "model.net.width=0.05",
    "untimed_steps=0",
)  # fmt: skip
TEXT = ("model=lstm", "profile=smoke", "epochs=2", "dataset.train_words=1500", "dataset.test_words=200", "model.net.hidden=8")
PAIRS = (
    "model=transformer", "profile=smoke", "epochs=2", "dataset.train_pairs=60", "dataset.test_pairs=5", "model.net.width=16",
    "model.net.layers=1",
)  # fmt: skip

STABLE_RANK = ("method=pufferfish", "method/trigger=stable_rank")
PLATEAU = ("method=pufferfish", "method/trigger=plateau")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        # types and ranges
        (("optimizer.nesterov=no",), "optimizer.nesterov=no: true or false is expected"),
        (("model.net.stem_norm=maybe",), "model.net.stem_norm=maybe: true or false is expected"),
        (("optimizer.decay_vectors=7",), "optimizer.decay_vectors=7: true or false is expected"),
        (("channels_last=7",), "channels_last=7: auto, true or false is expected"),
        (("channels_last=1",), "channels_last=1: auto, true or false is expected"),
        (("channels_last=null",), "channels_last=null: auto, true or false is expected"),
        (("channels_last=always",), "channels_last=always: auto, true or false is expected"),
        (("deterministic=7",), "deterministic=7: true or false is expected"),
        (("optimizer.momentum=2",), "optimizer.momentum=2: a number at least 0 and below 1 is expected"),
        (("schedule.learning_rate=nan",), "schedule.learning_rate=nan: a finite number is expected"),
        (("schedule.milestones=5",), "schedule.milestones=5: a list whose items are each a number at least 0 is expected"),
        (("epochs=1.5",), "epochs=1.5: an integer is expected"),
        (("epochs=",), "epochs=: an integer is expected"),
        (("clip_norm=nan",), "clip_norm=nan must be a number above 0, or null"),
        (("schedule.factor=-1",), "schedule.factor=-1: a number at least 0 is expected"),
        (("schedule=noam", "schedule.warmup_steps=0"), "schedule.warmup_steps=0: an integer at least 1 is expected"),
        (("reducer=fp16", "reducer.dtype=half"), "reducer.dtype=half: one of float16, bfloat16 is expected"),
        (("reducer=ddp_fp16", "reducer.dtype=half"), "reducer.dtype=half: one of float16, bfloat16 is expected"),
        (("reducer=powersgd", "reducer.rank=1.5"), "reducer.rank=1.5: an integer at least 1 is expected"),
        (("method=eb_train", "method.penalty=abc"), "method.penalty=abc: a number at least 0 is expected"),
        ((*STABLE_RANK, "method.trigger.tolerance=abc"), "method.trigger.tolerance=abc: a number at least 0 is expected"),
        ((*STABLE_RANK, "method.trigger.patience=0"), "method.trigger.patience=0: an integer at least 1 is expected"),
        ((*PLATEAU, "method.trigger.patience=-1"), "method.trigger.patience=-1: an integer at least 1 is expected"),
        (("dataset.input.sample=null",), "dataset.input.sample=null: a list"),
        (("warmup_epochs=-1",), "warmup_epochs=-1 must be at least 0"),
        # paths
        (("name=../../x",), "name='../../x' cannot be the name of a directory"),
        (("run_dir=",), "run_dir= is empty"),
        (("run_root=",), "run_root= is empty"),
        # unknown keys, in every spelling
        (("epohcs=3",), "there is no setting epohcs; did you mean epochs=3?"),
        (("+epohcs=3",), "there is no setting epohcs; did you mean epochs=3?"),
        (("++epohcs=3",), "there is no setting epohcs; did you mean epochs=3?"),
        (("lr=0.1",), "there is no setting lr; did you mean schedule.learning_rate=0.1?"),
        (("learning_rate=0.1",), "did you mean schedule.learning_rate=0.1 or "),
        (("+optimizer.nestrov=true",), "there is no setting optimizer.nestrov; did you mean optimizer.nesterov=true?"),
        (("+model.low_rank.kep=[]",), "there is no setting model.low_rank.kep; there are model.low_rank.first"),
        (("+hydra.foo=1",), "there is no setting hydra.foo"),
        (("~epochs",), "epochs"),
        (("~schedule.milestones",), "schedule.milestones is not set"),
        (("model.width=0.5",), "there is no setting model.width; did you mean model.net.width=0.5?"),
        (("+model.foo=1",), "there is no setting model.foo; there are model.kind"),
        (("schedule=cosine", "schedule.milestones=[1]"), "schedule=cosine: there is no setting schedule.milestones"),
        # groups
        (("model=null",), "model=null is not a valid choice; allowed: any, hf_decoder"),
        (("dataset=null",), "dataset=null is not a valid choice"),
        (("optimizer=null",), "optimizer=null is not a valid choice"),
        (("schedule=null",), "schedule=null is not a valid choice"),
        (("method=null",), "method=null is not a valid choice"),
        (("reducer=null",), "reducer=null is not a valid choice"),
        (("model=[1,2]",), "model=[1,2] is not a valid choice"),
        (("model=resnet8",), "model=resnet8 is not known (did you mean resnet18 or resnet50?); allowed: any"),
        (("model",), "'model' cannot be read as KEY=VALUE"),
        (("=3",), "'=3' has no name before the ="),
        (("reducer@method.warmup_reducer=powersgd",), "none of the chosen parts has a reducer in this place"),
        (
            ("method=pufferfish", "method.warmup_reducer=powersgd"),
            "method.warmup_reducer=powersgd: choose a reducer here with reducer@method.warmup_reducer=NAME; allowed: allreduce",
        ),
        (("method=pufferfish", "reducer@method.warmup_reducer=nope"), "reducer=nope is not known (did you mean none?)"),
        (("probe_file=x",), "probe_file=x needs probe_steps above 0"),
        # settings that do not fit together
        (("model.net.classes=5",), "model.net.classes=5, but dataset.classes=10"),
        (("model.net.classes=0",), "model.net.classes=0, but dataset.classes=10"),
        (("reducer=ddp",), "needs torchrun"),
        # targets
        (("model.net._target_=nope.Net",), "model.net._target_=nope.Net cannot be imported: nope: No module named 'nope'"),
        (("model.net._target_=torch.pi",), "model.net._target_=torch.pi is not a class or a function"),
        (("model.net.width=1e9",), "cannot be built: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_mistake_is_refused_with_a_clear_message_and_leaves_no_files(
    invoke: Command, tmp_path: Path, words: tuple[str, ...], sentence: str
):
    refused = invoke(*IMAGES, *words)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: ")
    assert sentence in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((*TEXT, "model.net.layers=0"), "model.net.layers=0: an integer at least 1 is expected"),
        ((*PAIRS, "model.net.layers=0"), "model.net.layers=0: an integer at least 1 is expected"),
        ((*PAIRS, "dataset.alpha=nan"), "dataset.alpha=nan: a finite number is expected"),
        ((*PAIRS, "dataset.alpha=1e4"), "dataset.alpha=10000.0"),
        ((*PAIRS, "method=signum"), "reducer=signum has a momentum of its own, and so has Adam here: use optimizer=sgd"),
        (("model=transformer", "dataset=synthetic_text"), "learns from sentence pairs, but dataset=synthetic_text has text"),
        (("model=resnet18", "dataset=wikitext2"), "model=resnet18 learns from images, but dataset=wikitext2 has text; use"),
        (("model=resnet50", "profile=cpu", "dataset.loader.cache=maybe"), "dataset.loader.cache=maybe: true or false is"),
        (
            ("model=resnet50_eb", "profile=cpu", "method=eb_train", "schedule=noam", "search_milestones=[2]"),
            "phase search sets schedule.milestones, which this schedule does not have: use schedule=steps",
        ),
        (("--config-name=describe",), "the config of this command cannot be replaced; add your own files with --config-dir DIR"),
        (("--shell-completion",), "--shell-completion needs an action: install=bash"),
    ],
)  # fmt: skip
def test_a_mistake_with_another_model_is_refused_the_same_way(
    invoke: Command, tmp_path: Path, words: tuple[str, ...], sentence: str
):
    refused = invoke(*words)
    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        *((*IMAGES, f"schedule={schedule}") for schedule in ("on_plateau", "noam", "cosine", "triangle")),
        (*IMAGES, "optimizer=adam", "optimizer.weight_decay=0.01"),
        (*IMAGES, "optimizer=adamw", "schedule.learning_rate=0.001"),
        (*IMAGES, "optimizer=adam", "method=eb_train", "method.masks=2"),
        (*TEXT, "schedule=steps"),
        (*TEXT, "schedule=noam", "optimizer=adam"),
        (*PAIRS, "optimizer=sgd", "method=signum"),
        ("model=resnet18_distributed", "profile=cpu", "dataset=synthetic_images", *IMAGES[1:]),
    ],
    ids=" ".join,
)
def test_another_schedule_optimizer_or_data_set_replaces_the_recipes(invoke: Command, words: tuple[str, ...]):
    finished = invoke(*words, "run_dir=run")
    assert finished.returncode == 0, finished.stderr


def test_a_recipe_fills_in_the_settings_that_the_chosen_schedule_has_and_drops_the_rest(invoke: Command):
    """The LSTM's recipe sets learning_rate=5, which all these schedules have; only on_plateau has a switch_factor."""
    for schedule in ("steps", "cosine", "triangle"):
        settings = composed(*TEXT, f"schedule={schedule}")["schedule"]
        assert settings["learning_rate"] == 5.0
        assert "switch_factor" not in settings
    assert "ramp_epochs" in composed("model=resnet18_distributed", "profile=cpu")["schedule"]


def composed(*words: str) -> dict:
    with initialize_config_dir(config_dir(), version_base="1.3"):
        config = compose("config", overrides=list(words), return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        return settings_of(config)


NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self, *, classes: int, hidden: int = 8):
        super().__init__()
        self.first, self.head = torch.nn.Linear(3 * 32 * 32, hidden), torch.nn.Linear(hidden, classes)

    def forward(self, images):
        return self.head(self.first(images.flatten(1)).relu())
"""
OWN_MODEL = """
defaults:
  - _self_
  - /recipe/cifar10@_global_: ${profile}
net:
  _target_: my_net.Net
  classes: ${dataset.classes}
low_rank: {keep: [head], first: null, rank_ratio: 0.25, ranks: null}
"""


def test_a_users_own_model_in_the_current_directory_trains_and_the_recipes_width_is_not_forced_on_it(
    command: Command, tmp_path: Path
):
    (tmp_path / "my_net.py").write_text(NET)
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / "mine.yaml").write_text(OWN_MODEL)
    small = [word for word in IMAGES if not word.startswith("model.")]
    finished = command("--config-dir", "own", "model=mine", "method=pufferfish", *small, "run_dir=run")
    assert finished.returncode == 0, finished.stderr
    assert read_json(tmp_path / "run" / RUN)["settings"]["model"]["net"]["_target_"] == "my_net.Net"


def test_the_installed_command_finds_modules_in_the_current_directory(invoke: Command, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path not in ("", str(tmp_path))])
    (tmp_path / "my_other_net.py").write_text(NET)
    small = [word for word in IMAGES if not word.startswith("model.")]
    finished = invoke("model.net._target_=my_other_net.Net", "+model.net.hidden=4", *small, "run_dir=run")
    assert finished.returncode == 0, finished.stderr
    net = read_json(tmp_path / "run" / RUN)["settings"]["model"]["net"]
    assert (net["hidden"], net["classes"], "width" in net) == (4, 10, False)


def test_torchvisions_models_can_be_used_by_name(command: Command):
    small = [word for word in IMAGES if not word.startswith("model.")]
    finished = command(
        "model.net._target_=torchvision.models.squeezenet1_1", "+model.net.num_classes=10", "epochs=1", *small, "run_dir=run"
    )
    assert finished.returncode == 0, finished.stderr


def test_a_broken_module_of_the_user_is_named_with_its_error(invoke: Command, tmp_path: Path):
    (tmp_path / "my_broken_net.py").write_text("import nonexistent_thing\n")
    refused = invoke(*IMAGES, "model.net._target_=my_broken_net.Net")
    assert refused.returncode == 2
    assert "my_broken_net: No module named 'nonexistent_thing'" in refused.stderr


def test_the_schedule_is_checked_over_the_whole_run(invoke: Command, tmp_path: Path):
    """A rate that is invalid only in the last epoch is refused before the first."""
    (tmp_path / "my_rates.py").write_text("def falling(clock):\n    return 1.0 - clock.epoch\n")
    refused = invoke(*IMAGES, "epochs=3", "schedule._target_=my_rates.falling")
    assert refused.returncode == 2
    assert "the schedule gives a learning rate of -1 in epoch 3" in refused.stderr


def test_the_shown_config_has_no_keys_that_the_chosen_groups_do_not_have(invoke: Command):
    shown = invoke(*IMAGES, "schedule=cosine", "--cfg", "job").stdout
    assert "pufferfish_bench.training.schedules.cosine" in shown
    assert "\n  milestones" not in shown


def test_every_setting_is_declared_on_one_side_of_the_identity():
    """A setting in conf/ that no class declares is refused by Hydra; a class decides the side."""
    sides = [{field.name for field in fields(side)} for side in (Experiment, References, Runtime, Paths)]
    assert sum(map(len, sides)) == len(set().union(*sides)) == len(fields(Settings))
    for base in BASES.values():
        with initialize_config_dir(config_dir(), version_base="1.3"):
            config = compose("config", overrides=list(base))
        assert set(config) == {field.name for field in fields(Settings)}
        for group, layout in LAYOUTS.items():
            assert set(layout.outside) <= set(layout.sections)
            mappings = {
                key for key in config[group] if OmegaConf.is_dict(config[group][key]) and "_target_" not in config[group][key]
            }
            assert mappings <= {*layout.sections, "layers"}, f"{group}: a section that no layout declares"
        assert set(config.model) <= set(LAYOUTS["model"].sections)


def test_a_setting_without_a_declared_side_is_refused(tmp_path: Path):
    shutil.copytree(config_dir(), tmp_path / "conf")
    with (tmp_path / "conf" / "config.yaml").open("a") as file:
        file.write("\nundeclared: 1\n")
    with initialize_config_dir(str(tmp_path / "conf"), version_base="1.3"), pytest.raises(HydraException, match="undeclared"):
        compose("config")


def test_the_identity_of_a_run_has_exactly_the_settings_declared_inside_it():
    names = {field.name for field in fields(Experiment)} - set(NO_CHANGE)  # at their defaults
    for base in BASES.values():
        settings = composed(*base)
        assert set(settings) == names
        assert set(composed(*base, "tf32=true")) == {*names, "tf32"}
        assert set(composed(*base, "accumulate=2")) == {*names, "accumulate"}
        assert {"net", "low_rank"} <= set(settings["model"]) <= {"net", "low_rank", "fully_low_rank"}
        assert not {"loader", "source", "input"} & set(settings["dataset"])


def test_the_warmup_reducer_has_its_own_settings():
    words = (*IMAGES, "method=pufferfish", "reducer@method.warmup_reducer=powersgd")
    assert composed(*words)["method"]["warmup_reducer"]["rank"] == 2
    settings = composed(*words, "method.warmup_reducer.rank=4")
    assert settings["method"]["warmup_reducer"]["rank"] == 4
    assert settings["reducer"]["_target_"].endswith("allreduce")
    assert composed(*IMAGES, "method=hybrid")["method"]["warmup_reducer"] is None


@given(st.floats(), st.floats(), st.floats(), st.booleans(), st.booleans())
def test_a_range_contains_the_values_between_its_bounds(value: float, low: float, high: float, open_low: bool, open_high: bool):
    inside = (low < value if open_low else low <= value) and (value < high if open_high else value <= high)
    assert (value in Range(low, high, open_low, open_high)) == inside


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (bool, [True, False], [0, 1, "true", None]),
        (int, [0, -3], [True, 1.0, "1", None, 2**63]),
        (float, [0, 1.5], [True, "1", None, float("nan"), float("inf"), 10**30]),
        (str, ["", "a"], [1, None, True]),
        (int | None, [None, 1], ["a", 1.5]),
        (Count, [1, 7], [0, -1, 1.5, True]),
        (InnerShare, [0.5], [0, 1, 1.5]),
        (tuple[float, float], [[0.9, 0.98]], [[0.9], 0.9, ["a", 1]]),
        (list[str], [[], ["a"]], ["a", [1], None]),
        (dict[str, int], [{}, {"a": 1}], [[], "a", None]),
        (functools.partial, [], [1, "a", None, []]),  # built from a config group
        (list, [[], [1, "a"]], ["a", 1, None, {}]),
        (tuple, [[], [1, "a"]], ["a", 1]),
        (Sequence, [[], [1, "a"]], ["a", 1]),
        (Iterable, [[], [1, "a"]], ["a", 1]),
        (Iterable[int], [[], [1]], ["a", 1, ["a"]]),
        (set[int], [[1, 2]], [1, ["a"]]),
        (dict, [{}, {"a": 1}], [[], "a"]),
        (Mapping, [{}, {"a": 1}], [[], "a"]),
        (list | None, [None, [1]], ["a"]),
        (object, [1, "a", None, [], {}], []),
    ],
)
def test_values_fit_their_types(annotation: object, good: list, bad: list):
    assert all(signatures.fits(value, annotation) for value in good)
    assert not any(signatures.fits(value, annotation) for value in bad)


class Weights(enum.Enum):
    DEFAULT = 1


def foreign(
    widths: list, sizes: tuple, options: dict, names: Sequence, numbers: Iterable[int], block: type, weights: Weights | None,
    path: Path, rate: float, act: Callable[[], None], several: list[Weights],
) -> None:  # fmt: skip
    """As a user may annotate a constructor."""


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"widths": [8, 16], "sizes": [1, 2], "options": {"a": 1}, "names": ["a"], "numbers": [1], "several": ["DEFAULT"]}, None),
        ({"block": "Basic", "weights": "DEFAULT", "path": "a/b", "rate": 1}, None),
        ({"weights": None}, None),
        ({"widths": 8}, "x.widths=8: a list is expected"),
        ({"options": [1]}, r"x.options=\[1\]: a mapping is expected"),
        ({"numbers": ["a"]}, r"x.numbers=\['a'\]: a list whose items are each an integer is expected"),
        ({"rate": "fast"}, "x.rate=fast: a number is expected"),
        ({"act": "relu"}, "x.act=relu: a mapping with _target_ is expected"),
    ],
)
def test_a_foreign_constructor_is_refused_only_what_its_types_exclude(settings: dict, sentence: str | None):
    if sentence is None:
        signatures.check_arguments("x", settings, foreign, complete=False)
    else:
        with pytest.raises(InputError, match=sentence):
            signatures.check_arguments("x", settings, foreign, complete=False)


def test_weights_of_torchvision_may_be_given_by_name_and_types_of_this_package_and_of_torch_are_strict():
    signatures.check("model.net", {"_target_": "torchvision.models.resnet18", "weights": "DEFAULT"})
    with pytest.raises(InputError, match=r"optimizer\.betas=.*: a list of 2 "):
        signatures.check("optimizer", {"_target_": "torch.optim.AdamW", "betas": ["a", "b"]}, given=("params",))
    method = {"_target_": "pufferfish_bench.methods.pufferfish.Pufferfish", "_partial_": True, "trigger": "plateau"}
    with pytest.raises(InputError, match=r"method\.trigger=plateau: a mapping with _target_ is expected"):
        signatures.check("method", method)


def test_forwarded_keyword_arguments_are_checked_against_the_function_that_receives_them():
    class Base:
        def __init__(self, *, low: Count):
            self.low = low

    class Derived(Base):
        def __init__(self, *, high: int, **further: object):
            super().__init__(**further)
            self.high = high

    def made(**further: object) -> Base:
        return Base(**further)

    made.__annotations__["return"] = Base
    for target, keys in ((Derived, {"low", "high"}), (made, {"low"})):
        assert set(signatures.parameters(target)) == keys
        with pytest.raises(InputError, match=r"x\.low=0: an integer at least 1"):
            signatures.check_arguments("x", {"low": 0}, target, complete=False)
        with pytest.raises(InputError, match=r"there is no setting x\.other"):
            signatures.check_arguments("x", {"other": 0}, target, complete=False)


def test_suggestions_with_the_same_last_name_come_before_similar_spellings():
    known = {"epochs", "schedule.learning_rate", "optimizer.momentum", "reducer.momentum", "batch_size"}
    assert suggestions("epoch", known) == ["epochs"]
    assert suggestions("momentum", known) == ["optimizer.momentum", "reducer.momentum"]
    assert suggestions("schedule.momentum", known) == ["optimizer.momentum", "reducer.momentum"]
    assert suggestions("lr", known) == ["schedule.learning_rate"]
    assert suggestions("zzz", known) == []
    assert suggestions("model.width", {"model.net.width", "schedule.width"}) == ["model.net.width"]


def test_every_type_of_setting_has_a_description_for_error_messages():
    assert {kind for kind in TYPES.values() if kind != "Any"} <= set(EXPECTED)


def test_an_unknown_key_in_a_group_is_refused_with_the_names_in_that_group(invoke: Command):
    refused = invoke(*IMAGES, "dataset.cache=true")
    assert "there is no setting dataset.cache; there are dataset.batch_size" in refused.stderr


def test_adam_with_a_learning_rate_for_sgd_gives_a_warning(invoke: Command):
    warned = invoke(*IMAGES, "optimizer=adamw", "schedule=cosine", "run_dir=run")
    assert warned.stderr.startswith("warning: schedule.learning_rate=0.1 is meant for SGD, but optimizer=adamw needs about 0.001")
    assert invoke(*IMAGES, "optimizer=adam", "schedule.learning_rate=0.001", "run_dir=low").stderr == ""


def test_a_run_of_a_sweep_that_cannot_be_composed_does_not_end_the_sweep(invoke: Command, tmp_path: Path):
    swept = invoke("--multirun", *IMAGES, "epochs=1", "schedule=nope,steps", "run_dir=runs/${hydra:job.num}")
    assert swept.returncode == 1
    assert (tmp_path / "runs" / "1" / RUN).is_file()
    assert "1 run of the sweep failed" in swept.stderr
    assert "schedule=nope is not known" in swept.stderr


@pytest.mark.parametrize(
    "words", [("model.net.stem_norm=maybe",), ("dataset.input.sample=null",), ("model.low_rank.rank_ratio=x",)]
)
def test_describe_refuses_the_same_settings_as_a_run(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr("sys.argv", ["pufferfish-describe", *words])
    with pytest.raises(SystemExit) as exit:
        describe.run()
    assert exit.value.code == 2
    assert "is expected" in capsys.readouterr().err


def test_eb_train_drops_the_recipes_search_milestones_when_its_schedule_is_replaced(invoke: Command):
    assert composed("model=resnet50_eb", "profile=cpu", "method=eb_train")["method"]["search_milestones"] == [9, 18, 24]
    assert (
        composed("model=resnet50_eb", "profile=cpu", "method=eb_train", "schedule=cosine")["method"]["search_milestones"] is None
    )


# --- odd values for every setting ------------------------------------------------------------------------------------

ODD = (
    "abc", "-1", "0", "nan", "inf", "null", "[]", "{}", "true", "1e30", "''", "[1,a]", "1.5", "../x", "${nope}", "-1e-9",
    "'[/x]'", "99999999999999999999", "{a: 1}", "2",
)  # fmt: skip
BASES = {
    **{
        method: (*IMAGES, f"method={method}") for method in ("vanilla", "pufferfish", "signum", "topk", "sbq", "powersgd", "fp16")
    },
    "lth": (*IMAGES, "method=lth", "method.levels=1"),
    "eb_train": (*IMAGES, "method=eb_train", "method.masks=2", "epochs=3"),
    "stable_rank": (*IMAGES, "method=pufferfish", "method/trigger=stable_rank"),
    "plateau": (*IMAGES, "method=pufferfish", "method/trigger=plateau"),
    "mask_distance": (*IMAGES, "method=pufferfish", "method/trigger=mask_distance"),
    "adamw": (*IMAGES, "optimizer=adamw", "schedule=cosine"),
    "adam": (*IMAGES, "optimizer=adam", "schedule=triangle"),
    "powersgd_momentum": (*IMAGES, "optimizer=powersgd_momentum", "schedule=noam"),
    "resnet50": (*IMAGES, "model=resnet50"),
    "vgg19": (*IMAGES, "model=vgg19"),
    "lstm": TEXT,
    "transformer": PAIRS,
    # without their data: mistakes are reported before the data is looked for
    "imagenet": ("model=resnet50", "profile=cpu"),
    "cifar10": ("model=resnet18_distributed", "profile=cpu"),
    "wikitext2": ("model=lstm", "profile=cpu"),
    "multi30k": ("model=transformer", "profile=cpu"),
}
VALID = ("compile=true", "fetch=true")  # valid, but one is slow and the other uses the network


def odd_settings() -> Iterator[tuple[str, str]]:
    """An odd value for every setting, three for those of a method, reducer, schedule or optimizer; always the same ones."""
    draw, seen = random.Random(0), Counter()
    with initialize_config_dir(config_dir(), version_base="1.3"):
        for base, words in BASES.items():
            config = compose("config", overrides=list(words))
            for key in sorted(keys_of(config)):
                group = key.split(".")[0]
                shared = group in ("method", "reducer", "schedule", "optimizer")
                place = (key, config[group]["_target_"] if shared else words[0] * ("." in key))
                seen[place] += 1
                if seen[place] <= 1 + 2 * shared:
                    yield base, f"{key}={draw.choice(ODD)}"


CASES = [case for case in odd_settings() if not case[1].endswith(VALID)]


def test_there_are_at_least_300_odd_settings():
    assert len(CASES) >= 300


def too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("the command hangs")


BY_BASE = {base: [word for _, word in cases] for base, cases in itertools.groupby(CASES, key=lambda case: case[0])}


@pytest.mark.parametrize("base", BY_BASE)
def test_an_odd_setting_trains_or_is_refused_with_a_clear_message_and_leaves_no_files(invoke: Command, tmp_path: Path, base: str):
    signal.signal(signal.SIGALRM, too_long)
    for number, word in enumerate(BY_BASE[base]):
        nowhere = tmp_path / f"case{number}"
        nowhere.mkdir()
        signal.alarm(120)  # generous, for a busy machine
        finished = invoke(*BASES[base], word, cwd=nowhere)
        signal.alarm(0)
        assert finished.returncode in (0, 2), (word, finished.stderr)
        assert "Traceback" not in finished.stderr, word
        if finished.returncode == 2:
            *warnings, error = finished.stderr.splitlines()
            assert error.startswith("error: "), (word, finished.stderr)
            assert all(line.startswith("warning: ") for line in warnings), (word, finished.stderr)
            assert list(nowhere.iterdir()) == [] or "the loss is not finite" in error, word


@pytest.mark.parametrize(
    "epochs", [[range(3), range(3, 1)], [range(1, 2)], [range(2), range(3, 4)]], ids=["backwards", "late start", "gap"]
)
def test_a_plan_whose_phases_do_not_follow_each_other_is_refused(epochs: list[range]):
    with pytest.raises(InputError, match="must begin with epoch"):
        check_plan([Phase(f"phase{number}", some) for number, some in enumerate(epochs)])


def test_a_plan_without_gaps_is_accepted_also_if_it_is_longer_than_epochs():
    check_plan([Phase("one", range(2)), Phase("empty", range(2, 2)), Phase("two", range(2, 9))])


def test_a_sample_that_is_no_tensor_is_refused(invoke: Command):
    refused = invoke(*IMAGES, "dataset.input.sample=[1]")
    assert refused.returncode == 2
    assert "dataset.input.sample[0]=1: a mapping with _target_ that builds a tensor is expected" in refused.stderr


def test_the_lottery_on_a_model_without_convolutions_says_so(invoke: Command):
    refused = invoke("model=transformer", "profile=smoke", "method=lth", "run_dir=run")
    assert refused.returncode == 2
    assert "method=lth prunes convolutions" in refused.stderr
