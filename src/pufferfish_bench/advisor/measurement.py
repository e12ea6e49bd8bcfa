"""Measures a model on this device: its layers, its whole step dense and factorised, and every reducer on its gradients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench import lowrank
from pufferfish_bench.advisor import batches, decisions, layer_times, method_costs, overrides, whole_step
from pufferfish_bench.advisor.copies import duplicate
from pufferfish_bench.advisor.decisions import Timing
from pufferfish_bench.advisor.layer_times import LayerTimes
from pufferfish_bench.advisor.method_costs import MakeReducer
from pufferfish_bench.advisor.overrides import Chosen
from pufferfish_bench.advisor.whole_step import Conditions, Stepper
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.bench import interleaved
from pufferfish_bench.config import parts, restore
from pufferfish_bench.config.build import build, sample_of, try_model
from pufferfish_bench.config.checks import check_groups
from pufferfish_bench.config.settings import plain
from pufferfish_bench.distributed.forecast import Method
from pufferfish_bench.distributed.world import World
from pufferfish_bench.lowrank import counting
from pufferfish_bench.lowrank.factorise import factored_layers
from pufferfish_bench.lowrank.kinds import kind_of_factored
from pufferfish_bench.records import reader
from pufferfish_bench.records.environment import environment
from pufferfish_bench.training import memory_format

FULL_RANK = "full-rank"


@dataclass(frozen=True)
class Subject:
    """The model to advise on, as a run would have it, and what a run would do with it."""

    model: nn.Module
    choice: lowrank.Choice  # the layers that method=pufferfish would factorise
    rank_ratio: float
    reducers: Mapping[str, MakeReducer]  # by key in conf/advise.yaml
    chosen: Mapping[str, Chosen]  # what each of them is
    has_momentum: bool  # whether the optimizer's config has a momentum
    channels_last: bool | str
    conditions: Conditions
    every_layer: bool = False  # Pufferfish factorises all layers of `choice`, also those that measured slower
    plan: decisions.Plan = field(default_factory=decisions.Plan)


def subject(config: Any, world: World, rounds: int, choices: Mapping[str, str]) -> Subject:
    """Build the model, the optimizer, a batch and the reducers from the settings and `choices` of groups, and check them."""
    chosen = overrides.chosen_reducers(plain(config.reducers), choices)
    parts.set_up_torch(config, world)
    precision = build("precision", config.precision)
    precision.prepare(world.device)
    check_groups(config, ("precision", "optimizer"))
    torch.manual_seed(config.seed)
    model = build("model", config.model).to(world.device)
    memory_format.prepare(model, world.device, config.channels_last)
    sample = [tensor.to(world.device) for tensor in sample_of(config)]
    try_model(lambda: counting.forward(model, *sample), sample)
    choice, rank_ratio = chosen_layers(config, model)
    conditions = Conditions(
        world=world, optimizer=build("optimizer", config.optimizer), precision=precision, clip_norm=config.clip_norm,
        loss=loss_of(config, model, sample, world), rounds=rounds,
    )  # fmt: skip
    return Subject(
        model=model,
        choice=choice,
        rank_ratio=rank_ratio,
        reducers={key: build("reducer", config.reducers[key]) for key in chosen},
        chosen=chosen,
        has_momentum="momentum" in config.optimizer,
        channels_last=config.channels_last,
        conditions=conditions,
        every_layer=config.layers == "all",
        plan=decisions.Plan(config.epochs, config.warmup_epochs),
    )


def chosen_layers(config: Any, model: nn.Module) -> tuple[lowrank.Choice, float]:
    """The layers that the settings factorise, and their rank ratio; none, with the reason, if there is nothing to factorise."""
    given = plain(config.model.get("low_rank"))
    if given is None:
        return lowrank.Choice({}, {"": "model.low_rank is not set, which says what to factorise"}), 1.0
    if not layer_times.factorable(model):
        return lowrank.Choice({}, {"": "no layer can be factorised"}), 1.0
    settings = lowrank.resolve(model, sample_of(config), lowrank.arguments(given))
    return lowrank.choose(model, **settings), settings["rank_ratio"]


def loss_of(config: Any, model: nn.Module, sample: Sequence[Tensor], world: World) -> batches.Loss:
    """The loss of a random batch, or of the first batch of the data set."""
    if config.batch == "task":
        task = build("dataset", config.dataset, world=world)
        task.prepare(model, sample)
        return batches.of_task(task)
    return batches.of_sample(
        sample, plain(config.dataset), batch_size=config.batch_size, length=config.length, model=model, device=world.device
    )  # fmt: skip


def measure(who: Subject, ratios: Sequence[float], batch_size: int, say: Callable[[str], None]) -> dict[str, Any]:
    """All measurements as plain data: layers, steps, methods; the methods begin with vanilla training."""
    how = who.conditions
    say("measuring the layers that can be factorised")
    layers = layer_times.measure(who.model, who.choice, ratios, how, who.channels_last)
    faster = decisions.recommended_ranks(who.choice.ranks, {layer.name: layer.ranks for layer in layers})
    ranks = who.choice.ranks if who.every_layer else faster
    nets = {FULL_RANK: who.model} | ({decisions.PUFFERFISH: factorised(who, ranks)} if ranks else {})
    say("measuring whole steps")
    steppers = {name: Stepper(net, who.reducers["allreduce"], how) for name, net in nets.items()}
    steps = whole_step.measure(steppers, how)
    whole = step_ratio(steppers, how)
    noise = {FULL_RANK: step_noise(steppers[FULL_RANK], how)}
    if whole:  # the ratio of each round, which other load on the machine changes less than the medians
        noise[decisions.PUFFERFISH] = whole.noise
        seconds = whole.ratio * whole_step.computing(steps[FULL_RANK])
        steps[decisions.PUFFERFISH] = whole_step.as_long_as(steps[decisions.PUFFERFISH], seconds)
    states = {name: method_costs.state_bytes(stepper.optimizer) for name, stepper in steppers.items()}
    gradients = {name: method_costs.gradients_of(net) for name, net in nets.items()}
    del steppers  # and their buffers
    say("measuring the reducers")
    chosen = layer_overrides(who, ranks, layers)
    methods = [
        method
        for name, net in nets.items()
        for method in methods_of(who, name, net, gradients.pop(name), steps[name], states[name], batch_size, chosen)
    ]
    methods = [as_in_a_run(each, methods, noise, who.plan) for each in methods]
    dense = sum(layer.dense * layer.calls for layer in layers)
    return {
        "batch_size": batch_size,
        "processes": how.world.size,
        "rounds": how.rounds,
        "epochs": who.plan.epochs,
        "warmup_epochs": who.plan.warmup_epochs,
        "ratios": list(ratios),
        "layers": layer_rows(who, layers),
        "includes_slower_layers": ranks != faster,
        "left": {name or "the model itself": reason for name, reason in who.choice.left.items()},
        "parameters": {name: counting.parameters(net) for name, net in nets.items()},
        "steps": steps,
        "noise": noise,
        "step_ratio": whole and {"ratio": whole.ratio, "noise": whole.noise, "faster": whole.faster},
        "rest_of_the_step": sum(seconds for section, seconds in steps[FULL_RANK].items() if section != "wait") - dense,
        "methods": [method.as_data() for method in methods],
        **environment(how.device),
    }


def step_ratio(steppers: Mapping[str, Stepper], how: Conditions) -> Timing | None:
    """The computation of a step of the factorised network compared with the full-rank one, round by round."""
    if decisions.PUFFERFISH not in steppers:
        return None
    own, dense = ([whole_step.computing(step) for step in steppers[name].taken[1:]] for name in (decisions.PUFFERFISH, FULL_RANK))
    ratios = interleaved.ratios(own, dense)
    figures = {"seconds": median(own), "ratio": median(ratios), "noise": layer_times.noise(ratios)}
    return Timing(**whole_step.over_ranks(how.world, figures))


def step_noise(stepper: Stepper, how: Conditions) -> float:
    """How much the computation of a step varies: two standard errors of the median, relative to it."""
    taken = [whole_step.computing(step) for step in stepper.taken[1:]]
    return whole_step.over_ranks(how.world, {"noise": layer_times.noise([each / median(taken) for each in taken])})["noise"]


def as_in_a_run(method: Method, methods: Sequence[Method], noise: Mapping[str, float], plan: decisions.Plan) -> Method:
    """A method with the noise of its step, and the memory of the larger phase: Pufferfish's warm-up has the full-rank network."""
    if method.model != decisions.PUFFERFISH:
        return method
    [before] = [each.memory for each in methods if each.model == FULL_RANK and each.reducer == method.reducer]
    memory = max(method.memory, before) if plan.warmup_epochs else method.memory
    return replace(method, noise=noise[method.model], memory=memory)


