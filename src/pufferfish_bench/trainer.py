"""One loop for every method. Nothing here knows a method, a model or a dataset by name."""

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pufferfish_bench import counting, machine, snapshot, surgery
from pufferfish_bench.checkpoints import Checkpoints
from pufferfish_bench.core import Method, Observer, Reducer, Run, Tally, Task
from pufferfish_bench.errors import InputError
from pufferfish_bench.precision import FullPrecision
from pufferfish_bench.resume import resumed
from pufferfish_bench.schedules import Clock
from pufferfish_bench.stopwatch import Stopwatch, over_ranks
from pufferfish_bench.world import World

CHECK_EVERY = 50  # steps between looks at the loss on a GPU, where each look waits for it


class Stopped(Exception):
    """Training was asked to stop and has left a checkpoint."""


class Trainer:
    """Takes a model through the phases of a method, epoch by epoch, and can be stopped and resumed at any step."""

    def __init__(
        self,
        *,
        method: Method,
        epochs: int,
        seed: int,
        sample: Sequence[Tensor],
        optimizer: Callable[[nn.Module], Optimizer],
        reducer: Callable[..., Reducer],
        schedule: Callable[..., float],  # of a Clock, and of settings that a phase has others for
        precision: FullPrecision,
        clip_norm: float | None,
        wrap: Callable[[nn.Module], nn.Module],
        untimed_steps: int,
        checkpoints: Checkpoints,
        checkpoint_every: int,
        observers: Sequence[Observer],
        stop_requested: Callable[[], bool],
    ):
        self.method = method
        self.epochs = epochs
        self.seed = seed
        self.sample = sample  # one sample as the model takes it, for counting
        self.optimizer = optimizer
        self.reducer = reducer
        self.schedule = schedule
        self.precision = precision
        self.clip_norm = clip_norm
        self.wrap = wrap
        self.untimed_steps = untimed_steps
        self.checkpoints = checkpoints
        self.checkpoint_every = checkpoint_every
        self.observers = observers
        self.stop_requested = stop_requested

    def fit(self, *, world: World, task: Task, model: nn.Module) -> Run:
        """Train to the end of the plan, from the newest checkpoint if there is one."""
        run = self.fresh(world, task, model)
        surgery.agree(run, "after the model was built: are the settings and the code the same everywhere?")
        run = resumed(
            run,
            checkpoints=self.checkpoints,
            method=self.method,
            precision=self.precision,
            fresh=partial(self.fresh, world, task),
            begin=self.begin,
        )
        try:
            self.tell("run_started", run)
            for index in range(run.phase_index, len(run.plan)):
                run.phase_index = index
                if len(run.operations) == index:  # a checkpoint is inside a phase
                    self.enter_phase(run)
                self.train_phase(run)
            surgery.agree(run, "at the end")
            with torch.no_grad(), self.precision.autocast():
                run.conclusion = run.task.conclude(run.model.eval())
            self.tell("run_ended", run)
            world.barrier()
        finally:
            for observer in reversed(self.observers):
                observer.closed()
        return run

    def fresh(self, world: World, task: Task, model: nn.Module) -> Run:
        watch = Stopwatch(device=world.device, untimed_steps=self.untimed_steps)
        return Run(world=world, task=task, model=model, watch=watch, plan=self.method.plan(self.epochs, model))

    def enter_phase(self, run: Run) -> None:
        """Bring the model to the start of a phase."""
        run.phase_start = run.epoch
        self.seed_all(run, moment="phase")
        carried = surgery.operate(run)
        self.let_go(run)
        self.begin(run)
        surgery.carry(run, carried)

    def let_go(self, run: Run) -> None:
        """Nothing holds on to parameters that are gone, or to the buffers of their gradients."""
        run.optimizer = run.reducer = run.module = None
        run.model.zero_grad(set_to_none=True)

    def begin(self, run: Run) -> None:
        """A fresh optimizer and a fresh reducer over the parameters that now exist."""
        run.optimizer = self.optimizer(run.model)
        run.reducer = (run.phase.reducer or self.reducer)(world=run.world, watch=run.watch)
        run.module = run.reducer.attach(self.wrap(run.model))
        run.parameters = counting.parameters(run.model)
        run.trainable_parameters = counting.trainable_parameters(run.model)
        run.macs = counting.macs(run.model, *self.sample)[""]
        run.watch.phase_started()
        machine.forget_peak_memory(run.world.device)

    def train_phase(self, run: Run) -> None:
        self.tell("phase_started", run)
        while run.epoch < run.phase.epochs.stop and not (run.phase.until and run.phase.until(run)):
            row = self.train_epoch(run)
            self.tell("epoch_ended", run, row)
            if run.epoch % self.checkpoint_every == 0:
                self.save(run)
        if run.epoch % self.checkpoint_every:
            self.save(run)  # a phase ends with a checkpoint

    def train_epoch(self, run: Run) -> dict[str, Any]:
        """Train one epoch, or what is left of it; return its row of the record."""
        epoch, steps = run.epoch, run.task.steps(run.epoch)
        if run.step == 0:
            self.seed_all(run, moment="epoch")
        run.model.train()
        with closing(run.task.batches(epoch, run.step)) as batches:
            while run.step < steps:
                with run.watch.step():
                    self.train_step(run, batches, steps)
                run.step += 1
                self.tell("step_ended", run)
                stop = self.time_to_stop(run, steps)
                if run.world.device.type == "cpu" or stop or run.step % CHECK_EVERY == 0 or run.step == steps:
                    self.check_loss(run)
                if stop:
                    self.stop(run)
        start = time.perf_counter()
        metrics = self.evaluate(run)
        evaluation_seconds = time.perf_counter() - start
        own_seconds, timed_steps = run.watch.take()
        seconds = over_ranks(run.world.gather(own_seconds))
        loss = self.mean_loss(run)
        if not all(math.isfinite(value) for value in metrics.values()):
            self.refuse_diverged(run, step=steps - 1)
        row = {
            "phase": run.phase.name,
            "epoch": epoch,
            "loss": loss,
            **run.task.training_figures(loss),
            **metrics,
            **self.method.after_epoch(run),
            "learning_rate": run.learning_rate,
            "bytes_sent": run.tally.bytes_sent,
            "messages": run.tally.messages,
            "steps": steps,
            "timed_steps": timed_steps,
            "seconds": sum(value for name, value in seconds.items() if name.startswith("seconds_")),
            **seconds,
            "evaluation_seconds": evaluation_seconds,
            "parameters": run.parameters,
            "trainable_parameters": run.trainable_parameters,
            "macs": run.macs,
            "peak_memory": machine.peak_memory(run.world.device),
        }
        value = metrics[run.task.metric]
        run.history.append(-value if run.task.higher_is_better else value)
        run.epoch, run.step, run.tally = epoch + 1, 0, Tally()
        return row

    def train_step(self, run: Run, batches: Any, steps: int) -> None:
        """One step, as in the paper's algorithm box."""
        watch = run.watch
        start = run.phase_start if run.phase.restart else 0
        clock = Clock(run.epoch - start, run.step, steps, run.phase_start - start, run.history[start:])
        run.learning_rate = self.schedule(clock, **run.phase.schedule)
        for group in run.optimizer.param_groups:
            group["lr"] = run.learning_rate
        with watch("data"):
            batch = next(batches)
        with watch("forward"), self.precision.autocast():
            loss = run.task.loss(run.module, batch)
        with watch("backward"):
            run.reducer.clear(run.optimizer)
            self.precision.backward(loss)
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
        run.tally.add(loss, run.task.count(batch), messages)

    def evaluate(self, run: Run) -> dict[str, float]:
        """The figures of the model as it is on all ranks, the same on all ranks."""

        def module(*inputs: Any) -> Any:
            # an evaluation may take minutes, and a resume begins it anew; several ranks are not at the same place in it
            if run.world.size == 1 and self.stop_requested():
                self.stop(run)
            self.tell("evaluation_step", run)
            return run.module(*inputs)

        self.tell("evaluation_started", run)
        run.reducer.settle(run.model)
        run.model.eval()
        with torch.no_grad(), self.precision.autocast():
            return run.world.share(run.task.evaluate(module))

    def mean_loss(self, run: Run) -> float:
        """Of all ranks in this epoch."""
        sums = torch.tensor([run.tally.loss_sum, run.tally.count], dtype=torch.float64, device=run.world.device)
        run.world.allreduce(sums)
        return float(sums[0] / sums[1])

    def time_to_stop(self, run: Run, steps: int) -> bool:
        """Whether to stop after this step, on all ranks; asked only where no rank can be two questions ahead of another."""
        wish = self.stop_requested()
        if run.world.size == 1:
            return wish
        if run.step != steps:  # an epoch's end is always asked: the ranks have met in the evaluation of the one before
            if not run.reducer.in_step:
                return False
            if run.world.device.type == "cuda" and run.step % CHECK_EVERY:
                return False
        run.world.synchronise()  # the host runs ahead of a GPU: that has to have met the others in this step
        return run.world.all_stop(wish)

    def save(self, run: Run) -> None:
        self.checkpoints.save(*snapshot.take(run, self.method, self.precision))

    def stop(self, run: Run) -> None:
        self.save(run)
        raise Stopped

    def seed_all(self, run: Run, *, moment: str) -> None:
        """Randomness is a function of the seed, the rank and the moment, whatever was drawn before."""
        words = f"{self.seed} {run.world.rank} {moment} {run.epoch}"
        torch.manual_seed(int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") >> 1)

    def check_loss(self, run: Run) -> None:
        bad = run.tally.first_bad_step()
        if bad is not None:
            self.refuse_diverged(run, step=bad)

    def refuse_diverged(self, run: Run, *, step: int) -> None:
        kept = self.checkpoints.paths()
        raise InputError(
            f"the loss is not finite at step {step + 1} of epoch {run.epoch + 1} (phase {run.phase.name}, learning rate "
            f"{run.learning_rate:g}); try a lower schedule.learning_rate{self.precision.remedy}. "
            + (f"The last good checkpoint is kept: {kept[-1]}" if kept else "There was no checkpoint yet.")
        )

    def tell(self, event: str, *arguments: Any) -> None:
        for observer in self.observers:
            getattr(observer, event)(*arguments)
