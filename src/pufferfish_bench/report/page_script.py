"""What the page of the report does: sorting, searching and opening what a link points to. It knows classes, but no table."""

# A number is sorted by its value, whatever unit it is shown in; words come after numbers, and what is empty last.
SORT = """
const all = (asked, inside = document) => [...inside.querySelectorAll(asked)];
for (const table of all("table")) {
  const body = table.tBodies[0], heads = all("thead th", table), asItWas = [...body.rows];
  const next = { ascending: "descending", descending: null };
  heads.forEach((head, at) => head.querySelector("button").addEventListener("click", () => {
    const now = head.getAttribute("aria-sort"), way = now ? next[now] : "ascending", sign = way === "descending" ? -1 : 1;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    if (way) head.setAttribute("aria-sort", way);
    const order = (a, b) => {
      const [one, other] = [a, b].map(row => row.cells[at].dataset.key ?? row.cells[at].textContent);
      const kind = text => text === "" ? 2 : isNaN(text) ? 1 : 0;
      if (kind(one) !== kind(other)) return kind(one) - kind(other);
      return sign * (kind(one) === 0 ? one - other : one.localeCompare(other, "en", { numeric: true }));
    };
    body.append(...(way ? [...asItWas].sort(order) : asItWas));
  }));
}
"""
# A phone shows rows as cards, in which the name of the column stands beside each value.
# Browsers forget that a table is one if its display is changed: the roles say so.
ROLES = """
const roles = {
  table: "table", "thead, tbody": "rowgroup", tr: "row", "thead th": "columnheader", "tbody th": "rowheader", td: "cell" };
for (const table of all("table")) {
  const names = all("thead th", table).map(head => head.textContent);
  for (const row of table.tBodies[0].rows) names.forEach((name, at) => { if (at) row.cells[at].dataset.label = name; });
}
for (const [asked, role] of Object.entries(roles)) all(asked).forEach(found => found.setAttribute("role", role));
"""
# A row stays if it has all words, its headings included; what has no such row is hidden, and what is collapsed opens.
SEARCH = """
const search = document.querySelector("search");
if (search) {
  const field = search.querySelector("input"), answer = search.querySelector("output");
  const title = row => row.closest("section").querySelector("h2").textContent + " " + row.closest("table").caption.textContent;
  const text = row => [title(row), ...[...row.cells].map(cell => cell.textContent)].join(" ").toLowerCase();
  const known = all("main tbody tr").map(row => [row, text(row)]);
  const folded = all("details.sheet"), boxes = all(".sheet, main section");
  let opened = null;
  const find = () => {
    const words = field.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let count = 0;
    for (const [row, text] of known) count += !(row.hidden = !words.every(word => text.includes(word)));
    for (const box of boxes) box.hidden = words.length > 0 && !box.querySelector("tbody tr:not([hidden])");
    if (words.length && !opened) opened = folded.map(box => box.open);
    folded.forEach((box, at) => { if (words.length) box.open = true; else if (opened) box.open = opened[at]; });
    if (!words.length) opened = null;
    const found = count ? `${count} of ${known.length} rows` : "nothing found: a row must have all words";
    answer.textContent = words.length ? found : "";
  };
  search.hidden = false;
  field.addEventListener("input", find);
  addEventListener("click", event => {
    if (!event.target.closest('a[href^="#"]') || !field.value) return;
    field.value = "";
    find();
  });
}
"""
# A collapsed part opens if it is linked to, and on paper, where nobody can open it, if it explains how to read the rest.
OPEN = """
const open = () => document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", "");
addEventListener("click", event => event.target.closest('a[href^="#"]') && setTimeout(open));
addEventListener("hashchange", open);
open();
const explained = document.getElementById("reading");
let before;
addEventListener("beforeprint", () => { before = explained.open; explained.open = true; });
addEventListener("afterprint", () => { explained.open = before; });
"""
SCRIPT = SORT + ROLES + SEARCH + OPEN
