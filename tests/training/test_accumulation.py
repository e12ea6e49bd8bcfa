"""Gradient accumulation: a step in parts equals the step of the whole batch."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pufferfish_bench.core import Method, Reducer, Run, Task
from pufferfish_bench.distributed.surgery import fingerprint
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.models.hugging_face import encoder
from pufferfish_bench.models.lstm import LanguageModel
from pufferfish_bench.models.transformer import Transformer
from pufferfish_bench.tasks.images.task import ImageClassification
from pufferfish_bench.tasks.text.task import LanguageModelling
from pufferfish_bench.tasks.translation import synthetic_pairs
from pufferfish_bench.tasks.translation.corpus import PAD
from pufferfish_bench.tasks.translation.task import Translation
from pufferfish_bench.trainer import Stopped
from pufferfish_bench.training import accumulation
from pufferfish_bench.training.precision import FullPrecision, MixedPrecision
from pufferfish_bench.training.stopwatch import Stopwatch
from tests.support.commands import QUICK, Command
from tests.support.nets import Plain, TinyNet, tiny_task
from tests.support.training import record, step_schedule, train

WORDS = 11
CORPUS = synthetic_pairs.make_corpus(train=30, test=4)


def images() -> tuple[Callable[[], nn.Module], Task, list[torch.Tensor]]:
    return Plain, tiny_task(), [torch.zeros(1, 3, 8, 8)]


def text(carry: str, model: Callable[[], nn.Module]) -> tuple[Callable[[], nn.Module], Task, list[torch.Tensor]]:
    words = torch.randint(WORDS, (300,), generator=torch.Generator().manual_seed(0))
    task = LanguageModelling(
        train=words,
        val=words[:40],
        test=words[:30],
        batch_size=5,
        test_batch_size=2,
        segment=6,
        carry=carry,
        world=single_process(),
    )
    return model, task, [torch.zeros(2, 1, dtype=torch.long)]


def pairs() -> tuple[Callable[[], nn.Module], Task, list[torch.Tensor]]:
    words = len(CORPUS.vocabulary)
    net = partial(
        Transformer, vocabulary=words, width=8, heads=2, inner=16, layers=1, dropout=0.0, positions=40, padding=PAD, gain=1.0
    )
    task = Translation(
        corpus=CORPUS, batch_size=7, test_batch_size=4, bucketed=False, label_smoothing=0.1, beam=1, alpha=0.7, longest=5,
        positions=40, seed=1, world=single_process(),
    )  # fmt: skip
    task.results_of_best, task.final_results = False, partial(Task.final_results, task)  # no translations
    return net, task, [torch.ones(1, 3, dtype=torch.long)] * 2


def masked_words() -> tuple[Callable[[], nn.Module], Task, list[torch.Tensor]]:
    net = partial(encoder, vocabulary=WORDS, width=8, layers=1, heads=2, positions=16, model_type="bert", mask_share=0.1, seed=5)
    return text("correct", net)


lstm = partial(LanguageModel, vocabulary=WORDS, hidden=6, layers=2, dropout=0.0)
TASKS = {
    "images": images,
    "text": partial(text, "correct", lstm),
    "text-official": partial(text, "official", lstm),
    "translation": pairs,
}


def trained(folder: Path, name: str, accumulate: int, **changes: Any) -> Run:
    """Two epochs of a model without BatchNorm and dropout."""
    model, task, sample = TASKS[name]()
    task.prepare(model(), sample)
    model = changes.pop("model", model)
    settings = {"epochs": 2, "clip_norm": 0.5, "schedule": step_schedule(learning_rate=0.05, milestone=1), "sample": sample}
    return train(folder, Method(), model=model, task=task, accumulate=accumulate, **settings | changes)


def assert_equal_runs(one: Run, folder: Path, other: Run, others: Path) -> None:
    """Equal up to rounding: weights, losses and metrics of all epochs."""
    for name, tensor in one.model.state_dict().items():
        torch.testing.assert_close(other.model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)
    assert len(record(folder)) == len(record(others)) == 2
    for row, same in zip(record(folder), record(others), strict=True):
        assert row.keys() == same.keys()
        numbers = {key for key, value in row.items() if isinstance(value, float)}
        assert {"loss", one.task.metric} <= numbers
        assert {key: same[key] for key in numbers} == pytest.approx({key: row[key] for key in numbers}, rel=1e-4)
        assert {key: same[key] for key in row.keys() - numbers} == {key: row[key] for key in row.keys() - numbers}


@pytest.mark.parametrize("name", TASKS)
def test_training_in_parts_equals_training_with_the_whole_batch(name: str, tmp_path: Path):
    whole = trained(tmp_path / "whole", name, 1)
    for parts in (2, 3):  # 8, 5 and 7 samples, and smaller last batches: parts of unequal size
        split = trained(tmp_path / str(parts), name, parts)
        assert fingerprint(split.model) != fingerprint(whole.model)  # rounding: the parts were really computed apart
        assert_equal_runs(whole, tmp_path / "whole", split, tmp_path / str(parts))


def test_the_parts_of_masked_text_weigh_as_many_targets_as_they_have():
    made, task, sample = masked_words()
    torch.manual_seed(0)
    model = made().eval()  # without dropout
    task.prepare(model, sample)
    batches = [*task.batches(0, 0)]
    assert any(int((part[1] >= 0).sum()) == 0 for batch in batches for part in task.split(batch, 5))  # with no targets at all
    for batch in batches:
        whole, parts = (gradients(model, task, batch, number) for number in (1, 5))
        for one, other in zip(whole, parts, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def step_of(model: nn.Module, task: Task, watch: Stopwatch | None = None) -> Any:
    """What a step needs of a run."""
    watch = watch or Stopwatch(device=torch.device("cpu"), untimed_steps=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return SimpleNamespace(
        model=model,
        module=model,
        task=task,
        watch=watch,
        optimizer=optimizer,
        reducer=Reducer(world=single_process(), watch=watch),
    )


def gradients(model: nn.Module, task: Task, batch: Any, parts: int) -> list[torch.Tensor]:
    accumulation.gradients(step_of(model, task), batch, parts, FullPrecision())
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_a_run_in_parts_that_is_stopped_resumes_to_the_same_bits(tmp_path: Path):
    whole = trained(tmp_path / "whole", "text", 2)
    with pytest.raises(Stopped):
        trained(tmp_path / "stopped", "text", 2, stop_after=4)
    assert fingerprint(trained(tmp_path / "stopped", "text", 2).model) == fingerprint(whole.model)


class Steep(Plain):
    """Has large gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.fc2.weight.detach().mul_(20)


