"""A table of the network lab: its cells are run over real links, once, and the report draws them."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pufferfish_bench.cli.reproduce import Options, reproduce
from pufferfish_bench.paper import tables
from pufferfish_bench.paper.cells import LabRun
from pufferfish_bench.records.files import RUN, read_json

CONTENT = {
    "title": "", "seeds": 1, "kind": "lab", "picture": "lab", "figures": {"seconds_per_epoch": None},
    "common": [
        "model=resnet18", "model.net.width=0.05", "epochs=1", "dataset.test_images=10", "batch_size=8", "untimed_steps=1",
        "measure_wait=true",
    ],
    "cells": {"vanilla": {"overrides": ["method=vanilla"]}},
    "over": {
        "2hosts_1gbit": {"workers": 2, "cap": "1gbit", "overrides": ["dataset.train_images=48"]},
        "2hosts_20mbit": {"workers": 2, "cap": "20mbit", "overrides": ["dataset.train_images=48"]},
    },
}  # fmt: skip


@pytest.mark.usefixtures("lab")
def test_a_cell_of_the_lab_is_run_once_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.chdir(tmp_path)
    OmegaConf.save(OmegaConf.create(CONTENT), tmp_path / "figure1_lab.yaml")
    monkeypatch.setattr(tables, "folder", lambda: tmp_path)
    for cell in tables.read("figure1_lab", "smoke").cells:
        assert isinstance(cell, LabRun)
    assert reproduce(["figure1_lab"], profile="smoke", options=Options(estimate=False)) == 0
    assert "run 1 of 2: figure1_lab/vanilla_2hosts_1gbit/seed1" in capsys.readouterr().out
    record = read_json(tmp_path / "results/records/smoke/figure1_lab/vanilla_2hosts_1gbit/seed1" / RUN)
    assert (record["network"]["hosts"], record["network"]["cap_bits_per_second"]) == (2, 10**9)
    made = {path.name for path in (tmp_path / "results/figures/smoke").iterdir()}
    endings = (".md", "-bandwidth.svg", "-breakdown.svg", "-whatif.md", "-whatif-workers.svg")
    assert {f"figure1_lab{ending}" for ending in endings} <= made
    table = (tmp_path / "results/figures/smoke/figure1_lab.md").read_text()
    times = re.findall(r"vanilla 2hosts \w+ \| seconds per epoch \|  \| ([\d.]+)", table)
    assert float(times[1]) > float(times[0])  # the slower link
    assert reproduce(["figure1_lab"], profile="smoke", options=Options(estimate=False)) == 0
    assert "0 of 2 runs are missing" in capsys.readouterr().out