def factorised(who: Subject, ranks: Mapping[str, int]) -> nn.Module:
    """The network that Pufferfish would train after its switch, with random factors."""
    hybrid = duplicate(who.model)
    lowrank.restructure(hybrid, ranks)
    memory_format.prepare(hybrid, who.conditions.device, who.channels_last)
    return hybrid


def methods_of(
    who: Subject, name: str, net: nn.Module, gradients: Sequence[Tensor], step: Mapping[str, float], state: int, batch_size: int,
    layers: Sequence[str],
) -> list[Method]:  # fmt: skip
    """Every reducer on one network; a reducer that does not work with loss scaling is left out where the loss is scaled."""
    how, found = who.conditions, []
    costs: dict[str, method_costs.Costs] = {}
    for key, make in who.reducers.items():
        chosen = who.chosen[key]
        label = chosen.label
        if key == "ddp":
            costs[key] = method_costs.of_ddp(net, costs["allreduce"])
        elif how.precision.scales and not make(world=how.world, watch=None).supports_loss_scaling:
            continue
        else:
            costs[key] = method_costs.measure(f"{name}, {label}", make, net, gradients, how)
        own = costs[key]
        low_rank = name == decisions.PUFFERFISH
        plain_label = decisions.PUFFERFISH if low_rank else decisions.VANILLA
        found.append(
            Method(
                label=plain_label if key == "allreduce" else f"{decisions.PUFFERFISH} + {label}" if low_rank else label,
                model=name,
                reducer=label,
                seconds=step,
                encode=own.encode,
                decode=own.decode,
                decode_a_worker=own.decode_a_worker,
                messages=own.messages,
                overlapped=key == "ddp",
                # SGD without momentum has no state
                memory=method_costs.parameter_bytes(net) + own.buffers + (0 if chosen.other_optimizer else state),
                batch_size=batch_size,
                overrides=(
                    "method=pufferfish" if low_rank else "method=vanilla",
                    *chosen.words(has_momentum=who.has_momentum),
                    *(layers if low_rank else ()),
                ),
                other_optimizer=chosen.other_optimizer,
                may_cost_accuracy=chosen.may_cost_accuracy,
            )
        )
    return found


