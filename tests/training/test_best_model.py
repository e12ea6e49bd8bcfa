"""Final results of the best epoch of the last phase, beside those of the last epoch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pufferfish_bench.core import FinalResults, Observer, Run, Task
from pufferfish_bench.distributed.surgery import fingerprint
from pufferfish_bench.trainer import Stopped
from pufferfish_bench.training import checkpoints
from tests.support.nets import tiny_task
from tests.support.training import METHODS, train


class Scripted(Task):
    """A tiny task whose metric is read from a list and whose final result is the sum of the weights."""

    metric, higher_is_better, results_of_best = "score", True, True

    def __init__(self, scores: list[float]):
        self.scores = scores
        self.images = tiny_task()
        self.prepare, self.steps, self.loss, self.count = (
            getattr(self.images, name) for name in ("prepare", "steps", "loss", "count")
        )
        self.epoch = 0

    def batches(self, epoch: int, start: int) -> Any:
        self.epoch = epoch
        return self.images.batches(epoch, start)

    def evaluate(self, model: Any) -> dict[str, float]:
        return {"score": self.scores[self.epoch]}

    def final_results(self, model: nn.Module) -> FinalResults:
        assert not model.training
        return FinalResults({"weights": weights(model), "words": "text"}, {"file.txt": str(weights(model))})


def weights(model: nn.Module) -> float:
    return float(sum(parameter.detach().double().sum() for parameter in model.parameters()))


class Weights(Observer):
    """The sum of the weights after each epoch."""

    def __init__(self) -> None:
        self.after: dict[int, float] = {}

    def epoch_ended(self, run: Run, row: dict[str, Any]) -> None:
        self.after[row["epoch"]] = weights(run.model)


@pytest.mark.parametrize(
    ("method", "scores", "best"),
    [
        ("vanilla", [1.0, 9.0, 3.0, 2.0], 1),
        ("vanilla", [1.0, 2.0, 3.0, 4.0], 3),
        ("vanilla", [7.0, 7.0, 7.0, 7.0], 0),
        ("pufferfish", [9.0, 9.0, 3.0, 2.0], 2),  # the warm-up had a model of another structure
    ],
)
def test_the_results_are_those_of_the_best_epoch_of_the_last_phase(method: str, scores: list[float], best: int, tmp_path: Path):
    watched = Weights()
    run = train(tmp_path, METHODS[method](), task=Scripted(scores), observers=[watched])
    figures = run.final_results.figures
    assert figures["weights"] == watched.after[3] == weights(run.model)
    assert figures["best_weights"] == watched.after[best]
    assert "best_words" not in figures
    assert run.final_results.files == {"file.txt": str(watched.after[3])}


@pytest.mark.parametrize("stop_after", [10, 17, 24, 28])
def test_a_resumed_run_reports_the_same_best_epoch(stop_after: int, tmp_path: Path):
    scores = [1.0, 9.0, 3.0, 2.0]
    whole = train(tmp_path / "whole", METHODS["vanilla"](), task=Scripted(scores))
    with pytest.raises(Stopped):
        train(tmp_path / "cut", METHODS["vanilla"](), task=Scripted(scores), stop_after=stop_after)
    resumed = train(tmp_path / "cut", METHODS["vanilla"](), task=Scripted(scores))
    assert resumed.final_results == whole.final_results
    assert fingerprint(resumed.model) == fingerprint(whole.model)


@pytest.mark.parametrize("forged", [{}, None, {"fc2.bias": torch.zeros(9)}])
def test_a_checkpoint_without_fitting_best_weights_is_set_aside(forged: Any, tmp_path: Path):
    scores = [1.0, 9.0, 3.0, 2.0]
    with pytest.raises(Stopped):
        train(tmp_path, METHODS["vanilla"](), task=Scripted(scores), stop_after=17)
    newest = sorted((tmp_path / "checkpoints").glob("*.pt"))[-1]
    state = checkpoints.read(newest)
    state["shared"]["best_weights"] = forged
    checkpoints.write(newest, state)
    run = train(tmp_path, METHODS["vanilla"](), task=Scripted(scores))
    assert newest.with_suffix(".damaged").exists()
    assert run.final_results.figures.keys() == {"weights", "words", "best_weights"}


def test_a_checkpoint_of_an_earlier_version_resumes_if_the_task_needs_no_best_weights(tmp_path: Path):
    whole = train(tmp_path / "whole", METHODS["vanilla"]())
    with pytest.raises(Stopped):
        train(tmp_path / "cut", METHODS["vanilla"](), stop_after=17)
    for path in (tmp_path / "cut" / "checkpoints").glob("*.pt"):
        state = checkpoints.read(path)
        del state["shared"]["best_weights"]
        checkpoints.write(path, state)
    run = train(tmp_path / "cut", METHODS["vanilla"]())
    assert not [*(tmp_path / "cut" / "checkpoints").glob("*.damaged")]
    assert fingerprint(run.model) == fingerprint(whole.model)


def test_other_tasks_keep_no_copy(tmp_path: Path):
    assert train(tmp_path, METHODS["vanilla"]()).best_weights == {}
