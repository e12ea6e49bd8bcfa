"""Two ranks that train together: what they agree on, what they send, and what happens when one stalls or ends."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.records.files import EPOCHS, RUN, read_json, read_rows
from tests.support.commands import SMALL_TEXT, Command, assert_same_run
from tests.support.nets import Plain, TinyNet
from tests.support.rank_experiments import FLAT, PRUNING, SYNCHRONOUS, train
from tests.support.ranks import Outcomes
from tests.support.reducers import REDUCERS, attached
from tests.support.repository import configured
from tests.support.torchrun import RANKS, TINY, TORCHRUN, environment, run_ranks

pytestmark = pytest.mark.xdist_group("workers")  # they share fixtures and would compete for the cores

METHODS = configured("method")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """The experiments of tests/support/rank_experiments.py, run by two ranks."""
    return Outcomes(tmp_path_factory.mktemp("ranks"))


def reductions(outcomes: Outcomes, name: str) -> list[tuple[list[dict], dict]]:
    """For each step of a reducer: the gradients of the ranks, and the result on rank 0."""
    steps = zip(*outcomes[f"reduction-{name}"], strict=True)
    return [([step["given"] for step in both], both[0]["left"]) for both in steps]


@pytest.mark.parametrize("name", [name for name in FLAT if name != "none"])
def test_all_ranks_end_up_with_the_same_gradients(outcomes: Outcomes, name: str):
    for one, other in zip(*outcomes[f"reduction-{name}"], strict=True):
        assert all(torch.equal(one["left"][key], other["left"][key]) for key in one["left"])


@pytest.mark.parametrize(("name", "tolerance"), [("allreduce", 1e-7), ("fp16", 2e-3), ("bf16", 2e-2)])
def test_gradients_are_averaged(outcomes: Outcomes, name: str, tolerance: float):
    for given, left in reductions(outcomes, name):
        for key, gradient in left.items():
            assert gradient == pytest.approx(torch.stack([rank[key] for rank in given]).mean(0), abs=tolerance, rel=tolerance)


def test_the_time_for_which_a_rank_waits_for_a_slower_one_is_measured_apart(outcomes: Outcomes):
    fast, slow = outcomes["waiting"]
    assert fast["wait"] > slow["wait"]
    assert fast["wait"] > fast["encode"] + fast["communicate"] + fast["decode"]


def test_without_communication_gradients_are_unchanged_and_nothing_is_sent(outcomes: Outcomes):
    for steps in outcomes["reduction-none"]:
        for step in steps:
            assert step["messages"] == []
            assert all(torch.equal(step["given"][key], step["left"][key]) for key in step["given"])


def test_signum_is_the_majority_vote_of_the_signs_of_local_averages(outcomes: Outcomes):
    steps = reductions(outcomes, "signum")
    averages = [dict(rank) for rank in steps[0][0]]
    for number, (given, left) in enumerate(steps):
        if number:
            averages = [
                {key: 0.9 * average[key] + 0.1 * rank[key] for key in rank} for average, rank in zip(averages, given, strict=True)
            ]
        for key, vote in left.items():
            assert torch.equal(vote, sum(average[key].sign() for average in averages).sign())


def test_powersgd_matches_the_algorithm_of_its_paper(outcomes: Outcomes):
    model = TinyNet()
    reducer = attached("powersgd", model)
    names = {id(p): name for name, p in model.named_parameters()}
    place, starts = 0, {}
    for parameter in reducer.parameters:
        if parameter.ndim > 1:
            columns = parameter[0].numel()
            starts[names[id(parameter)]] = reducer.second[place : place + columns * reducer.rank].view(reducer.rank, columns).t()
            place += columns * reducer.rank
    errors = [{name: torch.zeros(len(model.get_parameter(name)), len(q)) for name, q in starts.items()} for _ in range(RANKS)]
    for given, left in reductions(outcomes, "powersgd"):
        for name, q in starts.items():
            matrices = [rank[name].flatten(1) + error[name] for rank, error in zip(given, errors, strict=True)]
            p, _ = torch.linalg.qr(sum(matrix @ q for matrix in matrices) / RANKS)
            starts[name] = sum(matrix.t() @ p for matrix in matrices) / RANKS
            approximation = p @ starts[name].t()
            assert left[name].flatten(1) == pytest.approx(approximation, abs=1e-4)
            for matrix, error in zip(matrices, errors, strict=True):
                error[name] = matrix - approximation
        for name in set(left) - set(starts):  # vectors are sent uncompressed
            assert left[name] == pytest.approx(sum(rank[name] for rank in given) / RANKS, abs=1e-6)


def test_columns_of_powersgd_that_became_zero_are_redrawn_equally_on_all_ranks_and_no_gradient_is_lost(outcomes: Outcomes):
    ours = outcomes["powersgd_after_zero_gradients"]
    assert torch.equal(ours[0]["q"], ours[1]["q"])
    for one, other in zip(ours[0]["left"], ours[1]["left"], strict=True):
        assert torch.equal(one, other)
    assert not ours[0]["left"][0].any()
    assert all(step.norm() > 1 for step in ours[0]["left"][1:])
    sums = [sum(rank["given"]) - rank["error"] for rank in ours]
    assert sum(ours[0]["left"]) == pytest.approx(sum(sums) / RANKS, abs=1e-3)  # the rest is kept as error feedback


def bytes_in_theory() -> dict[str, list[tuple[str, int]]]:
    """What each flat reducer sends in a step of TinyNet."""
    parameters = list(TinyNet().parameters())
    count = sum(p.numel() for p in parameters)
    matrices = [(len(p), p[0].numel()) for p in parameters if p.ndim > 1]
    vectors = sum(p.numel() for p in parameters if p.ndim == 1)
    return {
        "allreduce": [("allreduce", 4 * count)],
        "fp16": [("allreduce", 2 * count)],
        "bf16": [("allreduce", 2 * count)],
        "none": [],
        "powersgd": [
            ("allreduce", 4 * (vectors + sum(2 * rows for rows, _ in matrices))),
            ("allreduce", 4 * sum(2 * columns for _, columns in matrices)),
        ],
        "sbq": [("allgather", 8 + -(-count // 8))],
        "signum": [("allgather", -(-count // 8))],
        "topk": [("allgather", 8 * max(1, int(0.01 * count)))],
    }


@pytest.mark.parametrize("name", FLAT)
def test_the_bytes_sent_match_the_theory(outcomes: Outcomes, name: str):
    assert name in bytes_in_theory(), f"add what {name} sends to bytes_in_theory"
    for steps in outcomes[f"reduction-{name}"]:
        assert [step["messages"] for step in steps] == [bytes_in_theory()[name]] * len(steps)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("engine", ["allreduce", "ddp"])
def test_two_ranks_take_the_same_steps_as_one_rank_with_the_combined_batch(
    outcomes: Outcomes, tmp_path: Path, engine: str, parts: int
):
    one = train(single_process(), tmp_path, reducer="allreduce", model=Plain, images=48)
    found, _ = outcomes[f"joined_batch-{engine}-{parts}"]
    assert all(tensor == pytest.approx(found["weights"][name], abs=1e-6) for name, tensor in one.model.state_dict().items())


@pytest.mark.parametrize("engine", ["allreduce", "ddp"])
def test_ranks_that_accumulate_gradients_send_them_once_a_step(outcomes: Outcomes, engine: str):
    whole, parts = (outcomes[f"joined_batch-{engine}-{parts}"][0] for parts in (1, 2))
    assert parts["bytes_sent"] == whole["bytes_sent"] > 0
    assert parts["messages"] == whole["messages"]
    assert parts["seconds_communicate"] > 0


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_run_that_one_rank_stops_is_resumed_to_the_same_bits(outcomes: Outcomes, name: str):
    one, other = outcomes[f"resumed-{name}"]
    assert one == other
    assert len(one) == 3
    assert len(set(one)) == 1


@pytest.mark.parametrize("name", PRUNING)
def test_a_pruning_run_that_one_rank_stops_is_resumed_to_the_same_bits(outcomes: Outcomes, name: str):
    one, other = outcomes[f"pruned-{name}"]
    assert one == other
    assert len(one) == 2
    assert len(set(one)) == 1


def test_a_rank_with_different_weights_is_named(outcomes: Outcomes):
    assert all("the weights of rank 1 are not those of rank 0" in error for error in outcomes["different_weights"])


def test_after_the_switch_only_the_low_rank_net_remains_in_memory_under_ddp(outcomes: Outcomes):
    for weighed in outcomes["memory_under_ddp"]:
        assert weighed["low_rank"] - weighed["before"] == weighed["final"]
        assert weighed["low_rank"] < weighed["warmup"]


def rows_of(outcomes: Outcomes, reducer: str) -> list[dict]:
    """The record of the uninterrupted run of a reducer."""
    assert outcomes[f"resumed-{reducer}"]
    return read_rows(outcomes.folder / f"resumed-{reducer}" / "whole" / EPOCHS)


def test_the_sections_of_all_ranks_add_up_and_lie_between_minimum_and_maximum(outcomes: Outcomes):
    for row in rows_of(outcomes, "powersgd"):
        sections = {key.removeprefix("seconds_"): value for key, value in row.items() if key.startswith("seconds_")}
        assert {"data", "forward", "backward", "encode", "wait", "communicate", "decode", "step"} <= set(sections)
        assert sum(sections.values()) == pytest.approx(row["seconds"])
        for name, mean in sections.items():
            assert row[f"fastest_{name}"] - 1e-9 <= mean <= row[f"slowest_{name}"] + 1e-9
        assert row["bytes_sent"] == row["steps"] * sum(size for _, size in row["messages"])


@pytest.mark.parametrize(("name", "size"), [("ddp", 4), ("ddp_fp16", 2), ("ddp_bf16", 2)])
def test_ddp_sends_every_gradient_once(outcomes: Outcomes, name: str, size: int):
    for row in rows_of(outcomes, name):
        assert sum(sent for _, sent in row["messages"]) == size * row["parameters"]
        assert row["seconds_communicate"] > 0


def test_torchs_powersgd_sends_what_it_cannot_compress_then_two_thin_matrices(outcomes: Outcomes):
    row = rows_of(outcomes, "ddp_powersgd")[0]
    shapes = [(len(p), p[0].numel()) for p in TinyNet().parameters() if p.ndim > 1]
    compressed = [(rows, columns) for rows, columns in shapes if 2 * 2 * (rows + columns) < rows * columns]  # torch's own rule
    sizes = [sent for _, sent in row["messages"]]
    assert len(sizes) == 3  # one bucket
    assert sizes[1:] == [4 * 2 * sum(rows for rows, _ in compressed), 4 * 2 * sum(columns for _, columns in compressed)]
    left = row["parameters"] - sum(rows * columns for rows, columns in compressed)
    assert sizes[0] == 4 * left


def test_ranks_that_do_not_communicate_stop_at_the_end_of_the_same_epoch(outcomes: Outcomes):
    # the epoch is evaluated after the resume
    assert outcomes["stop_without_communication"] == [["epoch00001-step0000007.pt"]] * RANKS


def test_a_rank_that_lost_its_checkpoints_is_named_and_the_run_does_not_start_over(outcomes: Outcomes):
    for error in outcomes["lost_checkpoints"]:
        assert "no checkpoint" in error
        assert "none for rank 1" in error


def test_if_a_checkpoint_does_not_fit_on_one_rank_all_ranks_use_the_one_before_it(outcomes: Outcomes):
    for found in outcomes["checkpoint_that_does_not_fit"]:
        assert found["stopped"] is None
        assert found["resumed"] == found["whole"]
        assert found["aside"] == ["epoch00001-step0000003.damaged"]


def test_a_first_checkpoint_that_only_some_ranks_wrote_before_a_kill_is_removed(outcomes: Outcomes):
    assert outcomes["half_written_first_checkpoint"] == [(None, [])] * RANKS


def test_every_method_trains_on_two_ranks(tmp_path: Path):
    done = run_ranks(tmp_path, "pufferfish_bench", "--multirun", f"method={','.join(METHODS)}", *TINY, "run_root=runs")
    assert done.returncode == 0, done.stderr
    runs = [read_json(path) for path in (tmp_path / "runs").glob(f"*/{RUN}")]
    assert len(runs) == len(METHODS)
    assert all("finished" in run and run["world_size"] == run["hardware"]["workers"] == RANKS for run in runs)


def test_pufferfish_trains_with_every_reducer_that_is_not_a_method_and_with_another_in_the_warmup(tmp_path: Path):
    others = [name for name in REDUCERS if name not in METHODS]
    words = ("--multirun", "method=pufferfish", *TINY, "run_root=runs", "reducer@method.warmup_reducer=powersgd")
    done = run_ranks(tmp_path, "pufferfish_bench", *words, f"reducer={','.join(others)}")
    assert done.returncode == 0, done.stderr
    folders = [path.parent for path in (tmp_path / "runs").glob(f"*/{RUN}")]
    assert len(folders) == len(others) > 5
    for place in folders:
        first, *_, last = read_rows(place / EPOCHS)
        assert len(first["messages"]) == 2  # PowerSGD sends two
        assert (first["phase"], last["phase"]) == ("warmup", "low_rank")


@pytest.mark.parametrize("model", sorted(SMALL_TEXT))
def test_text_models_train_and_evaluate_on_two_ranks_as_on_one(tmp_path: Path, invoke: Command, model: str):
    words = (f"model={model}", *SMALL_TEXT[model], "epochs=2")
    done = run_ranks(tmp_path, "pufferfish_bench", *words, "batch_size=4", "run_dir=two")
    assert done.returncode == 0, done.stderr
    single = invoke(*words, "batch_size=8", "run_dir=one")
    assert single.returncode == 0, single.stderr
    two, one = (read_json(tmp_path / name / RUN)["summary"] for name in ("two", "one"))
    assert two.keys() == one.keys()  # test perplexity, BLEU
    assert two["val_ppl"] == pytest.approx(one["val_ppl"], rel=0.05)  # ranks have equal weight, however many words each has


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
    raise AssertionError(f"{path} was not written")


def ranks_of(process: subprocess.Popen) -> list[int]:
    """The processes that torchrun started, rank 0 first."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout.split()
    return sorted(map(int, children))


