"""Several real processes that train together: what they agree on, what they send, and what happens when one goes."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from pufferfish_bench.records import EPOCHS, RUN, read_json, read_rows
from pufferfish_bench.world import alone
from tests import ranks
from tests.conftest import REPOSITORY, Command, TinyNet
from tests.test_commands import METHODS, SMALL_TEXT, assert_same_run
from tests.test_reducers import attached

pytestmark = pytest.mark.xdist_group("workers")  # they share what two ranks have found, and would only wait for each other

RANKS = 2
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))
TINY = ("profile=smoke", "model.width=0.05", "dataset.train_images=48", "dataset.test_images=10", "batch_size=8", "epochs=2")


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    return {key: value for key, value in os.environ.items() if key != "PUFFERFISH_DATA"} | {"PYTHONPATH": paths}


def together(folder: Path, *words: str) -> subprocess.CompletedProcess:
    """Run a module of Python in two ranks to its end."""
    return subprocess.run(
        [*TORCHRUN, "-m", *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=300
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the experiments of ranks.py have been made by two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    done = together(folder, "tests.ranks", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """What each rank found."""
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(RANKS)]


def reductions(found: list[dict[str, Any]], name: str) -> list[tuple[list[dict], dict]]:
    """For each step of a reducer the gradients that the ranks had, and what all were left with."""
    steps = zip(*(rank["one_reduction"][name]["steps"] for rank in found), strict=True)
    return [([step["given"] for step in both], both[0]["left"]) for both in steps]


@pytest.mark.parametrize("name", [name for name in ranks.REDUCERS if not name.startswith("ddp") and name != "none"])
def test_all_ranks_are_left_with_the_same_gradients(found, name: str):
    for step in zip(*(rank["one_reduction"][name]["steps"] for rank in found), strict=True):
        assert all(torch.equal(step[0]["left"][key], other["left"][key]) for other in step for key in step[0]["left"])


@pytest.mark.parametrize(("name", "tolerance"), [("allreduce", 1e-7), ("fp16", 2e-3), ("bf16", 2e-2)])
def test_gradients_become_their_mean(found, name: str, tolerance: float):
    for given, left in reductions(found, name):
        for key, gradient in left.items():
            assert gradient == pytest.approx(torch.stack([rank[key] for rank in given]).mean(0), abs=tolerance, rel=tolerance)


def test_without_communication_gradients_stay_and_nothing_is_sent(found):
    for rank in found:
        for step in rank["one_reduction"]["none"]["steps"]:
            assert step["messages"] == []
            assert all(torch.equal(step["given"][key], step["left"][key]) for key in step["given"])


def test_signum_is_the_majority_of_the_signs_of_local_averages(found):
    steps = reductions(found, "signum")
    averages = [dict(rank) for rank in steps[0][0]]
    for number, (given, left) in enumerate(steps):
        if number:
            averages = [
                {key: 0.9 * average[key] + 0.1 * rank[key] for key in rank} for average, rank in zip(averages, given, strict=True)
            ]
        for key, vote in left.items():
            assert torch.equal(vote, sum(average[key].sign() for average in averages).sign())


def test_powersgd_is_the_algorithm_of_its_paper(found):
    model = TinyNet()
    reducer = attached("powersgd", model)
    names = {id(p): name for name, p in model.named_parameters()}
    place, starts = 0, {}
    for parameter in reducer.parameters:
        if parameter.ndim > 1:
            columns, rank = parameter[0].numel(), min(len(parameter), parameter[0].numel(), reducer.rank)
            starts[names[id(parameter)]] = reducer.second[place : place + columns * rank].view(columns, rank)
            place += columns * rank
    errors = [{name: torch.zeros(len(model.get_parameter(name)), len(q)) for name, q in starts.items()} for _ in range(RANKS)]
    for given, left in reductions(found, "powersgd"):
        for name, q in starts.items():
            matrices = [rank[name].flatten(1) + error[name] for rank, error in zip(given, errors, strict=True)]
            p, _ = torch.linalg.qr(sum(matrix @ q for matrix in matrices) / RANKS)
            starts[name] = sum(matrix.t() @ p for matrix in matrices) / RANKS
            approximation = p @ starts[name].t()
            assert left[name].flatten(1) == pytest.approx(approximation, abs=1e-4)
            for matrix, error in zip(matrices, errors, strict=True):
                error[name] = matrix - approximation
        for name in set(left) - set(starts):  # vectors go as they are
            assert left[name] == pytest.approx(sum(rank[name] for rank in given) / RANKS, abs=1e-6)


def test_columns_of_powersgd_that_died_are_drawn_again_alike_on_all_ranks_and_nothing_is_lost(found):
    ours = [rank["died_and_reborn"] for rank in found]
    assert torch.equal(ours[0]["q"], ours[1]["q"])
    for one, other in zip(ours[0]["left"], ours[1]["left"], strict=True):
        assert torch.equal(one, other)
    assert not ours[0]["left"][0].any()
    assert all(step.norm() > 1 for step in ours[0]["left"][1:])
    sums = [sum(rank["given"]) - rank["error"] for rank in ours]
    assert sum(ours[0]["left"]) == pytest.approx(sum(sums) / RANKS, abs=1e-3)  # what is not sent yet is held


def test_the_bytes_sent_are_those_of_theory(found):
    parameters = dict(TinyNet().named_parameters())
    count = sum(p.numel() for p in parameters.values())
    matrices = [(len(p), p[0].numel()) for p in parameters.values() if p.ndim > 1]
    vectors = sum(p.numel() for p in parameters.values() if p.ndim == 1)
    theory = {
        "allreduce": [("allreduce", 4 * count)],
        "fp16": [("allreduce", 2 * count)],
        "bf16": [("allreduce", 2 * count)],
        "none": [],
        "powersgd": [
            ("allreduce", 4 * (vectors + sum(rows * min(2, rows, columns) for rows, columns in matrices))),
            ("allreduce", 4 * sum(columns * min(2, rows, columns) for rows, columns in matrices)),
        ],
        "sbq": [("allgather", 8 + -(-count // 8))],
        "signum": [("allgather", -(-count // 8))],
        "topk": [("allgather", 8 * max(1, int(0.01 * count)))],
    }
    for rank in found:
        sent = {name: [step["messages"] for step in told["steps"]] for name, told in rank["one_reduction"].items()}
        assert sent == {name: [messages] * 2 for name, messages in theory.items()}


def test_two_ranks_take_the_steps_of_one_with_the_joined_batch_and_both_engines_agree(found, tmp_path: Path):
    one = ranks.train(alone(), tmp_path, reducer=ranks.reducer_named("allreduce"), model=ranks.Plain, images=48)
    for weights in found[0]["joined_batches"].values():
        assert all(tensor == pytest.approx(weights[name], abs=1e-6) for name, tensor in one.model.state_dict().items())


def test_a_run_that_one_rank_stops_is_resumed_to_the_same_bits_by_every_reducer(found):
    assert found[0]["resumed"] == found[1]["resumed"]
    for name, hashes in found[0]["resumed"].items():
        assert len(set(hashes)) == 1, name


def test_pruning_runs_of_two_ranks_resume_to_the_same_bits(found):
    assert found[0]["pruned"] == found[1]["pruned"]
    for name, hashes in found[0]["pruned"].items():
        assert len(set(hashes)) == 1, name


def test_a_rank_with_other_weights_is_named(found):
    assert all("the weights of rank 1 are not those of rank 0" in rank["disagreement"] for rank in found)


def test_after_the_switch_only_the_low_rank_net_is_alive_under_ddp(found):
    for rank in found:
        weighed = rank["freed"]
        assert weighed["alive"]["low_rank"] - weighed["before"] == weighed["low_rank"]
        assert weighed["alive"]["low_rank"] < weighed["alive"]["warmup"]


def test_the_sections_of_all_ranks_add_up_and_lie_between_the_extremes(folder: Path):
    rows = read_rows(folder / "powersgd-whole" / EPOCHS)
    for row in rows:
        sections = {key.removeprefix("seconds_"): value for key, value in row.items() if key.startswith("seconds_")}
        assert {"data", "forward", "backward", "encode", "wait", "communicate", "decode", "step"} <= set(sections)
        assert sum(sections.values()) == pytest.approx(row["seconds"])
        for name, mean in sections.items():
            assert row[f"fastest_{name}"] - 1e-9 <= mean <= row[f"slowest_{name}"] + 1e-9
        assert row["bytes_sent"] == row["steps"] * sum(size for _, size in row["messages"])


@pytest.mark.parametrize(("name", "size"), [("ddp", 4), ("ddp_fp16", 2), ("ddp_bf16", 2)])
def test_what_ddp_sends_is_every_gradient_once(folder: Path, name: str, size: int):
    for row in read_rows(folder / f"{name}-whole" / EPOCHS):
        assert sum(sent for _, sent in row["messages"]) == size * row["parameters"]
        assert row["seconds_communicate"] > 0


def test_torchs_powersgd_sends_what_it_cannot_compress_then_two_thin_matrices(folder: Path):
    row = read_rows(folder / "ddp_powersgd-whole" / EPOCHS)[0]
    shapes = [(len(p), p[0].numel()) for p in TinyNet().parameters() if p.ndim > 1]
    compressed = [(rows, columns) for rows, columns in shapes if 2 * 2 * (rows + columns) < rows * columns]  # torch's own rule
    sizes = [sent for _, sent in row["messages"]]
    assert len(sizes) == 3  # one bucket
    assert sizes[1:] == [4 * 2 * sum(rows for rows, _ in compressed), 4 * 2 * sum(columns for _, columns in compressed)]
    left = row["parameters"] - sum(rows * columns for rows, columns in compressed)
    assert sizes[0] == 4 * left


def test_ranks_that_go_their_own_ways_stop_together_where_an_epoch_ends(found):
    assert all(rank["silent_stop"] == ["epoch00001-step0000007.pt"] for rank in found)  # judged after the resume


def test_checkpoints_that_not_all_ranks_have_are_told_and_nothing_is_thrown_away(found):
    for rank in found:
        assert "no checkpoint" in rank["unequal"]
        assert "none for rank 1" in rank["unequal"]


def test_a_checkpoint_that_does_not_fit_on_one_rank_is_used_by_none_and_the_one_before_it_by_all(found):
    for (whole, stopped, resumed), aside in (rank["foreign"] for rank in found):
        assert stopped is None
        assert resumed == whole
        assert aside == ["epoch00001-step0000003.damaged"]


def test_a_first_checkpoint_that_a_kill_left_to_some_ranks_is_none(found):
    assert [tuple(rank["cut_short"]) for rank in found] == [(None, [])] * RANKS


def test_every_method_trains_in_two_ranks(tmp_path: Path):
    done = together(tmp_path, "pufferfish_bench", "--multirun", f"method={','.join(METHODS)}", *TINY, "run_root=runs")
    assert done.returncode == 0, done.stderr
    runs = [read_json(path) for path in (tmp_path / "runs").glob(f"*/{RUN}")]
    assert len(runs) == len(METHODS)
    assert all("finished" in run and run["world_size"] == run["hardware"]["workers"] == RANKS for run in runs)


def test_pufferfish_trains_with_every_reducer_that_is_no_method_and_with_another_in_the_warmup(tmp_path: Path):
    others = [name for name in ranks.REDUCERS if name not in METHODS]
    words = ("--multirun", "method=pufferfish", *TINY, "run_root=runs", "method.warmup_reducer=powersgd")
    done = together(tmp_path, "pufferfish_bench", *words, f"reducer={','.join(others)}")
    assert done.returncode == 0, done.stderr
    folders = [path.parent for path in (tmp_path / "runs").glob(f"*/{RUN}")]
    assert len(folders) == len(others) > 5
    for place in folders:
        first, *_, last = read_rows(place / EPOCHS)
        assert len(first["messages"]) == 2  # PowerSGD's
        assert (first["phase"], last["phase"]) == ("warmup", "low_rank")


@pytest.mark.parametrize("model", sorted(SMALL_TEXT))
def test_text_is_learnt_and_judged_by_two_ranks_as_by_one(tmp_path: Path, command: Command, model: str):
    words = (f"model={model}", *SMALL_TEXT[model], "epochs=2")
    done = together(tmp_path, "pufferfish_bench", *words, "batch_size=4", "run_dir=two")
    assert done.returncode == 0, done.stderr
    alone = command(*words, "batch_size=8", "run_dir=one")
    assert alone.returncode == 0, alone.stderr
    two, one = (read_json(tmp_path / name / RUN)["summary"] for name in ("two", "one"))
    assert two.keys() == one.keys()  # perplexity on test, BLEU
    assert two["val_ppl"] == pytest.approx(one["val_ppl"], rel=0.05)  # ranks weigh alike, whatever the words in their parts


def start(folder: Path, *words: str, restarts: int = 0) -> subprocess.Popen:
    return subprocess.Popen(
        [*TORCHRUN, f"--max-restarts={restarts}", "-m", "pufferfish_bench", *words], cwd=folder, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(path: Path, process: subprocess.Popen, *, lines: int = 1) -> None:
    for _ in range(1200):
        if path.exists() and path.read_text().count("\n") >= lines:
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    raise AssertionError(f"{path} did not come")


def ranks_of(process: subprocess.Popen) -> list[int]:
    """The processes that torchrun started, rank 0 first."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout.split()
    return sorted(map(int, children))


