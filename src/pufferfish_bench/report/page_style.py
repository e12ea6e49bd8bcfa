"""How the page of the report looks: its CSS, which knows classes and attributes but no table."""

BASE = """
:root { color-scheme: light dark; --line: #d5d9de; --faint: #56606b; --good: #00694b; --bad: #a83c00; --mixed: #765200;
  --link: #0a58a6; --back: #fff; --panel: #f4f6f8; --text: #1b1f23 }
html { scroll-padding-top: 1rem }
body { margin: 0 auto; padding: 0 1rem 2rem; max-width: 96rem;
  font: 16px/1.5 system-ui, sans-serif; background: var(--back); color: var(--text) }
[hidden] { display: none !important }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap }
.skip { position: absolute; left: 1rem; top: -4rem; padding: .5rem 1rem; background: var(--back); z-index: 3 }
.skip:focus { top: .5rem }
a { color: var(--link) } :focus-visible { outline: 2px solid var(--link); outline-offset: 2px }
h1 { margin: 1.2rem 0 .2rem; font-size: 1.7rem; line-height: 1.2 } header p { margin: 0 0 .6rem }
h2, h3 { line-height: 1.25 } h2 { margin: 0 0 .6rem; font-size: 1.35rem } h3 { margin: 1.4rem 0 .4rem; font-size: 1rem }
section { margin-top: 2.5rem; padding-top: 1.2rem; border-top: 1px solid var(--line) }
#summary { margin-top: .4rem; padding-top: .8rem; border: 0 }
.note, .provenance { color: var(--faint); font-size: .85rem } .note { margin: .4rem 0; max-width: 60rem }
.provenance { overflow-wrap: anywhere } code { font-size: .95em }
.good { color: var(--good) } .bad { color: var(--bad) }
"""
ANSWER = """
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem;
  margin: 0; padding: 0; list-style: none }
.tiles li > * { display: block; box-sizing: border-box; height: 100%; padding: .5rem .8rem .6rem; background: var(--panel);
  border-left: .3rem solid var(--look); border-radius: .3rem; color: var(--text); text-decoration: none; line-height: 1.3 }
.tiles b { display: block; font-size: 1.8rem; line-height: 1.2; color: var(--look) }
.tiles small { display: block; color: var(--faint) }
.tiles a span { text-decoration: underline; text-underline-offset: .2em } .tiles a:hover { background: var(--line) }
.tiles { --look: var(--faint) } .tiles .good { --look: var(--good) } .tiles .bad { --look: var(--bad) }
.tiles .mixed { --look: var(--mixed) }
.tiles .none { --look: var(--faint) } .tiles .none > * { border-color: var(--line); color: var(--faint) }
.openings { display: grid; gap: 1rem 2.5rem; margin-top: 1.2rem; align-items: start } .openings h3 { margin-top: 0 }
.opening { min-width: 0 } .waiting .caption { padding: 1rem; border: 1px dashed var(--faint); border-radius: .3rem }
.caption, .verdicts { font-size: .9rem } .caption { margin: .2rem 0 } .verdicts { margin: .4rem 0; padding-left: 1.1rem }
summary { cursor: pointer; padding: .3rem 0 } summary h3 { display: inline; margin: 0 } details.sheet { margin-top: 1.2rem }
"""
BAR = """
.bar { display: flex; flex-wrap: wrap; gap: .3rem 1.5rem; align-items: center; justify-content: space-between;
  padding: .3rem 0; background: var(--back); border-bottom: 1px solid var(--line) }
nav { position: relative; display: flex; flex: 1 1 30rem; flex-wrap: wrap; gap: 0 .1rem; align-items: baseline;
  font-size: .95rem }
nav a { padding: .25rem .4rem; min-width: 1rem; text-align: center }
nav .kind { margin-left: .7rem; color: var(--faint); font-size: .85rem }
search { display: flex; flex-wrap: wrap; gap: .2rem .5rem; align-items: center; font-size: .9rem }
search input { font: inherit; color: inherit; background: var(--back); border: 1px solid var(--faint); border-radius: .3rem;
  padding: .25rem .5rem; width: 13rem } search output { color: var(--faint) }
::placeholder { color: var(--faint); opacity: 1 }
@media screen and (min-width: 60rem) and (min-height: 35rem) {
  .bar { position: sticky; top: 0; z-index: 2 } html { scroll-padding-top: 4.5rem } }
"""
TABLES = """
.beside { display: grid; grid-template-columns: minmax(0, 1fr); gap: 1rem 2rem; align-items: start }
.scroll, .plot { position: relative; overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; white-space: nowrap }
th, td { padding: .3rem .45rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: baseline }
thead th { vertical-align: bottom } th:first-child { padding-left: 0 }
tbody th { font-weight: 400 } tbody tr:hover { background: var(--panel) }
.words, tbody th, td:not([data-key], .number) { text-align: left }
tbody th, td:not([data-key], .number, :empty) { white-space: normal; min-width: 7rem }
thead button { all: unset; cursor: pointer; font-weight: 600 } thead button:focus-visible { outline: 2px solid var(--link) }
thead button:hover { text-decoration: underline dotted }
th[aria-sort=ascending] button::after { content: " \\25B2" / "" }
th[aria-sort=descending] button::after { content: " \\25BC" / "" }
small { white-space: nowrap; font-size: .8rem } .tiles small { white-space: normal }
th small a { display: inline-block; min-width: 1.5rem; line-height: 1.5rem; text-align: center; border-radius: .3rem }
th small a:hover { background: var(--line) }
.plot { margin-bottom: 1rem; border-radius: .4rem } .plot img { display: block; width: 100%; min-width: 30rem; max-width: 40rem }
.openings .plot img { min-width: 0; max-width: 100% }
#claims table { width: 100% } #claims tbody th { min-width: 14rem }
"""
# On a phone a row is a card, and the names of the columns are buttons to sort by: nothing is out of sight.
WIDTHS = """
@media (min-width: 60rem) {
  .openings { grid-template-columns: repeat(2, minmax(0, 1fr)) }
  .openings:has(.waiting) { grid-template-columns: minmax(0, 1fr) }
  .openings:has(.waiting) .shown { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 2.5rem } }
@media (min-width: 78rem) {
  .beside { grid-template-columns: minmax(0, 48rem) minmax(0, 1fr); gap: 1.5rem }
  table { font-size: .8rem } h3 + .scroll table { white-space: normal } .plot img { min-width: 0 }
  #claims table { white-space: nowrap } }
@media screen and (max-width: 44rem) {
  table, thead, tbody { display: block; white-space: normal }
  thead tr { display: flex; flex-wrap: wrap; gap: .4rem; margin-bottom: .4rem }
  thead th { padding: 0; border: 0 }
  thead button { padding: .45rem .6rem; border: 1px solid var(--line); border-radius: .4rem; font-weight: 400; font-size: .8rem }
  tbody tr { display: flex; flex-wrap: wrap; gap: .1rem 1rem; padding: .6rem 0; border-bottom: 1px solid var(--line) }
  tbody th, td:nth-child(n) { padding: 0; border: 0; text-align: left; min-width: 0 }
  tbody th, td[data-label=verdict] { flex-basis: 100% } tbody th { font-weight: 600 } td:empty { display: none }
  td[data-label]:not(:nth-child(2)):not([data-label=verdict])::before { content: attr(data-label) " "; color: var(--faint) }
  th small a { min-width: 2.5rem; line-height: 2.5rem; border: 1px solid var(--line) }
  nav { flex-basis: 100%; flex-wrap: nowrap; overflow-x: auto }
  nav a { min-width: 1.5rem; padding: .5rem; flex: none }
  .tiles { grid-template-columns: repeat(2, 1fr) } search input { width: 11rem } }
"""
MODES = """
@media screen and (prefers-color-scheme: dark) {
  :root { --line: #3a4048; --faint: #9aa5b1; --good: #4fd1a5; --bad: #ff9b66; --mixed: #e3b341; --link: #7db8ff;
    --back: #14171a; --panel: #1e2328; --text: #e6e9ec }
  .plot img { filter: invert(.91) hue-rotate(180deg) brightness(1.2) } }
@media print {
  @page { size: A4 landscape; margin: 12mm } :root { color-scheme: light }
  body { padding: 0; font-size: 10pt; max-width: none } .bar, .skip, .opening .note { display: none } a { color: inherit }
  .scroll, .plot { overflow: visible } table { font-size: 8pt; white-space: normal } section { margin-top: 1rem }
  h2, h3, summary { break-after: avoid } tr, thead, .plot, .tiles { break-inside: avoid }
  .plots, .openings, .shown { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 1rem }
  .openings:has(.waiting), .openings:not(:has(.waiting)) .shown { grid-template-columns: minmax(0, 1fr) }
  .plot img { width: auto; min-width: 0; max-width: 100%; max-height: 17cm } .openings .plot img { max-height: 8.5cm }
  .tiles { grid-template-columns: repeat(6, 1fr) }
  .tiles li > * { border: 1px solid var(--line); border-left: .3rem solid var(--look) } }
"""
STYLE = BASE + ANSWER + BAR + TABLES + WIDTHS + MODES
