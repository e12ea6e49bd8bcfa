"""What opens the page: counts of verdicts that link to the claims, the two pictures, and claims that are grouped and searched."""

import json
import re
from html import unescape
from pathlib import Path

import pytest
from rich.console import Console

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper import bandwidth, outcome, tables, verdicts
from pufferfish_bench.paper.numbers import paper_numbers
from pufferfish_bench.report import claim_sheets, headlines
from pufferfish_bench.report.output import Cell, Sheet
from tests.support.browser import FAULTS, asked, in_browser
from tests.support.records import ablation, report, write_lab_run, write_record
from tests.support.repository import REPOSITORY

HEADLINE = {"vanilla": ("vanilla", 60.0, 93.0), "pufferfish": ("Pufferfish", 30.0, 92.5)}  # in a line, seconds, final accuracy


def headline(results: Path, *nets: str) -> Path:
    """Three seeds of these nets of the headline, with ten epochs each; Pufferfish changes its phase after the third."""
    for net in nets:
        _, seconds, accuracy = HEADLINE[net]
        for seed in (1, 2, 3):
            values = [accuracy - (9 - epoch) + seed / 10 for epoch in range(10)]
            folder = results / f"records/cpu/table4/resnet18_{net}_fp32/seed{seed}"
            write_record(folder, values=values, seconds=seconds, figures={"train_accuracy": 99.0})
            if net == "pufferfish":
                rows = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
                rows = [row | {"phase": "low_rank" if row["epoch"] >= 3 else "vanilla"} for row in rows]
                (folder / "epochs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return results


def openings(results: Path) -> list[headlines.Opening]:
    """Accuracy and speed-up from the records of a results folder."""
    outcomes = [outcome.read(tables.read(name, "cpu"), results / "records", paper_numbers()) for name in ("table4", "figure4b")]
    return headlines.draw(outcomes, results / "figures/cpu", Console(quiet=True))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with both kinds of opening, and claims that were run and not run."""
    folder = headline(ablation(tmp_path_factory.mktemp("results")), "vanilla", "pufferfish")
    report(folder)
    return folder


@pytest.fixture(scope="module")
def opened(results: Path) -> str:
    return (results / "report-cpu.html").read_text()


def words(text: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", re.sub(r"src='[^']*'", "", text))).split())


def sheet(*verdicts_of_claims: str) -> Sheet:
    rows = [[f"Table {n}", f"claim {n}", Cell("1", 1.0), "0 and 0", verdict] for n, verdict in enumerate(verdicts_of_claims)]
    return Sheet("", ("table", "the paper's claim", "ours", "seeds", "verdict"), rows)


def test_every_claim_is_in_the_group_of_its_verdict_and_what_was_not_run_is_the_last_group():
    every = (
        verdicts.NOT_RUN, verdicts.HOLDS, verdicts.ONE_SEED, verdicts.OPPOSITE, verdicts.ALIKE, verdicts.OTHER_DATA,
        "reproduced (1 Gbit/s); not reproduced (10 Gbit/s)", verdicts.EQUAL, "reproduced (at all measured rates, 1 Gbit/s)",
    )  # fmt: skip
    groups = claim_sheets.by_verdict(sheet(*every))
    assert [(group.kind, group.not_run) for group in groups] == [
        *((kind, False) for kind in claim_sheets.KINDS),
        ("not tested", True),
    ]
    assert {row[0].text for group in groups for row in group.sheet.rows} == {f"claim {n}" for n in range(len(every))}
    for group in groups[:-1]:
        assert all(bandwidth.kind(row[-1].text) == group.kind for row in group.sheet.rows)
    assert list(groups[-1].sheet.columns) == ["the paper's claim", "table", "ours"]  # all have the same verdict and no seeds
    assert len({group.place for group in groups}) == len(groups)


def test_the_counts_add_up_to_all_claims_and_link_to_as_many_rows(results: Path, opened: str):
    tiles = re.findall(r'<li class="[^"]*">(?:<a href="#([^"]*)">|<div>)<b>(\d+)</b> <span>([^<]*)</span>', opened)
    claims = [line for line in (results / "tables/cpu/claims.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert sum(int(count) for _, count, _ in tiles) == len(claims)
    assert [name for *_, name in tiles][:3] == [verdicts.HOLDS, verdicts.OPPOSITE, verdicts.ALIKE]
    for place, count, name in tiles:
        assert bool(place) == (int(count) > 0), name
        if place and name != claim_sheets.NOT_TESTED:
            part = opened.split(f'id="{place}"')[1].split("</table>")[0]
            assert part.count("<tr>") == int(count) + 1
    assert f"{sum(verdicts.NOT_RUN in line for line in claims)} of them have not been run" in words(opened)


def test_claims_that_were_not_run_are_collapsed_and_come_after_those_with_a_verdict(opened: str):
    text = opened.split('<section id="claims">')[1].split("</section>")[0]
    with_verdict, not_run = text.split('<details id="claims-not-run"')
    assert "the hybrid model is more accurate with warm-up than without" in words(with_verdict)
    assert "open" not in not_run.split(">")[0]
    assert "the Pufferfish LSTM predicts as well" in words(not_run)
    assert "the Pufferfish LSTM predicts as well" not in words(with_verdict)


def test_without_records_a_sentence_says_which_runs_each_picture_waits_for(tmp_path: Path):
    accuracy, speedup = openings(tmp_path)
    assert "Not run yet: vanilla, Pufferfish, vanilla with as few parameters. Run `make table4 PROFILE=cpu`" in accuracy.sentence
    assert "Run `make figure4b PROFILE=cpu`" in speedup.sentence
    accuracy, _ = openings(headline(tmp_path, "vanilla"))  # one line is no comparison
    assert "Not run yet: Pufferfish, vanilla with as few parameters." in accuracy.sentence
    assert accuracy.picture is speedup.picture is None
    assert not list(tmp_path.rglob("headline*"))


def test_accuracy_over_time_appears_when_there_are_records(results: Path, opened: str):
    shown = words(opened.split('<section id="summary">')[1].split("</section>")[0])
    assert "At the end (test accuracy, %): vanilla 93.20 after 10.0 minutes; Pufferfish 92.70 after 5.0 minutes." in shown
    assert "Not run yet: vanilla with as few parameters." in shown
    assert "Pufferfish ResNet-18 is as accurate within 1 point: " in shown
    assert "VGG" not in shown
    picture = words((results / "figures/cpu/headline-accuracy.svg").read_text())
    for phrase in ("vanilla", "Pufferfish: low rank", "minutes of training", "test accuracy, %", "Mean over 3 seeds"):
        assert phrase in picture, phrase


def test_speedup_over_bandwidth_appears_when_two_methods_have_two_rates(tmp_path: Path):
    for line, computation, megabits in (("vanilla", 1.0, 400), ("pufferfish", 0.5, 100)):
        for rate, name in ((100, "100mbit"), (1000, "1gbit")):
            for seed in (1, 2):
                folder = tmp_path / f"records/cpu/figure4b/{line}_2hosts_{name}/seed{seed}"
                write_lab_run(folder, cap=rate * 1e6, computation=computation, communication=megabits / rate)
    _, speedup = openings(tmp_path)
    assert (
        "Times as fast as vanilla at 100 Mbit/s and at 1 Gbit/s: pufferfish 3.33x and 2.33x." in speedup.sentence
    )  # 5/1.5, 1.4/0.6
    assert [claim.relation.label for claim in speedup.claims][-1] == "Pufferfish is faster per epoch than vanilla SGD"
    assert "times as fast as vanilla" in words(speedup.picture.file(".svg").read_text())
    assert speedup.picture.file(".png").is_file()


def test_a_headline_names_cells_that_are_trained(monkeypatch: pytest.MonkeyPatch):
    content = {"title": "T", "seeds": 1, "cells": {"a": {"overrides": []}}, "headline": {"title": "H", "cells": {"A": "a"}}}
    assert tables.parse("table0", "cpu", content).headline.cells == {"A": "a"}
    with pytest.raises(InputError, match="no cell b that is trained; there are a"):
        tables.parse("table0", "cpu", content | {"headline": {"title": "H", "cells": {"B": "b"}}})
    with pytest.raises(InputError, match="headline needs a title and cells"):
        tables.parse("table0", "cpu", content | {"headline": {"cells": {"A": "a"}}})


@in_browser
def test_searching_leaves_rows_with_all_words_and_opens_what_is_collapsed(tmp_path: Path, opened: str):
    search = """
      const field = document.querySelector("search input"), seen = [], part = document.querySelector("#claims-not-run");
      const rows = () => [...document.querySelectorAll("main tbody tr")].filter(row => row.checkVisibility());
      const look = words => { field.value = words; field.dispatchEvent(new Event("input"));
        seen.push([rows().map(row => row.textContent), document.querySelector("output").textContent, part.open,
          [...document.querySelectorAll("main section")].filter(one => one.checkVisibility()).map(one => one.id)]); };
      ["", "LSTM predicts", "table 8 low rank", "no such word", ""].forEach(look);
      look("lstm"); document.querySelector('.tiles a[href="#claims-reproduced"]').click();
      return [...seen, [rows().length, field.value]];"""
    before, lstm, low_rank, nothing, after, _, (left, field) = asked(opened, search, tmp_path)
    assert before == after
    assert (before[2], lstm[2]) == (False, True)
    assert lstm[0]
    assert all("LSTM predicts" in row for row in lstm[0])
    assert lstm[1].startswith(f"{len(lstm[0])} of ")
    assert lstm[3] == ["claims"]
    assert {"claims", "table8"} >= set(low_rank[3]) >= {"table8"}
    assert (nothing[0], nothing[3]) == ([], [])
    assert (left, field) == (len(before[0]), "")  # a link ends the search: what it points to must be there


@in_browser
def test_the_count_of_claims_that_were_not_run_opens_them(tmp_path: Path, opened: str):
    script = """
      const part = document.querySelector("#claims-not-run"), before = part.open;
      location.hash = "#claims-not-run";
      dispatchEvent(new Event("hashchange"));
      return [before, part.open];"""
    assert asked(opened, script, tmp_path) == [False, True]


@in_browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_the_published_page_can_be_read_with_a_keyboard_and_with_a_screen_reader(tmp_path: Path, width: int, dark: bool):
    published = (REPOSITORY / "results/report-cpu.html").read_text()
    assert asked(published, FAULTS, tmp_path, width=width, dark=dark) == []


PLANTED = {  # a fault in the page, by the rule that must find it
    "contrast": ("--faint: #56606b", "--faint: #aaaaaa"),
    "name": ('<button type="button">quantity</button>', '<button type="button"></button>'),
    "link": ('<a class="skip" href="#claims">', '<a class="skip">'),
    "label": ('<label for="words">', '<label for="word">'),
    "alt": (re.compile('<img alt="[^"]*"'), '<img alt=""'),
    "same alt": (re.compile('<img alt="[^"]*"'), '<img alt="a picture with a name of some length"'),
    "same id": ('id="table8"', 'id="claims"'),
    "order of headings": (re.compile("<(/?)h3>"), r"<\1h4>"),
    "one h1": (re.compile("<(/?)h1>"), r"<\1h2>"),
    "landmark": (re.compile("<(/?)main>"), r"<\1div>"),
    "outside of landmarks": (re.compile("<(/?)header>"), r"<\1div>"),
    "lang and title": ('<html lang="en">', "<html>"),
    "caption": (re.compile("<caption.*?</caption>"), ""),
    "column heading": ('<th scope="col"', "<th"),
    "row heading": (re.compile('<th scope="row"(.*?)</th>'), r"<td\1</td>"),
    "number of cells": (re.compile("<td[^>]*>[^<]*</td></tr>"), "</tr>"),
    "role": ('td: "cell"', 'p: "cell"'),
    "focus": ("thead button:focus-visible { outline: 2px solid", "thead button:focus-visible { outline: none"),
}


@in_browser
@pytest.mark.parametrize("rule", PLANTED)
def test_a_planted_fault_is_found(tmp_path: Path, opened: str, rule: str):
    wrong, planted = PLANTED[rule]
    broken = wrong.sub(planted, opened) if isinstance(wrong, re.Pattern) else opened.replace(wrong, planted)
    assert broken != opened
    assert rule in {name for name, _ in asked(broken, FAULTS, tmp_path)}


def test_the_published_page_is_smaller_than_a_megabyte():
    assert (REPOSITORY / "results/report-cpu.html").stat().st_size < 1_000_000
