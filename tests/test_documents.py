"""The README and the pages of docs/: short enough to be finished, every link leads somewhere, every result is a published one."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from pufferfish_bench.records.record import Record
from pufferfish_bench.report import payoff
from tests.support.repository import REPOSITORY

README = REPOSITORY / "README.md"
PAGES = [README, REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "conf/README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


NEED_DATA = [  # commands that need a network or data sets: a test reads their settings, and starts none
    line
    for page in ("data.md", "many-workers.md")
    for line in (REPOSITORY / "docs" / page).read_text().splitlines()
    if line.startswith("pufferfish-run ") and "profile=smoke" not in line
]


def test_the_readme_has_at_most_150_lines_of_at_most_120_characters():
    lines = README.read_text().splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name if page.parent.name != "conf" else "conf")
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target}"
        assert not heading or heading in anchors(file), f"{page.name}: {target}"


def test_every_page_of_docs_is_linked_from_the_readme():
    linked = set(re.findall(r"\]\((docs/[^)#]+\.md)", README.read_text()))
    beside = {f"docs/{name}" for page in PAGES[3:] for name in re.findall(r"\]\(([^)#/]+\.md)", page.read_text())}
    assert {f"docs/{page.name}" for page in PAGES[3:]} <= linked | beside


def test_the_results_of_the_readme_are_published_claims():
    published = (REPOSITORY / "results/tables/cpu/claims.md").read_text()
    rows = [line.split("|")[2:4] for line in README.read_text().splitlines() if re.match(r"\| [^|]*\? .*\|", line)]
    assert len(rows) == 5
    for paper, ours in rows:
        value, _, interval = ours.strip().partition(" (")
        found = [line for line in published.splitlines() if f"| {paper.strip()} | {value} | {interval.rstrip(')')}" in line]
        assert found, (paper, ours)


def test_the_page_of_results_has_the_published_number_of_the_advisor():
    published = json.loads((REPOSITORY / "results/advisor/check.json").read_text())
    assert f"{published['summary']}." in (REPOSITORY / "docs/results.md").read_text().replace("15 %", "15%")
    assert published["summary"] in (REPOSITORY / "results/advisor/README.md").read_text()


def test_every_message_that_troubleshooting_quotes_is_one_of_the_package():
    code = "".join(path.read_text() for path in (REPOSITORY / "src").rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # a message may go on in the next line
    headings = re.findall(r"^## (.*)$", (REPOSITORY / "docs/troubleshooting.md").read_text(), flags=re.MULTILINE)
    messages = [message for heading in headings for message in re.findall(r'"([^"]*)"', heading)]
    quoted = [part.strip() for message in messages for part in message.split("...")]
    assert len(quoted) > 10
    ours = [part for part in quoted if "no kernel image" not in part]  # that is what torch says
    missing = [part for part in ours if re.sub(r"Tesla V100 \(sm_70\)|at the end, rank 1 ", "", part).strip() not in code]
    assert missing == []


@pytest.mark.parametrize("line", NEED_DATA)
def test_a_command_that_needs_data_has_settings_that_exist(line: str, tmp_path: Path):
    _, *words = shlex.split(line, comments=True)
    shown = subprocess.run(
        [sys.executable, "-m", "pufferfish_bench", *words, "--cfg", "job"], cwd=tmp_path, capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    assert "warmup_epochs:" in shown.stdout


def test_the_terminal_in_the_readme_shows_the_published_records(tmp_path: Path):
    records = [
        Record.read(REPOSITORY / "results/records/cpu/figure_demo" / method / "seed1") for method in ("vanilla", "pufferfish")
    ]
    payoff.write(*records, tmp_path / "demo-table.svg", Console(quiet=True))
    shown = REPOSITORY / "docs/demo-table.svg"
    assert shown.read_text() == (tmp_path / "demo-table.svg").read_text()
    assert str(shown.relative_to(REPOSITORY)) in README.read_text()