LONG = ("profile=smoke", "model.width=0.05", "dataset.train_images=960", "dataset.test_images=20", "batch_size=8", "epochs=3")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    done = together(folder, "pufferfish_bench", "method=powersgd", *LONG, "run_dir=run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_when_a_rank_is_killed_the_job_ends_with_a_sentence_and_resumes_to_the_same_end(tmp_path: Path, whole: Path):
    words = ("method=powersgd", *LONG, "run_dir=run")
    process = start(tmp_path, *words)
    wait_for(tmp_path / "run" / EPOCHS, process)
    wait_for(tmp_path / "run" / "checkpoints" / "rank1" / "once_whole", process, lines=0)
    os.kill(ranks_of(process)[-1], signal.SIGKILL)
    _, complaints = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "another rank is gone" in complaints
    assert "the same command goes on" in complaints
    done = together(tmp_path, "pufferfish_bench", *words)
    assert done.returncode == 0, done.stderr
    assert "resuming in epoch" in done.stdout
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize("victim", [0, 1])
def test_ranks_that_torchrun_starts_again_after_a_kill_meet_and_finish_the_run(tmp_path: Path, whole: Path, victim: int):
    process = start(tmp_path, "method=powersgd", *LONG, "run_dir=run", restarts=1)
    wait_for(tmp_path / "run" / EPOCHS, process)
    wait_for(tmp_path / "run" / "checkpoints" / "rank1" / "once_whole", process, lines=0)
    os.kill(ranks_of(process)[victim], signal.SIGKILL)
    said, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    assert "resuming in epoch" in said
    assert_same_run(tmp_path / "run", whole)


def complaint(process: subprocess.Popen, words: str) -> str:
    """The line of standard error that has these words, when it comes."""
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"{words!r} was not said")


