"""How the page of the report looks and behaves: its CSS and its script, which know classes and attributes but no table."""

# On a phone a row is a card, and the names of the columns are buttons to sort by: nothing is out of sight.
STYLE = """
:root { color-scheme: light dark; --line: #d5d9de; --faint: #5b6570; --good: #00694b; --bad: #a83c00;
  --back: #fff; --text: #1b1f23 }
body { margin: 0 auto; padding: 1rem; max-width: 96rem;
  font: 16px/1.5 system-ui, sans-serif; background: var(--back); color: var(--text) }
a { color: inherit } nav { display: flex; flex-wrap: wrap; gap: .2rem .4rem } nav a { padding: .4rem .5rem }
section { margin-top: 2.5rem } h2, h3 { line-height: 1.25 } .note, .provenance { color: var(--faint); font-size: .85rem }
.note { margin: .4rem 0; max-width: 60rem } .provenance { overflow-wrap: anywhere }
.beside { display: grid; grid-template-columns: minmax(0, 1fr); gap: 1rem 2rem; align-items: start }
.scroll, .plot { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; white-space: nowrap }
th, td { padding: .3rem .45rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: baseline }
th:first-child, td:first-child { padding-left: 0 }
.words { text-align: left } td.words { white-space: normal; min-width: 7rem }
th button { all: unset; cursor: pointer; font-weight: 600 } th button:focus-visible { outline: 2px solid }
th[aria-sort=ascending] button::after { content: " \\25B2" } th[aria-sort=descending] button::after { content: " \\25BC" }
small { white-space: nowrap } small a { display: inline-block; padding: .1rem .45rem; border-radius: .3rem }
small a:hover { background: var(--line) }
.good { color: var(--good) } .bad { color: var(--bad) }
.plot { margin-bottom: 1rem; border-radius: .4rem } .plot img { display: block; width: 100%; min-width: 30rem; max-width: 40rem }
@media (min-width: 78rem) {
  .beside { grid-template-columns: minmax(0, 48rem) minmax(0, 1fr); gap: 1.5rem }
  table { font-size: .8rem } h3 + .scroll table { white-space: normal } .plot img { min-width: 0 } }
@media (max-width: 44rem) {
  table, thead, tbody { display: block; white-space: normal }
  thead tr { display: flex; flex-wrap: wrap; gap: .4rem; margin-bottom: .4rem }
  thead th { padding: 0; border: 0 }
  th button { padding: .45rem .6rem; border: 1px solid var(--line); border-radius: .4rem; font-weight: 400; font-size: .8rem }
  tbody tr { display: flex; flex-wrap: wrap; gap: .1rem 1rem; padding: .6rem 0; border-bottom: 1px solid var(--line) }
  td:nth-child(n) { padding: 0; border: 0; text-align: left; min-width: 0 }
  td:first-child, td[data-label=verdict] { flex-basis: 100% } td:first-child { font-weight: 600 } td:empty { display: none }
  td[data-label]:not(:nth-child(2)):not([data-label=verdict])::before { content: attr(data-label) " "; color: var(--faint) }
  small a { min-width: 2.5rem; padding: 0; line-height: 2.5rem; text-align: center; border: 1px solid var(--line) } }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a4048; --faint: #9aa5b1; --good: #4fd1a5; --bad: #ff9b66; --back: #14171a; --text: #e6e9ec }
  .plot img { filter: invert(.91) hue-rotate(180deg) } }
"""
# A number is sorted by its value, whatever unit it is shown in; words come after numbers, and what is empty last.
SCRIPT = """
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], heads = [...table.querySelectorAll("th")], asItWas = [...body.rows];
  const next = { ascending: "descending", descending: null };
  heads.forEach((head, at) => head.querySelector("button").addEventListener("click", () => {
    const now = head.getAttribute("aria-sort"), way = now ? next[now] : "ascending", sign = way === "descending" ? -1 : 1;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    if (way) head.setAttribute("aria-sort", way);
    const order = (a, b) => {
      const [one, other] = [a, b].map(row => row.cells[at].dataset.value);
      const kind = text => text === "" ? 2 : isNaN(text) ? 1 : 0;
      if (kind(one) !== kind(other)) return kind(one) - kind(other);
      return sign * (kind(one) === 0 ? one - other : one.localeCompare(other, "en", { numeric: true }));
    };
    body.append(...(way ? [...asItWas].sort(order) : asItWas));
  }));
}
"""
