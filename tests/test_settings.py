"""What is refused on the command line, and in which words; what a recipe fills and what it leaves alone."""

import functools
import itertools
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench import main, typed
from pufferfish_bench.composition import EXPECTED, TYPES, keys_of, suggestions
from pufferfish_bench.errors import InputError
from pufferfish_bench.limits import Count, InnerShare, Range
from pufferfish_bench.records import RUN, read_json
from pufferfish_bench.settings import config_dir, settings_of, with_later, without_later
from tests.conftest import Command

IMAGES = (
    "profile=smoke", "epochs=2", "dataset.train_images=32", "dataset.test_images=10", "batch_size=16", "model.width=0.05",
    "untimed_steps=0",
)  # fmt: skip
TEXT = ("model=lstm", "profile=smoke", "epochs=2", "dataset.train_words=1500", "dataset.test_words=200", "model.hidden=8")
PAIRS = (
    "model=transformer", "profile=smoke", "epochs=2", "dataset.train_pairs=60", "dataset.test_pairs=5", "model.width=16",
    "model.layers=1",
)  # fmt: skip

STABLE_RANK = ("method=pufferfish", "method/trigger=stable_rank")
PLATEAU = ("method=pufferfish", "method/trigger=plateau")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        # types and ranges
        (("optimizer.nesterov=no",), "optimizer.nesterov=no: true or false is expected"),
        (("model.stem_norm=maybe",), "model.stem_norm=maybe: true or false is expected"),
        (("optimizer.decay_vectors=7",), "optimizer.decay_vectors=7: true or false is expected"),
        (("channels_last=7",), "channels_last=7: true or false is expected"),
        (("optimizer.momentum=2",), "optimizer.momentum=2: a number at least 0 and below 1 is expected"),
        (("schedule.learning_rate=nan",), "schedule.learning_rate=nan: a finite number is expected"),
        (("schedule.milestones=5",), "schedule.milestones=5: a list with a number at least 0 for each item is expected"),
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
        (("dataset.sample=null",), "dataset.sample=null: a list"),
        (("warmup_epochs=-1",), "warmup_epochs=-1 must not be negative"),
        # places
        (("name=../../x",), "name='../../x' cannot be the name of a directory"),
        (("run_dir=",), "run_dir= is empty"),
        (("run_root=",), "run_root= is empty"),
        # keys that are not there, however they are spelled
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
        (("schedule=cosine", "schedule.milestones=[1]"), "schedule=cosine: there is no setting schedule.milestones"),
        # groups
        (("model=null",), "model=null names no model; allowed: lstm, resnet18"),
        (("dataset=null",), "dataset=null names no dataset"),
        (("optimizer=null",), "optimizer=null names no optimizer"),
        (("schedule=null",), "schedule=null names no schedule"),
        (("method=null",), "method=null names no method"),
        (("reducer=null",), "reducer=null names no reducer"),
        (("model=[1,2]",), "model=[1,2] names no model"),
        (("model=resnet8",), "model=resnet8 is not known (did you mean resnet18?); allowed: lstm"),
        (("model",), "'model' cannot be read as KEY=VALUE"),
        (("=3",), "'=3' has no setting before its ="),
        # parts that do not fit together
        (("model.classes=5",), "model.classes=5, but dataset.classes=10"),
        (("model.classes=0",), "model.classes=0, but dataset.classes=10"),
        (("reducer=ddp",), "needs torchrun"),
        # targets
        (("model._target_=nope.Net",), "model._target_=nope.Net cannot be imported: nope: No module named 'nope'"),
        (("model._target_=torch.pi",), "model._target_=torch.pi is not a class or a function"),
        (("model.width=1e9",), "cannot be built: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_mistake_is_refused_in_one_sentence_and_leaves_nothing(
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
        ((*TEXT, "model.layers=0"), "model.layers=0: an integer at least 1 is expected"),
        ((*PAIRS, "model.layers=0"), "model.layers=0: an integer at least 1 is expected"),
        ((*PAIRS, "dataset.alpha=nan"), "dataset.alpha=nan: a finite number is expected"),
        ((*PAIRS, "method=signum"), "reducer=signum has a momentum of its own, and so has Adam here: use optimizer=sgd"),
        (("model=transformer", "dataset=synthetic_text"), "learns from sentence pairs, and dataset=synthetic_text has text"),
        (("model=resnet18", "dataset=wikitext2"), "model=resnet18 learns from images, and dataset=wikitext2 has text; choose"),
        (("model=resnet50", "profile=cpu", "dataset.cache=maybe"), "dataset.cache=maybe: true or false is expected"),
        (
            ("model=resnet50_eb", "profile=cpu", "method=eb_train", "schedule=noam", "search_milestones=[2]"),
            "phase search sets schedule.milestones, which this schedule does not have: use schedule=steps",
        ),
        (("--config-name=describe",), "the command has its own config; --config-dir DIR adds yours"),
        (("--shell-completion",), "--shell-completion needs what to do: install=bash"),
    ],
)  # fmt: skip
def test_so_is_a_mistake_with_other_models(invoke: Command, tmp_path: Path, words: tuple[str, ...], sentence: str):
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
def test_another_schedule_optimizer_or_data_set_takes_the_place_of_the_recipes(invoke: Command, words: tuple[str, ...]):
    finished = invoke(*words, "run_dir=run")
    assert finished.returncode == 0, finished.stderr