@pytest.mark.parametrize("stalled", [0, 1])
def test_a_rank_that_stalls_is_named_and_the_run_goes_on_with_it(tmp_path: Path, whole: Path, stalled: int):
    process = start(tmp_path, "method=powersgd", *LONG, "run_dir=run", "rank_warning=1", "rank_timeout=100")
    wait_for(tmp_path / "run" / EPOCHS, process)
    victim = ranks_of(process)[stalled]
    os.kill(victim, signal.SIGSTOP)
    words = f"warning: rank {stalled} has given no sign of life"
    assert complaint(process, words).startswith(("rank 1: warning", "warning")[stalled])
    os.kill(victim, signal.SIGCONT)
    assert f"rank {stalled} goes on" in complaint(process, f"rank {stalled} goes on")
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert_same_run(tmp_path / "run", whole)


def test_ranks_do_not_wait_longer_than_they_were_told_and_end_with_a_sentence(tmp_path: Path):
    process = start(tmp_path, "method=powersgd", *LONG, "run_dir=run", "rank_timeout=8")
    wait_for(tmp_path / "run" / EPOCHS, process)
    victim = ranks_of(process)[1]
    os.kill(victim, signal.SIGSTOP)
    sentence = complaint(process, "error:")
    os.kill(victim, signal.SIGCONT)  # so that torchrun can end it
    _, rest = process.communicate(timeout=120)
    assert "another rank is gone" in sentence
    assert "Timed out waiting 8000ms" in sentence
    assert "the same command goes on" in sentence
    # torchrun names the rank that it first sees ended: rank 0, or the other, which went on and found rank 0 gone
    assert re.search(r"failed \(exitcode: 2\) local_rank: [01]", rest)
    assert "[rank0]: Traceback" not in rest


