"""Any record is read or refused with one sentence; text from records is shown and never interpreted."""

import contextlib
import copy
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.cli import breakdown, compare, report, warmup, whatif
from pufferfish_bench.cli.messages import error_messages
from pufferfish_bench.paper.cells import TrainRun
from pufferfish_bench.paper.jobs import Identity, Job
from pufferfish_bench.paper.probe import share_left
from pufferfish_bench.records import reader, run_directory
from pufferfish_bench.records.files import EPOCHS, RUN
from pufferfish_bench.report import describe
from tests.support.records import write_record
from tests.support.repository import REPOSITORY

REAL = REPOSITORY / "tests/data/lab_run"  # as it was written by a run: a factorisation, messages, a measured network
CELL = TrainRun(name="x", overrides=(), figures={})
WARMED = REPOSITORY / "tests/data/warmed_run"  # with a warm-up
DEEP = "[" * 100_000 + "]" * 100_000

pieces = ("[/nope]", "[bold]", "\x1b[31m", "\x1b]0;x\x07", "\n", "\r", "\t", "<script>alert(1)</script>", "|", "\\", "`", "$x_$",
          "\u202e", "\x9b", "\ud800", "](javascript:x)", ":smile:", "a", " ", "{", "%s")  # fmt: skip
nasty = st.lists(st.sampled_from(pieces), min_size=1, max_size=6).map("".join)
wrong = st.one_of(
    st.none(), st.booleans(), st.just(-1), st.just(0), st.just(10**400), st.just(1e300), st.just(float("nan")),
    st.just(float("inf")), st.just([]), st.just({}), st.just([[[]]]), st.just({"x": {"y": []}}), nasty,
)  # fmt: skip


def said(command: Callable[[], object]) -> tuple[int, str, str]:
    """The exit code of a command, what it prints and what it complains of."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with error_messages():  # some of these are functions that commands call
                command()
        except SystemExit as exit:
            code = exit.code
    return code, out.getvalue(), err.getvalue()


def places(found: Any, path: tuple = ()) -> list[tuple]:
    """Where in nested data something stands."""
    inside = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    return [*([path] if path else []), *(place for key, value in inside for place in places(value, (*path, key)))]


def put(found: Any, path: tuple, value: Any, *, gone: bool) -> None:
    *before, last = path
    for key in before:
        found = found[key]
    if gone:
        del found[last]
    else:
        found[last] = value


def written(folder: Path, record: Any, rows: list[Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUN).write_text(json.dumps(record))
    (folder / EPOCHS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def real(folder: Path = REAL) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    record, rows = reader.read(folder)
    assert rows
    return copy.deepcopy(record), copy.deepcopy(rows)


def all_commands(folder: Path, out: Path) -> dict[str, Callable[[], object]]:
    """Everything that reads a record of a directory, or of a results folder in which it is one of a cell's."""
    results = out / "results"
    shutil.copytree(folder, results / "records/cpu/table8/low_rank/seed1")
    job = Job(CELL, 1, folder, Identity({}, folder))
    return {
        "compare": lambda: compare.main([str(folder), str(REAL)]),
        "describe": lambda: describe.show_run(folder, Console()),
        "whatif": lambda: whatif.main([str(folder), "--samples", "100"]),
        "breakdown": lambda: breakdown.main([str(folder)]),
        "warmup": lambda: warmup.main([str(folder)]),
        "report": lambda: report.main(["table8", "--results", str(results)]),
        "finished": lambda: run_directory.finished(folder, {}),
        "done": lambda: job.done,
        "job": lambda: job.trained,
        "probe": lambda: share_left(job),
    }


