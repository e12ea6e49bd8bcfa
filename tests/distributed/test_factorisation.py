"""Layers shared out over ranks: the same factors as in one process, and errors that all ranks report."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed import factorisation
from pufferfish_bench.distributed.factorisation import share_out
from pufferfish_bench.distributed.world import World, single_process
from tests.support.nets import TO_FACTORISE, every_kind_of_layer
from tests.support.rank_experiments import FACTORISATION
from tests.support.ranks import Outcomes
from tests.support.solvers import Solvers

pytestmark = pytest.mark.xdist_group("workers")  # starts two processes


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return Outcomes(tmp_path_factory.mktemp("factorisation"), FACTORISATION)


@given(work=st.dictionaries(st.text(max_size=3), st.integers(1, 10**9), max_size=12), ranks=st.integers(1, 5))
def test_no_rank_has_more_than_the_mean_and_one_piece_of_work_and_the_order_does_not_matter(work: Mapping[str, int], ranks: int):
    workers = share_out(work, ranks)
    assert workers.keys() == work.keys()
    loads = [sum(work[name] for name in work if workers[name] == rank) for rank in range(ranks)]
    assert max(loads) <= sum(loads) / ranks + max(work.values(), default=0)
    assert share_out(dict(reversed(work.items())), ranks) == workers
    assert sum(load > 0 for load in loads) == min(ranks, len(work))


def test_one_process_factorises_as_the_library_does():
    ours, plain = every_kind_of_layer(), every_kind_of_layer()
    done = factorisation.factorise(single_process(), ours, TO_FACTORISE)
    expected = lowrank.factorise(plain, TO_FACTORISE)
    assert all(torch.equal(tensor, plain.state_dict()[name]) for name, tensor in ours.state_dict().items())
    assert {name: layer["energy"] for name, layer in done.items()} == {name: layer["energy"] for name, layer in expected.items()}


def test_two_ranks_get_the_factors_of_one_process_bit_for_bit(outcomes: Outcomes):
    model = every_kind_of_layer()
    lowrank.factorise(model, TO_FACTORISE)
    expected = model.state_dict()
    for rank in outcomes["shared_factorisation"]:
        assert rank["tensors"].keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in rank["tensors"].items())
        assert rank["channels_last"]


def test_every_layer_is_factorised_once_and_each_rank_does_a_part_of_the_work(outcomes: Outcomes):
    with Solvers() as solvers:
        lowrank.factorise(every_kind_of_layer(), TO_FACTORISE)
    one, other = (rank["solved"] for rank in outcomes["shared_factorisation"])
    assert sorted(one + other) == sorted(solvers.calls)
    work = [sum(math.prod(shape) for _, shape in solved) for solved in (one, other)]
    assert min(work) > 0.3 * sum(work)


def test_rank_energy_and_seconds_of_every_layer_are_recorded_and_equal_on_both_ranks(outcomes: Outcomes):
    one, other = (rank["done"] for rank in outcomes["shared_factorisation"])
    assert one == other
    assert {name: layer["rank"] for name, layer in one.items()} == TO_FACTORISE
    assert list(one) == list(TO_FACTORISE)
    assert all(0 < layer["energy"] <= 1 and layer["seconds"] > 0 for layer in one.values())


def test_momentum_carried_over_the_switch_is_equal_on_both_ranks_and_a_resumed_run_ends_with_the_same_bits(outcomes: Outcomes):
    one, other = outcomes["carried_momentum"]
    assert {"conv2.u.weight", "conv2.v.weight", "fc1.u.weight", "fc1.v.weight", "fc1.v.bias", "norm.weight"} <= one[
        "momentum"
    ].keys()
    assert one["momentum"].keys() == other["momentum"].keys()
    assert all(torch.equal(buffer, other["momentum"][name]) for name, buffer in one["momentum"].items())
    assert one["operation"] == other["operation"]
    assert one["operation"]["layers"].keys() == {"conv2", "fc1"}
    assert one["hashes"] == other["hashes"]
    assert one["hashes"][0] == one["hashes"][1] is not None


@pytest.mark.parametrize("layer", ["conv2", "fc1"])  # each is factorised by another rank
def test_weights_that_are_not_finite_end_all_ranks_with_the_same_message(outcomes: Outcomes, layer: str):
    messages = outcomes[f"diverged-{layer}"]
    assert "the weights are not finite" in messages[0]
    assert messages[0] == messages[1]


class OtherRank(World):
    """One of two ranks; the other reports `theirs`."""

    theirs: tuple[dict, str | None]

    def gather(self, thing: Any) -> list[Any]:
        self.reported = thing
        return [thing, self.theirs]


def test_any_error_of_a_rank_is_reported_to_the_others_which_end_too(monkeypatch: pytest.MonkeyPatch):
    world = OtherRank(rank=0, size=2, device=torch.device("cpu"))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    world.theirs = ({}, None)

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "svd", fail)
        with pytest.raises(MemoryError):
            factorisation.factorise(world, model, {"0": 2, "1": 2})
    sentence = world.reported[1]
    assert sentence == "rank 0 could not factorise its layers (MemoryError: no memory left)"
    world.theirs = ({}, sentence.replace("rank 0", "rank 1"))
    with pytest.raises(InputError, match="rank 1 could not factorise its layers"):
        factorisation.factorise(world, model, {"0": 2, "1": 2})
