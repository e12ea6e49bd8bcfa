"""The page of the report: it is self-contained, and a real browser shows and sorts what the records say."""

import html
import html.parser
import re
from pathlib import Path

import pytest

from pufferfish_bench.paper import tables, verdicts
from pufferfish_bench.report import claim_sheets, page_script, page_tables, reproduction
from pufferfish_bench.report.output import Cell, Sheet
from tests.support.browser import asked, in_browser
from tests.support.records import ablation, report, write_cell, write_counted
from tests.support.repository import REPOSITORY


class Parsed(html.parser.HTMLParser):
    """What a page refers to, and whether its tags are closed."""

    def __init__(self, text: str):
        super().__init__()
        self.references: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.references += [value for key, value in attributes if key in ("href", "src")]
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_loads_nothing_from_elsewhere_and_every_link_has_a_target(tmp_path: Path):
    report(ablation(tmp_path))
    text = (tmp_path / "report-cpu.html").read_text()
    parsed = Parsed(text)
    assert parsed.open == []
    links = [link for link in parsed.references if not link.startswith("data:")]
    assert sum(link.startswith("records/") for link in links) == 4 * 3  # four cells, each with three seeds
    for link in links:
        assert f'id="{link[1:]}"' in text if link.startswith("#") else (tmp_path / link).is_file()
    assert not re.search(r"https?://|@import|url\(", re.sub(r"data:[^']*", "", text))


def test_how_to_read_the_tables_is_explained_once(tmp_path: Path):
    write_cell(ablation(tmp_path), "cpu/table6/vgg19_vanilla", (1.0, 2.0))
    report(tmp_path)
    text = html.unescape(re.sub("</?code>", "", (tmp_path / "report-cpu.html").read_text()))
    for note in (reproduction.READING, claim_sheets.READING):
        assert text.count(note.replace("`", "")) == 1
        assert note in (tmp_path / "tables/cpu/table6.md").read_text()


def test_the_note_of_a_table_is_shown_with_that_table_only(tmp_path: Path):
    write_cell(ablation(tmp_path), "cpu/table6/vgg19_vanilla", (1.0, 2.0))
    report(tmp_path)
    note = tables.read("table6", "cpu").note
    _, *sections = html.unescape((tmp_path / "report-cpu.html").read_text()).split("<section ")
    assert [note in section for section in sections] == ['id="table6"' in section for section in sections]
    assert sum(note in section for section in sections) == 1
    assert note in (tmp_path / "tables/cpu/table6.md").read_text()


def test_tables_without_a_picture_use_the_full_width(tmp_path: Path):
    write_counted(tmp_path, "cpu/table1/fc_vanilla", parameters=262144, macs=262144)
    report(tmp_path)
    assert '<div class="beside">' not in (tmp_path / "report-cpu.html").read_text()
    ablation(tmp_path)
    report(tmp_path)
    assert (tmp_path / "report-cpu.html").read_text().count('<div class="beside">') == 1


def test_names_in_records_cannot_break_the_page(tmp_path: Path):
    write_cell(tmp_path, "cpu/table8/low_rank", (1.0,), device="<script>alert(1)</script>|")
    report(tmp_path)
    assert "<script>alert" not in (tmp_path / "report-cpu.html").read_text()


@pytest.mark.parametrize(
    ("cell", "key"),
    [(Cell("18.0 M", 17_986_333.0), "17986333"), (Cell("1,234.5 ± 0.2", 1234.5), "1234.5"),
     (Cell("1.64x", 1 / 0.61), "1.639344262"), (Cell("0", 0.0), "0"),
     (Cell("holds"), "holds"), (Cell("<b>"), "&lt;b&gt;"), (Cell(""), "")],
)  # fmt: skip
def test_a_cell_is_sorted_by_its_value_and_without_one_by_its_text(cell: Cell, key: str):
    assert page_tables.sort_key(cell) == key


def test_verdicts_have_the_colour_of_what_they_say():
    for verdict, colour in [
        (verdicts.HOLDS, "good"),
        (verdicts.OF_THAT_ORDER, "good"),
        (verdicts.OPPOSITE, "bad"),
        (verdicts.ALIKE, None),
    ]:
        assert (f'class="{colour}"' in page_tables.table_cell(Cell(verdict))) == (colour is not None)
        assert ("class" in page_tables.table_cell(Cell(verdict))) == (colour is not None)


@in_browser
def test_a_browser_shows_the_figures_and_sorts_them(tmp_path: Path):
    report(ablation(tmp_path))
    text = (tmp_path / "report-cpu.html").read_text()
    click_ours = """
      const body = document.querySelector("#table8 tbody"), head = document.querySelectorAll("#table8 thead th")[3], seen = [];
      const note = () => seen.push([head.ariaSort, [...body.rows].map(row => [...row.cells].map(cell => cell.textContent))]);
      note(); for (let click = 0; click < 3; click++) { head.querySelector("button").click(); note(); }
      return seen;"""
    (_, as_is), (up, rising), (down, falling), (_, once_more) = asked(text, click_ours, tmp_path)
    assert [row[3] for row in as_is if row[1] == "test accuracy, %"] == [
        "81.50 ± 0.50", "70.90 ± 0.92", "71.00 ± 1.00", "80.50 ± 0.50",
    ]  # fmt: skip
    assert (up, down) == ("ascending", "descending")
    ours = [float(row[3].split()[0]) for row in rising]
    assert ours == sorted(ours)
    assert [float(row[3].split()[0]) for row in falling] == ours[::-1]
    assert sorted(rising) == sorted(falling) == sorted(as_is)
    assert rising != as_is == once_more


