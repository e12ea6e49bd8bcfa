"""A real browser for pages: what a script returns in Chromium."""

import html
import json
import os
import re
import shutil
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")


def asked(text: str, script: str, home: Path, *, width: int = 1280, dark: bool = False) -> Any:
    """What a script returns in Chromium, on a page that is so wide: in a frame, as a window cannot be as narrow as a phone."""
    answer = "encodeURIComponent(JSON.stringify(this.contentWindow.Function(this.dataset.script)()))"
    frame = f'<iframe style="width: {width}px; height: 844px; border: 0" data-script="{html.escape(script)}"'
    frame += f' onload="document.querySelector(\'pre\').textContent = {answer}" srcdoc="{html.escape(text)}"></iframe>'
    (home / "asked.html").write_text(f'<!doctype html><meta charset="utf-8"><pre></pre>{frame}')
    words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={home / 'browser'}"]
    words += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", (home / "asked.html").as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=os.environ | {"HOME": str(home)})
    return json.loads(urllib.parse.unquote(re.findall(r"<pre>(.*?)</pre>", done.stdout)[0]))


# What WCAG 2.2 (AA) and good practice ask of a page of tables; each finding is the name of a rule and where it is broken.
FAULTS = """
  const all = (asked, inside = document) => [...inside.querySelectorAll(asked)], found = [];
  const fault = (rule, element) => found.push([rule, (element?.outerHTML ?? "").slice(0, 120)]);
  const shown = element => element.checkVisibility({ visibilityProperty: true }) && !element.closest(".unseen");
  const own = element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  const light = ([r, g, b]) => [[r, 0.2126], [g, 0.7152], [b, 0.0722]].reduce((sum, [value, weight]) => {
    const part = value / 255; return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4) }, 0);
  const numbers = colour => colour.match(/[0-9.]+/g).map(Number);
  const behind = at => { for (; at; at = at.parentElement) { const colour = numbers(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour; } return [255, 255, 255] };
  const contrast = at => { const pair = [numbers(getComputedStyle(at).color), behind(at)].map(colour => light(colour) + 0.05);
    return Math.max(...pair) / Math.min(...pair) };
  const named = at => (at.getAttribute("aria-label") ?? at.textContent).trim() || all("img", at).some(image => image.alt.trim());
  all("details").forEach(part => part.open = true);
  const texts = all("body *").filter(at => own(at) && !at.closest("script, style"));
  texts.filter(shown).forEach(at => contrast(at) < 4.5 && fault("contrast", at));
  all("a, button, summary").forEach(at => named(at) || fault("name", at));
  all("a").forEach(at => at.getAttribute("href") || fault("link", at));
  all("input").forEach(at => at.labels.length || fault("label", at));
  all("img").forEach(at => at.alt.trim().length > 20 || fault("alt", at));
  const alts = all("img").map(at => at.alt);
  all("img").forEach((at, place) => alts.indexOf(at.alt) === place || fault("same alt", at));
  const ids = all("[id]").map(at => at.id);
  all("[id]").forEach((at, place) => ids.indexOf(at.id) === place || fault("same id", at));
  const heads = all("h1, h2, h3, h4, h5, h6"), level = head => Number(head.tagName[1]);
  heads.forEach((head, at) => level(head) > (at ? level(heads[at - 1]) + 1 : 1) && fault("order of headings", head));
  if (all("h1").length !== 1) fault("one h1");
  const landmarks = ["main", "body > header", "nav[aria-label]", "search"];
  landmarks.forEach(asked => all(asked).length === 1 || fault("landmark"));
  texts.forEach(at => at.closest("header, nav, search, main, .skip") || fault("outside of landmarks", at));
  if (!document.documentElement.lang || !document.title) fault("lang and title");
  for (const table of all("table")) {
    if (!table.caption?.textContent.trim()) fault("caption", table);
    const names = all("thead th", table);
    names.forEach(head => head.scope === "col" && all("button", head).length === 1 || fault("column heading", head));
    for (const row of table.tBodies[0].rows) {
      if (row.cells[0].tagName !== "TH" || row.cells[0].scope !== "row") fault("row heading", row);
      if (row.cells.length !== names.length) fault("number of cells", row);
    }
    for (const [asked, role] of [["thead th", "columnheader"], ["tbody th", "rowheader"], ["td", "cell"], ["tr", "row"]])
      all(asked, table).forEach(at => at.getAttribute("role") === role || fault("role", at));
  }
  for (const at of all("th button, a, summary, input").filter(shown)) {
    at.focus();
    if (document.activeElement !== at || getComputedStyle(at).outlineStyle === "none") fault("focus", at);
  }
  return found;"""