LONG = ("profile=smoke", "model.net.width=0.05", "dataset.train_images=960", "dataset.test_images=20", "batch_size=8", "epochs=3")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run of two ranks."""
    folder = tmp_path_factory.mktemp("whole")
    done = run_ranks(folder, "pufferfish_bench", "method=powersgd", *LONG, "run_dir=run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_when_a_rank_is_killed_the_job_ends_with_an_error_message_and_resumes_to_the_same_end(tmp_path: Path, whole: Path):
    words = ("method=powersgd", *LONG, "run_dir=run")
    process = start(tmp_path, *words)
    wait_for(tmp_path / "run" / EPOCHS, process)
    wait_for(tmp_path / "run" / "checkpoints" / "rank1" / "once_whole", process, lines=0)
    os.kill(ranks_of(process)[-1], signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "another rank has ended or hangs" in errors
    assert "the same command resumes" in errors
    done = run_ranks(tmp_path, "pufferfish_bench", *words)
    assert done.returncode == 0, done.stderr
    assert "resuming in epoch" in done.stdout
    assert_same_run(tmp_path / "run", whole)


def test_a_run_that_is_killed_after_the_factorisation_resumes_to_the_same_end(tmp_path: Path):
    words = ("method=pufferfish", *LONG, "warmup_epochs=1")
    done = run_ranks(tmp_path, "pufferfish_bench", *words, "run_dir=whole")
    assert done.returncode == 0, done.stderr
    process = start(tmp_path, *words, "run_dir=run")
    wait_for(tmp_path / "run" / EPOCHS, process, lines=2)
    for rank in ranks_of(process):
        os.kill(rank, signal.SIGKILL)
    process.communicate(timeout=120)
    assert read_rows(tmp_path / "run" / EPOCHS)[-1]["phase"] == "low_rank"
    done = run_ranks(tmp_path, "pufferfish_bench", *words, "run_dir=run")
    assert done.returncode == 0, done.stderr
    assert "resuming in epoch" in done.stdout
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_ranks_restarted_by_torchrun_after_rank_0_and_then_rank_1_were_killed_finish_the_run(tmp_path: Path, whole: Path):
    process = start(tmp_path, "method=powersgd", *LONG, "run_dir=run", restarts=2)
    for victim in (0, 1):
        wait_for(tmp_path / "run" / EPOCHS, process, lines=1 + victim)
        wait_for(tmp_path / "run" / "checkpoints" / "rank1" / "once_whole", process, lines=0)
        os.kill(ranks_of(process)[victim], signal.SIGKILL)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert output.count("resuming in epoch") == 2
    assert_same_run(tmp_path / "run", whole)


def error_line(process: subprocess.Popen, words: str) -> str:
    """Wait for the line of standard error that contains these words."""
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"no line contains {words!r}")


def test_a_rank_that_stalls_is_named_and_the_run_continues_when_it_does(tmp_path: Path, whole: Path):
    process = start(tmp_path, "method=powersgd", *LONG, "run_dir=run", "rank_warning=1", "rank_timeout=100")
    for stalled in (0, 1):
        wait_for(tmp_path / "run" / EPOCHS, process, lines=1 + stalled)
        victim = ranks_of(process)[stalled]
        os.kill(victim, signal.SIGSTOP)
        warning = error_line(process, f"warning: rank {stalled} has sent no heartbeat")
        assert warning.startswith(("rank 1: warning", "warning")[stalled])
        os.kill(victim, signal.SIGCONT)
        error_line(process, f"rank {stalled} has resumed")
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert_same_run(tmp_path / "run", whole)


def test_ranks_wait_no_longer_than_rank_timeout_and_end_with_one_error_message(tmp_path: Path):
    process = start(tmp_path, "method=powersgd", *LONG, "run_dir=run", "rank_timeout=8")
    wait_for(tmp_path / "run" / EPOCHS, process)
    victim = ranks_of(process)[1]
    os.kill(victim, signal.SIGSTOP)
    sentence = error_line(process, "error:")
    os.kill(victim, signal.SIGCONT)  # torchrun cannot end it while it is stopped
    _, rest = process.communicate(timeout=120)
    assert "another rank has ended or hangs" in sentence
    assert "Timed out waiting 8000ms" in sentence
    assert "the same command resumes" in sentence
    # torchrun names the rank that it first finds ended: rank 0, or rank 1, which continued and found rank 0 gone
    assert re.search(r"failed \(exitcode: 2\) local_rank: [01]", rest)
    assert "[rank0]: Traceback" not in rest


def test_a_signal_stops_all_ranks_at_the_same_step_and_a_resume_completes_the_run(tmp_path: Path, whole: Path):
    words = ("method=powersgd", *LONG, "run_dir=run")
    process = start(tmp_path, *words)
    wait_for(tmp_path / "run" / EPOCHS, process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "stopped; a checkpoint is saved" in output
    folders = (tmp_path / "run" / "checkpoints", tmp_path / "run" / "checkpoints" / "rank1")
    newest = [sorted(path.name for path in folder.glob("*.pt"))[-1] for folder in folders]
    assert newest[0] == newest[1]
    done = run_ranks(tmp_path, "pufferfish_bench", *words)
    assert done.returncode == 0, done.stderr
    assert_same_run(tmp_path / "run", whole)


def test_a_finished_run_says_so_and_another_number_of_ranks_is_another_run(tmp_path: Path, whole: Path, invoke: Command):
    words = ("method=powersgd", *LONG, f"run_dir={whole}")
    again = run_ranks(tmp_path, "pufferfish_bench", *words)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("finished:") == 1
    other = invoke(*words)
    assert other.returncode == 2
    assert "workers: 2 -> 1" in other.stderr


def test_a_global_batch_that_differs_from_the_recipes_gives_one_warning_over_all_ranks(tmp_path: Path):
    done = run_ranks(tmp_path, "pufferfish_bench", *TINY, "run_dir=run", "epochs=1", "schedule.batch=8")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the global batch is 16 (batch_size=8 x 2 workers)") == 1
    assert "use batch_size=4" in done.stderr


def test_a_mistyped_setting_gives_one_error_message_over_all_ranks(tmp_path: Path):
    done = run_ranks(
        tmp_path, "pufferfish_bench", *TINY, "run_dir=run", "reducer=powersgd", "reducer.rank=0", "measure_network=true"
    )
    assert done.returncode != 0
    assert "error: reducer.rank=0: an integer at least 1 is expected" in done.stderr