@in_browser
def test_numbers_are_sorted_by_value_and_what_is_empty_comes_last(tmp_path: Path):
    shown = [
        Cell("0.40 G", 0.4e9), "", Cell("18.0 M", 18e6), Cell("+0.95", 0.95), "text", Cell("1,234.5 ± 0.2", 1234.5),
        Cell("1.64x", 1.64), Cell("-0.26 G", -0.26e9), "9 and 9", "10 and 9",
    ]  # fmt: skip
    sheet = Sheet("", ("cell", "ours"), [(str(number), cell) for number, cell in enumerate(shown)])
    text = f"<html><body>{page_tables.table(sheet, 'values')}<script>{page_script.SORT}</script></html>"
    click = """
      const head = document.querySelectorAll("thead th")[1], seen = [];
      for (let click = 0; click < 2; click++) {
        head.querySelector("button").click();
        seen.push([...document.querySelector("tbody").rows].map(row => row.cells[1].textContent)); }
      return seen;"""
    rising, falling = asked(text, click, tmp_path)
    numbers, others = ["-0.26 G", "+0.95", "1.64x", "1,234.5 ± 0.2", "18.0 M", "0.40 G"], ["9 and 9", "10 and 9", "text"]
    assert rising == [*numbers, *others, ""]
    assert falling == [*numbers[::-1], *others[::-1], ""]


PLACES = """
  const box = found => { const { left, right, top, bottom, width, height } = found.getBoundingClientRect();
    return { left, right, top, bottom, width, height } };
  const all = asked => [...document.querySelectorAll(asked)].map(box);
  return { page: document.documentElement.scrollWidth, window: innerWidth, verdicts: all("td:last-child"),
    beside: all(".tables td:last-child"), links: all("small a"),
    tables: all(".tables"), plots: all(".plot"), pictures: all(".plot img"), buttons: all("th button") };"""


@pytest.fixture
def with_counts(tmp_path: Path) -> str:
    """A page with long claims, a wide table and a picture."""
    write_counted(tmp_path, "cpu/table4/vgg19_vanilla_counted", parameters=20560331, macs=1, macs_as_in_paper=399267840)
    write_cell(tmp_path, "cpu/table4/vgg19_pufferfish_fp32", (90.0, 91.0))
    write_cell(tmp_path, "cpu/figure6/pufferfish_powersgd", (90.0, 91.0))
    report(tmp_path)
    return (tmp_path / "report-cpu.html").read_text()


@in_browser
def test_on_a_phone_verdicts_are_visible_text_is_readable_and_links_are_large_enough(tmp_path: Path, with_counts: str):
    seen = asked(with_counts, PLACES, tmp_path, width=390)
    assert seen["page"] <= seen["window"] == 390
    assert seen["verdicts"]
    assert all(verdict["right"] <= 390 for verdict in seen["verdicts"])
    assert all(min(link["width"], link["height"]) >= 40 for link in seen["links"])
    assert all(button["height"] >= 32 for button in seen["buttons"])
    assert all(plot["right"] <= 390 for plot in seen["plots"])  # a picture scrolls in its box
    assert all(picture["width"] >= 480 for picture in seen["pictures"])
    assert seen["plots"][0]["top"] >= seen["tables"][0]["bottom"]


@in_browser
def test_on_a_wide_screen_pictures_stand_beside_their_table(tmp_path: Path, with_counts: str):
    seen = asked(with_counts, PLACES, tmp_path, width=1280)
    assert seen["page"] <= seen["window"] == 1280
    assert seen["beside"]
    assert all(verdict["right"] <= seen["tables"][0]["right"] + 1 for verdict in seen["beside"])
    assert seen["plots"][0]["left"] >= seen["tables"][0]["right"]
    assert seen["plots"][0]["top"] == pytest.approx(seen["tables"][0]["top"], abs=5)
    assert all(plot["right"] <= 1280 for plot in seen["plots"])


@in_browser
@pytest.mark.parametrize("width", [390, 800])
def test_the_published_page_is_as_wide_as_the_window(tmp_path: Path, width: int):
    text = (REPOSITORY / "results/report-cpu.html").read_text()
    seen = asked(text, PLACES, tmp_path, width=width)
    assert seen["page"] <= seen["window"] == width


@in_browser
def test_the_published_page_shows_its_claims_and_pictures(tmp_path: Path):
    results = REPOSITORY / "results"
    seen = asked(
        (results / "report-cpu.html").read_text(),
        """
      return { claims: [...document.querySelectorAll("#claims tbody tr")].map(row => row.cells.length),
        sections: [...document.querySelectorAll("section")].map(section => section.id),
        pictures: [...document.images].map(image => image.naturalWidth) };""",
        tmp_path,
    )
    judged = (results / "tables/cpu/claims.md").read_text().splitlines()
    assert len(seen["claims"]) == sum(line.startswith(("| Table ", "| Figure ")) for line in judged)
    recorded = [name for name in tables.names() if (results / "records/cpu" / name).is_dir()]
    assert seen["sections"] == ["summary", "claims", *recorded]
    assert seen["pictures"]
    assert all(width > 0 for width in seen["pictures"])  # a picture that cannot be read has none