def test_a_recipe_fills_what_the_chosen_part_knows_and_drops_the_rest(invoke: Command):
    """The LSTM's recipe has a rate of 5, which every schedule with a rate takes; none but on_plateau has a switch_factor."""
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
    assert read_json(tmp_path / "run" / RUN)["settings"]["model"]["_target_"] == "my_net.Net"


def test_the_installed_command_finds_modules_of_the_current_directory(invoke: Command, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path not in ("", str(tmp_path))])
    (tmp_path / "my_other_net.py").write_text(NET)
    small = [word for word in IMAGES if not word.startswith("model.")]
    finished = invoke("model._target_=my_other_net.Net", "+model.hidden=4", *small, "run_dir=run")
    assert finished.returncode == 0, finished.stderr
    model = read_json(tmp_path / "run" / RUN)["settings"]["model"]
    assert (model["hidden"], model["classes"], "width" in model) == (4, 10, False)


def test_torchvisions_models_can_be_named(command: Command):
    small = [word for word in IMAGES if not word.startswith("model.")]
    finished = command(
        "model._target_=torchvision.models.squeezenet1_1", "+model.num_classes=10", "epochs=1", *small, "run_dir=run"
    )
    assert finished.returncode == 0, finished.stderr


def test_a_broken_module_of_the_user_is_named_with_its_error(invoke: Command, tmp_path: Path):
    (tmp_path / "my_broken_net.py").write_text("import nonexistent_thing\n")
    refused = invoke(*IMAGES, "model._target_=my_broken_net.Net")
    assert refused.returncode == 2
    assert "my_broken_net: No module named 'nonexistent_thing'" in refused.stderr


def test_the_schedule_is_checked_over_the_whole_run(invoke: Command, tmp_path: Path):
    """A rate that turns bad in the last epoch alone is refused before the first."""
    (tmp_path / "my_rates.py").write_text("def falling(clock):\n    return 1.0 - clock.epoch\n")
    refused = invoke(*IMAGES, "epochs=3", "schedule._target_=my_rates.falling")
    assert refused.returncode == 2
    assert "the schedule gives a learning rate of -1 in epoch 3" in refused.stderr


def test_the_shown_config_has_no_keys_that_the_chosen_parts_do_not_know(invoke: Command):
    shown = invoke(*IMAGES, "schedule=cosine", "--cfg", "job").stdout
    assert "pufferfish_bench.schedules.cosine" in shown
    assert "\n  milestones" not in shown


def test_older_records_have_the_values_that_stand_for_later_settings():
    older = {"optimizer": {"_target_": "pufferfish_bench.optimizers.adam", "eps": 1e-9}, "seed": 1}
    assert with_later(older)["optimizer"] == older["optimizer"] | {"weight_decay": 0.0, "decay_vectors": True}
    assert with_later(older)["seed"] == 1
    newer = {"optimizer": {"_target_": "pufferfish_bench.optimizers.adam", "weight_decay": 0.1}}
    assert with_later(newer)["optimizer"]["weight_decay"] == 0.1


@given(st.floats(), st.floats(), st.floats(), st.booleans(), st.booleans())
def test_a_range_says_what_it_contains(value: float, low: float, high: float, open_low: bool, open_high: bool):
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
        (functools.partial, [], [1, "a", None, []]),  # is built from a group of its own
    ],
)
def test_values_fit_their_types(annotation: object, good: list, bad: list):
    assert all(typed.fits(value, annotation) for value in good)
    assert not any(typed.fits(value, annotation) for value in bad)


def test_what_a_class_or_a_function_hands_on_is_checked_where_it_arrives():
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
        assert set(typed.parameters(target)) == keys
        with pytest.raises(InputError, match=r"x\.low=0: an integer at least 1"):
            typed.check_arguments("x", {"low": 0}, target, complete=False)
        with pytest.raises(InputError, match=r"there is no setting x\.other"):
            typed.check_arguments("x", {"other": 0}, target, complete=False)


def test_near_names_come_first_by_their_end_then_by_their_spelling():
    known = {"epochs", "schedule.learning_rate", "optimizer.momentum", "reducer.momentum", "batch_size"}
    assert suggestions("epoch", known) == ["epochs"]
    assert suggestions("momentum", known) == ["optimizer.momentum", "reducer.momentum"]
    assert suggestions("schedule.momentum", known) == ["optimizer.momentum", "reducer.momentum"]
    assert suggestions("lr", known) == ["schedule.learning_rate"]
    assert suggestions("zzz", known) == []


def test_what_a_setting_is_to_be_can_be_said_of_every_setting():
    assert {kind for kind in TYPES.values() if kind != "Any"} <= set(EXPECTED)