def layer_overrides(who: Subject, ranks: Mapping[str, int], layers: Sequence[LayerTimes]) -> tuple[str, ...]:
    names = layer_times.factorable(who.model)
    usual = {name: lowrank.rank_of(lowrank.matrix_shape(lowrank.get_layer(who.model, name)), who.rank_ratio) for name in names}
    return overrides.of_layers(ranks, who.choice.ranks, names, usual)


def layer_rows(who: Subject, layers: Sequence[LayerTimes]) -> list[dict[str, Any]]:
    """The layers that can be factorised as plain data; those that a forward pass does not call have no times."""
    measured = {layer.name: layer for layer in layers}
    rows = []
    for name in dict.fromkeys([*layer_times.factorable(who.model), *who.choice.ranks]):
        layer, rank, its = lowrank.get_layer(who.model, name), who.choice.ranks.get(name), measured.get(name)
        decision = decisions.decide(rank, its.ranks if its else {})
        after = lowrank.weights_before_and_after(layer, rank)[1] if rank is not None else None
        ranks = {str(r): {"seconds": t.seconds, "ratio": t.ratio, "noise": t.noise} for r, t in its.ranks.items()} if its else {}
        rows.append({
            "layer": name, "kind": type(layer).__name__, "shape": list(lowrank.matrix_shape(layer)),
            "input": list(its.input) if its else None, "calls": its.calls if its else 0, "weights": layer_times.weights(layer),
            "rank": rank, "weights_at_rank": after, "seconds": its.dense if its else None, "ranks": ranks,
            "factor": decision.factor, "advice": decision.words,
        })  # fmt: skip
    return rows


def stable_ranks(directory: Path, who: Subject, target: str) -> dict[str, dict[str, float]]:
    """The stable rank of each layer of a trained model, by name. `target` is what the user's own settings build.

    A layer that the run had factorised also has the rank to which its weights were truncated: its stable rank cannot exceed it.
    """
    record = reader.read_run(directory)
    with reader.asking(directory):
        trained = restore.restored_model(directory, record, [target])
    truncated = {name: rank_in(layer) for name, layer in factored_layers(trained)}
    lowrank.merge(trained)
    found: dict[str, dict[str, float]] = {}
    for name in layer_times.factorable(who.model):
        try:
            layer, own = lowrank.get_layer(trained, name), lowrank.get_layer(who.model, name)
        except (AttributeError, TypeError):
            raise InputError(f"the run in {directory} has no layer {name}: run= must name a run of the same model") from None
        if lowrank.matrix_shape(layer) != lowrank.matrix_shape(own):
            raise InputError(
                f"{name} is {lowrank.matrix_shape(layer)} in {directory}, but {lowrank.matrix_shape(own)} here: "
                "give the settings of the run, its profile for example"
            )
        found[name] = {"stable_rank": lowrank.stable_rank(layer)}
        if name in truncated:
            found[name]["truncated_to"] = truncated[name]
    return found


def rank_in(layer: lowrank.FactoredLayer) -> int:
    """The rank of a low-rank layer."""
    u, _ = next(iter(kind_of_factored(layer).factors(layer).values()))
    return int(u.shape[0])