def check_every_command(folder: Path, out: Path) -> dict[str, int]:
    """Each of them works, or ends with code 2 and one line; nothing reaches the terminal that would steer it."""
    codes = {}
    for name, command in all_commands(folder, out).items():
        codes[name], printed, complaint = said(command)
        assert codes[name] in (0, 2), (name, complaint)
        lines = [line for line in complaint.splitlines() if not line.startswith("warning: ")]
        assert len(lines) == (codes[name] == 2), (name, complaint)
        for letter in ("\x1b", "\x9b", "\x07", "\u202e", "\r"):
            assert letter not in printed + complaint, name
    return codes


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_record_with_any_defect_is_read_or_refused_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    folder, (record, rows) = tmp_path_factory.mktemp("any"), real(data.draw(st.sampled_from([REAL, WARMED])))
    both = {"record": record, "rows": rows}
    for _ in range(data.draw(st.integers(1, 3))):
        known = [place for place in places(both) if len(place) > 1]
        # what commands read is near the top: a draw over all places would mostly be of one of many layers
        depth = data.draw(st.integers(2, 6))
        near = [place for place in known if len(place) <= depth] or known
        put(both, data.draw(st.sampled_from(near)), data.draw(wrong), gone=data.draw(st.booleans()))
    check_every_command(written(folder / "run", both["record"], both["rows"]), folder)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (RUN, b"{}", "run.json is not the record of a run: it has no settings"),
        (RUN, b"[1, 2]", "run.json is not a JSON object"),
        (RUN, b"", "run.json cannot be read: "),
        (RUN, b"\x80\x04\x95", "run.json cannot be read: not UTF-8"),
        (RUN, DEEP.encode(), "run.json cannot be read: it is nested too deeply"),
        (RUN, b'{"settings": ' + b"[" * 60 + b"]" * 60 + b"}", "run.json cannot be read: it is nested more than 50 levels deep"),
        (RUN, b'{"format": 2, "settings": {"name": 7}}', "run.json: settings has a value of the wrong type or range"),
        (
            RUN,
            b'{"format": 2, "settings": {"name": "x"}, "summary": {"metric": "loss", "step": []}, "operations": 1}',
            "has a value of the wrong type or range",
        ),
        (EPOCHS, b"garbage\n", "epochs.jsonl, line 1 cannot be read: "),
        (EPOCHS, b"[]\n", "epochs.jsonl, line 1 is not a JSON object"),
        (EPOCHS, b'{"epoch": 0}\n', "epochs.jsonl, line 1 is not the record of a run: it has no phase"),
        (EPOCHS, b'{"epoch": 1, "phase": "a"}\n{"epoch": 0, "phase": "a"}\n', "line 2 has epoch 0 after epoch 1"),
        (EPOCHS, b'{"epoch": -1, "phase": "a"}\n', "line 1: epoch has a value of the wrong type or range: -1"),
        (EPOCHS, (DEEP + "\n").encode(), "line 1 cannot be read: it is nested too deeply"),
    ],
)
def test_every_command_says_which_file_is_wrong_and_why(tmp_path: Path, name: str, content: bytes, sentence: str):
    folder = written(tmp_path / "run", *real())
    (folder / name).write_bytes(content)
    readers = all_commands(folder, tmp_path)
    assert said(readers.pop("done"))[0] == 0
    assert not Job(CELL, 1, folder, Identity({}, folder)).done
    assert said(readers.pop("probe"))[0] == 0
    if name == EPOCHS:
        readers.pop("finished")  # it asks run.json alone, and is content with it
        readers.pop("job")
    for command in readers.values():
        code, _, complaint = said(command)
        assert code == 2
        assert sentence in complaint
        assert complaint.count("\n") == 1