def test_a_mistake_inside_a_group_is_answered_with_names_of_that_group(invoke: Command):
    refused = invoke(*IMAGES, "dataset.cache=true")
    assert "there is no setting dataset.cache; there are dataset.batch_size" in refused.stderr


def test_a_setting_that_came_later_leaves_the_directory_of_a_run_where_it_was():
    now = {"optimizer": {"_target_": "pufferfish_bench.optimizers.adam", "weight_decay": 0.0, "decay_vectors": True}, "seed": 1}
    assert without_later(now) == {"optimizer": {"_target_": "pufferfish_bench.optimizers.adam"}, "seed": 1}
    now["optimizer"]["weight_decay"] = 0.1
    assert without_later(now)["optimizer"]["weight_decay"] == 0.1


def test_adam_at_the_rate_of_sgd_gets_a_warning(invoke: Command):
    warned = invoke(*IMAGES, "optimizer=adamw", "schedule=cosine", "run_dir=run")
    assert warned.stderr.startswith("warning: schedule.learning_rate=0.1 is made for SGD, and optimizer=adamw wants about 0.001")
    assert invoke(*IMAGES, "optimizer=adam", "schedule.learning_rate=0.001", "run_dir=low").stderr == ""


def test_a_run_of_a_sweep_that_cannot_be_composed_does_not_end_the_sweep(invoke: Command, tmp_path: Path):
    swept = invoke("--multirun", *IMAGES, "epochs=1", "schedule=nope,steps", "run_dir=runs/${hydra:job.num}")
    assert swept.returncode == 1
    assert (tmp_path / "runs" / "1" / RUN).is_file()
    assert "1 run of the sweep failed" in swept.stderr
    assert "schedule=nope is not known" in swept.stderr


@pytest.mark.parametrize("words", [("model.stem_norm=maybe",), ("dataset.sample=null",), ("model.low_rank.rank_ratio=x",)])
def test_a_description_refuses_what_a_run_refuses(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr("sys.argv", ["pufferfish-describe", *words])
    with pytest.raises(SystemExit) as exit:
        main.describe()
    assert exit.value.code == 2
    assert "is expected" in capsys.readouterr().err


def test_the_search_of_eb_train_has_the_steps_of_its_schedule_where_the_recipes_is_replaced(invoke: Command):
    assert composed("model=resnet50_eb", "profile=cpu", "method=eb_train")["method"]["search_milestones"] == [9, 18, 24]
    assert (
        composed("model=resnet50_eb", "profile=cpu", "method=eb_train", "schedule=cosine")["method"]["search_milestones"] is None
    )


# --- odd values for every setting there is ---------------------------------------------------------------------------

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
    # without their data: what is wrong is said before the data is looked for
    "imagenet": ("model=resnet50", "profile=cpu"),
    "cifar10": ("model=resnet18_distributed", "profile=cpu"),
    "wikitext2": ("model=lstm", "profile=cpu"),
    "multi30k": ("model=transformer", "profile=cpu"),
}
SLOW = {"compile=true"}  # is right, and takes long


def odd_settings() -> Iterator[tuple[str, str]]:
    """For every setting of every base an odd value, each setting of a group once: the same ones every time."""
    draw, seen = random.Random(0), set()
    with initialize_config_dir(config_dir(), version_base="1.3"):
        for base, words in BASES.items():
            for key in sorted(keys_of(compose("config", overrides=list(words)))):
                group = key.split(".")[0]
                place = (key, base if group in ("method", "reducer", "schedule", "optimizer") else words[0] * ("." in key))
                if place not in seen:
                    seen.add(place)
                    yield base, f"{key}={draw.choice(ODD)}"


CASES = [case for case in odd_settings() if case[1] not in SLOW]


def test_there_are_at_least_300_odd_settings():
    assert len(CASES) >= 300


def too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("the command hangs")


BY_BASE = {base: [word for _, word in cases] for base, cases in itertools.groupby(CASES, key=lambda case: case[0])}


@pytest.mark.parametrize("base", BY_BASE)
def test_an_odd_setting_trains_or_is_refused_in_a_sentence_and_leaves_nothing(invoke: Command, tmp_path: Path, base: str):
    signal.signal(signal.SIGALRM, too_long)
    for number, word in enumerate(BY_BASE[base]):
        nowhere = tmp_path / f"case{number}"
        nowhere.mkdir()
        signal.alarm(120)  # of a busy machine
        finished = invoke(*BASES[base], word, cwd=nowhere)
        signal.alarm(0)
        assert finished.returncode in (0, 2), (word, finished.stderr)
        assert "Traceback" not in finished.stderr, word
        if finished.returncode == 2:
            *warnings, error = finished.stderr.splitlines()
            assert error.startswith("error: "), (word, finished.stderr)
            assert all(line.startswith("warning: ") for line in warnings), (word, finished.stderr)
            assert list(nowhere.iterdir()) == [] or "the loss is not finite" in error, word
