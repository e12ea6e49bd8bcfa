"""What the page embeds of a chart is the same picture with a shorter text."""

import json
import xml.etree.ElementTree
from pathlib import Path
from urllib.parse import quote

import pytest

from pufferfish_bench.report import svg
from tests.support.browser import asked, in_browser
from tests.support.repository import REPOSITORY

PUBLISHED = sorted((REPOSITORY / "results").glob("*/cpu/*.svg"))
ENOUGH = 0.55  # of the letters


def texts(picture: str) -> list[str]:
    return [
        "".join(found.itertext()) for found in xml.etree.ElementTree.fromstring(picture).iter() if found.tag.endswith("}text")
    ]


def test_it_is_about_half_as_long_with_the_same_words():
    assert PUBLISHED
    before = [path.read_text() for path in PUBLISHED]
    after = list(map(svg.smaller, before))
    assert sum(map(len, after)) < ENOUGH * sum(map(len, before))
    assert list(map(texts, after)) == list(map(texts, before))
    assert list(map(svg.smaller, after)) == after  # nothing more to gain, and nothing lost the second time


EMPTY = "<svg xmlns='http://www.w3.org/2000/svg'><defs><style>*{}</style></defs>CONTENT</svg>"


def test_a_text_that_looks_like_a_tag_stays_as_it_is():
    words = 'style="a: b" id="m0123456789" d="M 1.23456 2 L 3 4"  "quoted" url(#p) 1.23456'
    assert texts(svg.smaller(EMPTY.replace("CONTENT", f'<g><text x="1.23456">{words}</text></g>'))) == [words]


def test_groups_without_attributes_go_and_the_others_stay_closed():
    content = '<g><g a="1"><g><path d="M 0 0 "/></g></g></g><g b="2"></g>'
    assert svg.smaller(EMPTY.replace("CONTENT", content)) == EMPTY.replace(
        "CONTENT", '<g a="1"><path d="M0 0"/></g><g b="2"></g>'
    )


DIFFERENCE = """
  const pixels = address => { const image = new Image(); image.src = address; return image; };
  return PICTURES.map(pair => { const [one, other] = pair.map(id => {
    const image = document.getElementById(id), canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    const context = canvas.getContext("2d"); context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, canvas.width, canvas.height).data; });
    if (one.length !== other.length || !one.some(value => value < 128)) return null;
    let far = 0; for (let at = 0; at < one.length; at++) far += Math.abs(one[at] - other[at]) > 96;
    return far / one.length; });"""


@in_browser
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_browser_draws_the_same(tmp_path: Path, path: Path):
    before = path.read_text()
    after = svg.smaller(before)
    wrong = after.replace("</style>", "*{stroke-width:4!important}</style>")
    images = {"before": before, "after": after, "wrong": wrong}
    text = "".join(f"<img id={name} src='data:image/svg+xml,{quote(picture)}'>" for name, picture in images.items())
    script = DIFFERENCE.replace("PICTURES", json.dumps([["before", "after"], ["before", "wrong"]]))
    same, different = asked(f"<!doctype html><body>{text}</body>", script, tmp_path)
    assert same is not None
    assert same < 0.002  # of the picture: edges of lines and letters that moved by a fraction of a pixel
    assert different > 4 * same
