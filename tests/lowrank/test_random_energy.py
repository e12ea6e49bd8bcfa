"""The energy that truncation keeps of a random matrix, against random matrices."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench import lowrank
from pufferfish_bench.lowrank.lstm import LSTM
from pufferfish_bench.lowrank.random_energy import random_layer_energy

sizes = st.integers(1, 600)


@pytest.mark.parametrize("shape", [(64, 64), (64, 576), (576, 64), (128, 256), (32, 288), (300, 301)])
@pytest.mark.parametrize("ratio", [0.0625, 0.25, 0.5, 0.9])
def test_it_is_what_truncation_keeps_of_a_random_matrix(shape: tuple, ratio: float):
    rank = max(1, round(ratio * min(shape)))
    drawn = torch.randn(8, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    energies = torch.linalg.svdvals(drawn).square()
    kept = (energies[:, :rank].sum(1) / energies.sum(1)).mean()
    assert lowrank.random_energy(shape, rank) == pytest.approx(float(kept), abs=0.012)


def test_a_quarter_of_the_rank_keeps_far_more_than_a_quarter_by_chance():
    """0.61 of a square matrix, 0.37 of one that is nine times as wide, as that of a 3x3 convolution."""
    assert lowrank.random_energy((512, 512), 128) == pytest.approx(0.606, abs=0.02)
    assert lowrank.random_energy((64, 576), 16) == pytest.approx(0.37, abs=0.02)


@given(sizes, sizes, st.data())
def test_it_grows_with_the_rank_from_the_share_of_the_rank_to_one(rows: int, columns: int, data: st.DataObject):
    rank = data.draw(st.integers(1, min(rows, columns)))
    kept = lowrank.random_energy((rows, columns), rank)
    assert rank / min(rows, columns) - 1e-3 <= kept <= 1
    assert kept == lowrank.random_energy((columns, rows), rank)
    assert kept <= lowrank.random_energy((rows, columns), rank + 1) + 1e-9
    assert lowrank.random_energy((rows, columns), min(rows, columns)) == 1


@pytest.mark.parametrize(
    ("layer", "rank"), [(torch.nn.Linear(96, 64), 16), (torch.nn.Conv2d(32, 64, 3), 16), (LSTM(80, 64), 16)], ids=str
)
def test_a_layer_at_its_start_keeps_the_energy_of_a_random_one(layer: torch.nn.Module, rank: int):
    """The same by name, whatever the layer: uniform initial weights are random too."""
    torch.manual_seed(2)
    for parameter in layer.parameters():
        torch.nn.init.uniform_(parameter, -1, 1)
    done = lowrank.factorise(torch.nn.Sequential(layer), {"0": rank})["0"]
    assert done["random_energy"] == random_layer_energy(layer, rank)
    assert done["energy"] == pytest.approx(done["random_energy"], abs=0.02)