class ScaledOnTheCPU(MixedPrecision):
    """Loss scaling as on a GPU, without its number format."""

    def __init__(self, scale: float):
        self.scales = True
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=5)
        self.trace = [scale]

    def prepare(self, device: torch.device) -> None: ...

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        super().step(optimizer)
        self.trace.append(self.scaler.get_scale())

    def autocast(self) -> Any:
        return FullPrecision.autocast(self)


def test_training_in_parts_works_with_loss_scaling_and_skips_the_same_steps(tmp_path: Path):
    runs, scales = {}, {}
    for parts in (1, 3):
        precision = ScaledOnTheCPU(2.0**127)  # too large at first: infinite gradients, so steps are skipped until it has fallen
        runs[parts] = trained(tmp_path / str(parts), "images", parts, precision=precision, model=Steep)
        scales[parts] = precision.trace
    assert scales[1] == scales[3]
    assert min(scales[1]) < 2.0**127
    assert_equal_runs(runs[1], tmp_path / "1", runs[3], tmp_path / "3")


def test_the_sections_of_a_step_in_parts_add_up_to_the_step():
    ticks = itertools.count()
    watch = Stopwatch(device=torch.device("cpu"), untimed_steps=0, clock=lambda: float(next(ticks)))
    task = tiny_task()
    run = step_of(Plain(), task, watch)
    batch = next(task.batches(0, 0))
    first = next(ticks)
    with watch.step():
        accumulation.gradients(run, batch, 3, FullPrecision())
    length = next(ticks) - first - 2
    seconds, steps = watch.take()
    assert (seconds["forward"], seconds["backward"], steps) == (3, 3, 1)  # a tick for each part
    assert sum(seconds.values()) == length


def test_only_a_part_of_the_batch_is_computed_at_a_time():
    seen = []
    model, task = Plain(), tiny_task()
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    accumulation.gradients(step_of(model, task), next(task.batches(0, 0)), 3, FullPrecision())
    assert sorted(seen) == [2, 3, 3]


def test_no_part_of_a_batch_of_images_has_only_one_on_which_batchnorm_would_fail():
    model, task = TinyNet().train(), tiny_task()
    for batch in task.batches(0, 0):
        for parts in range(1, 10):
            sizes = [len(labels) for _, labels in task.split(batch, parts)]
            assert sum(sizes) == len(batch[1])
            assert min(sizes) >= 2
            assert len(sizes) == min(parts, len(batch[1]) // 2)
        gradients(model, task, batch, 8)


def test_a_task_that_cannot_split_its_batches_says_so_before_training(invoke: Command, tmp_path: Path, monkeypatch):
    monkeypatch.delattr(ImageClassification, "split")
    refused = invoke(*QUICK, "epochs=1", "accumulate=2")
    assert refused.returncode == 2
    assert "accumulate=2: ImageClassification cannot split a batch; give it the method split" in refused.stderr
    assert not (tmp_path / "run").exists()
    assert invoke(*QUICK, "epochs=1", "dataset.train_images=32").returncode == 0


def test_a_run_in_parts_is_another_run_and_its_record_says_so(invoke: Command, tmp_path: Path):
    finished = invoke(*QUICK, "epochs=1", "dataset.train_images=32", "accumulate=4")
    assert finished.returncode == 0, finished.stderr
    refused = invoke(*QUICK, "epochs=1", "dataset.train_images=32")
    assert refused.returncode == 2
    assert "accumulate: 4 -> (none)" in refused.stderr