def test_a_signal_stops_all_ranks_at_one_step_and_a_resume_makes_the_run_whole(tmp_path: Path, whole: Path):
    words = ("method=powersgd", *LONG, "run_dir=run")
    process = start(tmp_path, *words)
    wait_for(tmp_path / "run" / EPOCHS, process)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "stopped; a checkpoint is written" in said
    folders = (tmp_path / "run" / "checkpoints", tmp_path / "run" / "checkpoints" / "rank1")
    newest = [sorted(path.name for path in folder.glob("*.pt"))[-1] for folder in folders]
    assert newest[0] == newest[1]
    done = together(tmp_path, "pufferfish_bench", *words)
    assert done.returncode == 0, done.stderr
    assert_same_run(tmp_path / "run", whole)


def test_a_finished_run_says_so_and_another_number_of_ranks_is_another_run(tmp_path: Path, whole: Path, command: Command):
    words = ("method=powersgd", *LONG, f"run_dir={whole}")
    again = together(tmp_path, "pufferfish_bench", *words)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("finished:") == 1
    other = command(*words)
    assert other.returncode == 2
    assert "workers: 2 -> 1" in other.stderr


def test_a_global_batch_that_is_not_the_recipes_is_one_warning_for_all_ranks(tmp_path: Path):
    done = together(tmp_path, "pufferfish_bench", *TINY, "run_dir=run", "epochs=1", "global_batch=8")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the global batch is 16 (batch_size=8 x 2 workers)") == 1
    assert "use batch_size=4" in done.stderr


def test_a_mistyped_setting_is_one_sentence_for_all_ranks(tmp_path: Path):
    done = together(
        tmp_path, "pufferfish_bench", *TINY, "run_dir=run", "reducer=powersgd", "reducer.rank=0", "measure_network=true"
    )
    assert done.returncode != 0
    assert "error: reducer.rank=0: an integer at least 1 is expected" in done.stderr