def test_a_record_with_missing_rows_is_never_treated_as_complete(tmp_path: Path):
    record, rows = real(WARMED)
    assert len(rows) > 2
    folder = written(tmp_path / "run", record, [rows[0], *rows[2:]])
    commands = all_commands(folder, tmp_path)
    words = "incomplete: epochs.jsonl has no row of epoch 2;"
    assert "(incomplete)" in said(commands["compare"])[1]
    assert words in said(commands["describe"])[1]
    assert words in said(commands["breakdown"])[2]
    assert words in said(commands["warmup"])[2]
    assert said(commands["report"])[0] == 2
    assert words in said(commands["report"])[2]
    job = Job(CELL, 1, folder, Identity(record["settings"], folder))
    assert not job.done
    with pytest.raises(InputError, match=r"incomplete: .*move it away to start again"):
        assert job.trained
    whole = Job(CELL, 1, written(tmp_path / "whole", record, rows), Identity(record["settings"]))
    assert whole.done


@pytest.mark.filterwarnings("ignore:constrained_layout not applied")  # the names are long
@settings(max_examples=4)
@given(name=nasty)
@example(name="".join(pieces[::2]))
@example(name="".join(pieces[1::2]))
def test_a_name_in_a_record_is_shown_and_never_interpreted(tmp_path_factory: pytest.TempPathFactory, name: str):
    folder = tmp_path_factory.mktemp("name")
    record, rows = real()
    record["settings"]["name"] = record["hardware"]["device"] = record["commit"] = name
    operation = record["operations"][0]
    operation |= {"note": name, "phase": name, "left": {name: name}, "layers": {name: {name: 1, "rank": 2}}}
    rows[-1]["phase"] = name
    record["summary"]["step"][name] = record["summary"]["step"]["forward"]
    codes = check_every_command(written(folder / "run", record, rows), folder)
    assert [codes[command] for command in ("compare", "describe", "whatif", "breakdown")] == [0, 0, 0, 0]
    assert printable(name) in said(lambda: describe.show_run(folder / "run", Console(width=1000)))[1]
    for command, out in ((whatif.main, folder / "whatif"), (breakdown.main, folder / "breakdown")):
        assert said(lambda: command([str(folder / "run"), "--out", str(out)]))[0] == 0  # noqa: B023
    write_record(folder / "new/records/cpu/table8/low_rank/seed1", device=name, settings={"name": name, "batch_size": 32})
    assert said(lambda: report.main(["table8", "--results", str(folder / "new")]))[0] == 0
    pages = [path for path in folder.rglob("*") if path.suffix in (".md", ".html", ".csv", ".svg")]
    assert len(pages) >= 6
    for path in pages:
        text = path.read_text()
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "<script>alert" not in text or path.suffix == ".csv"


def test_the_settings_in_which_two_runs_differ_are_shown_as_they_are(tmp_path: Path):
    folder = written(tmp_path / "run", {"format": 2, "settings": {"name": "\x1b[31m[/nope]\nx"}}, [])
    code, _, complaint = said(lambda: run_directory.finished(folder, {"name": "y"}))
    assert code == 2
    assert r"name: \x1b[31m[/nope]\nx -> y" in complaint


def test_text_from_records_does_not_end_a_markdown_cell():
    from pufferfish_bench.report.output import Sheet

    lines = Sheet("t", ["a", "b"], [["x|y\\", "\\|z<script>"]]).markdown().splitlines()
    assert lines[-1] == r"| x\|y\\ | \\\|z&lt;script> |"


def test_a_report_refuses_a_record_without_its_headline_figure(tmp_path: Path):
    record, rows = real(WARMED)
    del record["summary"]["test_accuracy"]
    folder = written(tmp_path / "run", record, rows)
    code, _, complaint = said(all_commands(folder, tmp_path)["report"])
    assert code == 2
    assert "test_accuracy is missing or not a number; " in complaint


def test_a_summary_without_its_keys_is_a_sentence(tmp_path: Path):
    from pufferfish_bench.cli import run

    record, rows = real()
    del record["summary"]["macs"]
    folder = written(tmp_path / "run", record, rows)
    code, _, complaint = said(lambda: run.show_summary(folder, SimpleNamespace(of_sweep=False)))
    assert code == 2
    assert "it has no macs" in complaint
