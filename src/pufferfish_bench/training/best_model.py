"""Final results of the best epoch beside those of the last one, for tasks that ask for them (`Task.results_of_best`).

The best epoch is the one of the last phase with the best metric, as in the summary of a record. Earlier phases may have had a
model of another structure.
"""

from typing import Any

from pufferfish_bench.core import FinalResults, Run


def keep_if_best(run: Run) -> None:
    """After an epoch: copy the weights if this epoch is the best of the last phase so far."""
    if not run.task.results_of_best or run.phase_index < len(run.plan) - 1:
        return
    if is_best(run):
        run.best_weights = {name: run.world.on_host(tensor).clone() for name, tensor in run.model.state_dict().items()}


def final_results(run: Run) -> FinalResults:
    """The task's results of the last model. The figures of the best epoch's model are added, with the prefix best_."""
    last = run.task.final_results(run.model.eval())
    if not run.best_weights:
        return last
    best = last.figures if is_best(run) else figures_of_best(run)
    measured = {f"best_{name}": value for name, value in best.items() if isinstance(value, int | float)}
    return FinalResults(last.figures | measured, last.files)


def is_best(run: Run) -> bool:
    """Whether the latest epoch is the best of its phase; the earliest of equal ones counts as the best."""
    *before, latest = run.history[run.phase_start :]
    return not before or latest < min(before)


def figures_of_best(run: Run) -> dict[str, Any]:
    """The figures of the best epoch's model; the run's model keeps its weights."""
    last = {name: tensor.detach().clone() for name, tensor in run.model.state_dict().items()}
    try:
        run.model.load_state_dict(run.best_weights)
        return run.task.final_results(run.model).figures
    finally:
        run.model.load_state_dict(last)
