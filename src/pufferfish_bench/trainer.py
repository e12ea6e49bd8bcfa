"""One training loop for every method. No method, model or data set is known here by name."""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.core import Method, Observer, Reducer, Run, Task
from pufferfish_bench.distributed import surgery
from pufferfish_bench.distributed.world import World
from pufferfish_bench.lowrank import counting
from pufferfish_bench.training import accumulation, best_model, memory, snapshot
from pufferfish_bench.training.checkpoints import Checkpoints
from pufferfish_bench.training.precision import FullPrecision
from pufferfish_bench.training.resume import resumed
from pufferfish_bench.training.schedules import Clock
from pufferfish_bench.training.stopwatch import Stopwatch, over_ranks
from pufferfish_bench.training.tally import Tally

CHECK_EVERY = 50  # steps between checks of the loss on a GPU, because each check waits for the GPU


class Stopped(Exception):
    """Training was asked to stop and has saved a checkpoint."""


class Trainer:
    """Trains a model through the phases of a method, epoch by epoch. It can be stopped and resumed at any step."""

    def __init__(
        self,
        *,
        method: Method,
        epochs: int,
        seed: int,
        sample: Sequence[Tensor],  # one input of the model, to count operations with
        optimizer: Callable[[nn.Module], Optimizer],
        reducer: Callable[..., Reducer],
        schedule: Callable[..., float],  # (clock, **settings that the phase replaces) -> learning rate
        precision: FullPrecision,
        accumulate: int,  # parts of a batch, whose gradients are computed one after the other
        clip_norm: float | None,
        wrap: Callable[[nn.Module], nn.Module],  # prepares a model for training: its memory format, torch.compile
        untimed_steps: int,
        checkpoints: Checkpoints,
        checkpoint_every: int,  # epochs
        observers: Sequence[Observer],
        stop_requested: Callable[[], bool],
    ):
        self.method = method
        self.epochs = epochs
        self.seed = seed
        self.sample = sample
        self.optimizer = optimizer
        self.reducer = reducer
        self.schedule = schedule
        self.precision = precision
        self.accumulate = accumulate
        self.clip_norm = clip_norm
        self.wrap = wrap
        self.untimed_steps = untimed_steps
        self.checkpoints = checkpoints
        self.checkpoint_every = checkpoint_every
        self.observers = observers
        self.stop_requested = stop_requested

    def fit(self, *, world: World, task: Task, model: nn.Module) -> Run:
        """Train all phases, starting from the newest checkpoint if there is one."""
        run = self.new_run(world, task, model)
        surgery.require_equal_weights(run, "after the model was built: are the settings and the code the same everywhere?")
        run = resumed(
            run,
            checkpoints=self.checkpoints,
            method=self.method,
            precision=self.precision,
            new_run=partial(self.new_run, world, task),
            prepare_phase=self.prepare_phase,
        )
        try:
            self.notify("run_started", run)
            for index in range(run.phase_index, len(run.plan)):
                run.phase_index = index
                if len(run.operations) == index:  # else the run resumes inside this phase
                    self.start_phase(run)
                self.train_phase(run)
            surgery.note_unequal_weights(run)
            with torch.no_grad(), self.precision.autocast():
                run.final_results = best_model.final_results(run)
            self.notify("run_ended", run)
            world.barrier()
        finally:
            for observer in reversed(self.observers):
                observer.closed()
        return run

    def new_run(self, world: World, task: Task, model: nn.Module) -> Run:
        watch = Stopwatch(device=world.device, untimed_steps=self.untimed_steps)
        plan = self.method.plan(self.epochs, model)
        return Run(world=world, task=task, model=model, watch=watch, tally=Tally(), plan=plan)

    def start_phase(self, run: Run) -> None:
        """Do the phase's surgery, then create its optimizer and its reducer."""
        run.phase_start = run.epoch
        self.seed_all(run, moment="phase")
        optimizer_state = surgery.operate(run)
        self.release_old_parameters(run)
        self.prepare_phase(run)
        surgery.load_optimizer_state(run, optimizer_state)
        self.method.phase_started(run)

    def release_old_parameters(self, run: Run) -> None:
        """Free the parameters that the surgery replaced, and the buffers of their gradients."""
        for name in ("optimizer", "reducer", "module"):
            vars(run).pop(name, None)
        run.model.zero_grad(set_to_none=True)

    def prepare_phase(self, run: Run) -> None:
        """Create a new optimizer and a new reducer for the model as it is now; also called when a run resumes."""
        module = self.wrap(run.model)  # first: the optimizer and the reducer depend on the memory format of the parameters
        run.optimizer = self.optimizer(run.model)
        run.reducer = (run.phase.reducer or self.reducer)(world=run.world, watch=run.watch)
        run.module = run.reducer.attach(module)
        run.parameters = counting.parameters(run.model)
        run.trainable_parameters = counting.trainable_parameters(run.model)
        run.macs = counting.macs(run.model, *self.sample)[""]
        run.watch.phase_started()
        memory.reset_peak_memory(run.world.device)

    def train_phase(self, run: Run) -> None:
        self.notify("phase_started", run)
        while run.epoch < run.phase.epochs.stop and not (run.phase.until and run.phase.until(run)):
            row = self.train_epoch(run)
            self.notify("epoch_ended", run, row)
            if run.epoch % self.checkpoint_every == 0:
                self.save(run)
        if run.epoch % self.checkpoint_every:
            self.save(run)  # a phase ends with a checkpoint

    def train_epoch(self, run: Run) -> dict[str, Any]:
        """Train and evaluate one epoch, or the rest of it after a resume; return its row of the record."""
        steps = run.task.steps(run.epoch)
        if run.step == 0:
            self.seed_all(run, moment="epoch")
        run.model.train()
        with closing(run.task.batches(run.epoch, run.step)) as batches:
            while run.step < steps:
                with run.watch.step():
                    self.train_step(run, batches, steps)
                run.step += 1
                self.notify("step_ended", run)
                stop = self.should_stop(run, steps)
                if run.world.device.type == "cpu" or stop or run.step % CHECK_EVERY == 0 or run.step == steps:
                    self.check_loss(run)
                if stop:
                    self.save_and_stop(run)
        row = self.epoch_row(run, steps)
        value = row[run.task.metric]
        run.history.append(-value if run.task.higher_is_better else value)
        best_model.keep_if_best(run)
        run.epoch, run.step, run.tally = run.epoch + 1, 0, Tally()
        return row

    def epoch_row(self, run: Run, steps: int) -> dict[str, Any]:
        """Evaluate the model; return the row of the record for this epoch."""
        start = time.perf_counter()
        metrics = self.evaluate(run)
        evaluation_seconds = time.perf_counter() - start
        own_seconds, timed_steps = run.watch.take()
        seconds = over_ranks(run.world.gather(own_seconds))
        loss = self.mean_loss(run)
        if not all(math.isfinite(value) for value in metrics.values()):
            self.raise_diverged(run, step=steps - 1)
        return {
            "phase": run.phase.name,
            "epoch": run.epoch,
            "loss": loss,
            **run.task.training_figures(loss),
            **metrics,
            **self.method.after_epoch(run),
            "learning_rate": run.learning_rate,
            "bytes_sent": run.tally.bytes_sent,
            "messages": run.tally.messages,
            "overlaps": run.reducer.overlaps,
            "steps": steps,
            "timed_steps": timed_steps,
            "seconds": sum(value for name, value in seconds.items() if name.startswith("seconds_")),
            **seconds,
            "evaluation_seconds": evaluation_seconds,
            "parameters": run.parameters,
            "trainable_parameters": run.trainable_parameters,
            "macs": run.macs,
            "peak_memory": memory.peak_memory(run.world.device),
        }

    def train_step(self, run: Run, batches: Iterator[Any], steps: int) -> None:
        """One optimizer step. Its sections are timed."""
        watch = run.watch
        run.learning_rate = self.learning_rate(run, steps)
        for group in run.optimizer.param_groups:
            group["lr"] = run.learning_rate
        with watch("data"):
            batch = next(batches)
        loss, count = accumulation.gradients(run, batch, self.accumulate, self.precision)
        messages = run.reducer.reduce()
        with watch("step"):
            self.precision.unscale(run.optimizer)
            if self.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(run.model.parameters(), self.clip_norm)
        with watch("method"):
            self.method.after_backward(run)
        with watch("step"):
            self.precision.step(run.optimizer)
        with watch("method"):
            self.method.after_step(run)
        run.tally.add(loss, count, messages)

    def learning_rate(self, run: Run, steps: int) -> float:
        start = run.phase_start if run.phase.restart else 0
        clock = Clock(run.epoch - start, run.step, steps, run.phase_start - start, run.history[start:])
        return self.schedule(clock, **run.phase.schedule)

    def evaluate(self, run: Run) -> dict[str, float]:
        """The metrics of the model, the same on all ranks."""

        def module(*inputs: Any) -> Any:
            # An evaluation may take minutes, and a resumed run repeats it. Several ranks are not at the same batch, so they
            # cannot stop here.
            if run.world.size == 1 and self.stop_requested():
                self.save_and_stop(run)
            self.notify("evaluation_step", run)
            return run.module(*inputs)

        self.notify("evaluation_started", run)
        run.reducer.sync_buffers(run.model)
        run.model.eval()
        with torch.no_grad(), self.precision.autocast():
            metrics: dict[str, float] = run.world.broadcast_object(run.task.evaluate(module))
        return metrics

    def mean_loss(self, run: Run) -> float:
        """The mean training loss of this epoch over all ranks."""
        totals = (run.tally.loss_sum, run.tally.count)  # plain numbers if the run resumed at the end of an epoch
        sums = torch.stack([torch.as_tensor(total, dtype=torch.float64, device=run.world.device) for total in totals])
        run.world.allreduce(sums)
        loss, count = run.world.on_host(sums).tolist()
        return loss / count if count else math.nan

    def should_stop(self, run: Run, steps: int) -> bool:
        """Whether all ranks stop after this step. Ranks ask at the same steps, between which each has waited for all others."""
        requested = self.stop_requested()
        if run.world.size == 1:
            return requested
        if run.step != steps:  # the end of an epoch qualifies: ranks waited for each other in the evaluation before
            if not run.reducer.synchronous:
                return False
            if run.world.device.type == "cuda" and run.step % CHECK_EVERY:
                return False
        run.world.synchronise()  # the host runs ahead of a GPU, which must have finished the collectives of this step
        return run.world.all_stop(requested)

    def save(self, run: Run) -> None:
        self.checkpoints.save(*snapshot.take(run, self.method, self.precision))

    def save_and_stop(self, run: Run) -> NoReturn:
        self.save(run)
        raise Stopped

    def seed_all(self, run: Run, *, moment: str) -> None:
        """Make randomness a function of the seed, the rank and the moment, whatever was drawn before."""
        words = f"{self.seed} {run.world.rank} {moment} {run.epoch}"
        torch.manual_seed(int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") >> 1)

    def check_loss(self, run: Run) -> None:
        bad = run.tally.first_bad_step(run.world)
        if bad is not None:
            self.raise_diverged(run, step=bad)

    def raise_diverged(self, run: Run, *, step: int) -> NoReturn:
        kept = self.checkpoints.paths()
        raise InputError(
            f"the loss is not finite at step {step + 1} of epoch {run.epoch + 1} (phase {run.phase.name}, learning rate "
            f"{run.learning_rate:g}); try a lower schedule.learning_rate{self.precision.remedy}. "
            + (f"The last good checkpoint is kept: {kept[-1]}" if kept else "There is no checkpoint yet.")
        )

    def notify(self, event: str, *arguments: Any) -> None:
        for observer in self.observers:
            getattr(observer, event)(*arguments)
