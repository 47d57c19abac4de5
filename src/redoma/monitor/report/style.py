"""How a page looks: light and dark, on a phone, on a desk and on paper."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f5f6f8; --card: #ffffff; --ink: #16191d; --soft: #59626d; --line: #dfe3e8; --track: #e7eaee;
  --ok: #137538; --warning: #a94e08; --critical: #c81e1e; --unknown: #6d28d9; --accent: #1d5fd1;
  --ok-wash: #e5f4ea; --warning-wash: #fdf1dd; --critical-wash: #fde8e8; --unknown-wash: #efe8fd;
  --shadow: 0 1px 2px rgb(16 24 40 / .06), 0 1px 3px rgb(16 24 40 / .04);
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0e1116; --card: #171b22; --ink: #e8ebef; --soft: #9aa4b1; --line: #2a313b; --track: #262d36;
    --ok: #4ac26b; --warning: #e3a32f; --critical: #ff7b72; --unknown: #b69cff; --accent: #6ea8fe;
    --ok-wash: #12261a; --warning-wash: #2d2210; --critical-wash: #331819; --unknown-wash: #231c3a;
    --shadow: none;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif;
  -webkit-text-size-adjust: 100%;
}
main, footer { max-width: 70rem; margin: 0 auto; padding: 0 1.25rem; }
h1, h2, h3, p, dl, dd, ul, ol { margin: 0; padding: 0; }
h1 { font-size: 1.75rem; line-height: 1.2; font-weight: 680; letter-spacing: -.015em; overflow-wrap: anywhere; }
h2 { font-size: 1.0625rem; font-weight: 640; margin: 2.25rem 0 .75rem; }
h3 small { font-weight: 400; }
h2 small { font-weight: 400; font-size: .875rem; color: var(--soft); margin-left: .5rem; }
h3 { font-size: 1rem; font-weight: 620; overflow-wrap: anywhere; }
time, .soft { color: var(--soft); font-size: .875rem; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .8125rem; }
bdi { unicode-bidi: isolate; overflow-wrap: anywhere; }
svg { display: block; }

.top { display: flex; flex-wrap: wrap; gap: 1rem 2rem; align-items: center; justify-content: space-between;
  padding: 2rem 0 1.25rem; }
.badge { display: inline-flex; align-items: center; gap: .625rem; padding: .625rem 1.125rem; border-radius: 999px;
  font-weight: 640; font-size: 1.0625rem; }
.badge svg { width: 1.375rem; height: 1.375rem; flex: none; }
.counts { display: grid; grid-template-columns: repeat(4, 1fr); gap: .75rem; list-style: none; }
.counts li, .card, .rows, details { background: var(--card); border: 1px solid var(--line); border-radius: .75rem;
  box-shadow: var(--shadow); }
.counts li { padding: .75rem 1rem; }
.counts b { display: block; font-size: 1.75rem; line-height: 1.2; font-weight: 660;
  font-variant-numeric: tabular-nums; }
.counts span { color: var(--soft); font-size: .875rem; }
.counts .none b { color: var(--soft); font-weight: 400; }

.ok { --tone: var(--ok); --wash: var(--ok-wash); } .warning { --tone: var(--warning); --wash: var(--warning-wash); }
.critical { --tone: var(--critical); --wash: var(--critical-wash); }
.unknown { --tone: var(--unknown); --wash: var(--unknown-wash); }
.badge, .pill { background: var(--wash); color: var(--tone); }
.icon { fill: var(--tone); } .icon .on { fill: none; stroke: var(--card); stroke-width: 2; stroke-linecap: round;
  stroke-linejoin: round; }
.counts li:not(.none) b { color: var(--tone); }

.cards { display: grid; gap: .75rem; }
.alert { border-left: .3125rem solid var(--tone); padding: 1rem 1.25rem; }
.alert header { display: flex; flex-wrap: wrap; gap: .25rem .75rem; align-items: center; }
.alert header svg { width: 1.25rem; height: 1.25rem; flex: none; }
.pill { font-size: .8125rem; font-weight: 620; padding: .0625rem .5625rem; border-radius: 999px; }
.alert .message { font-size: 1.0625rem; margin: .5rem 0 .375rem; white-space: pre-line; }
.alert .strip { margin-top: .75rem; }
.facts { display: flex; flex-wrap: wrap; gap: .125rem 1.25rem; color: var(--soft); font-size: .875rem; }

.rows { list-style: none; overflow: hidden; }
.rows > li { display: grid; grid-template-columns: 1.25rem minmax(0, 1fr) minmax(8rem, 15rem) 7.5rem; gap: .25rem 1rem;
  align-items: center; padding: .625rem 1.25rem; }
.rows > li + li { border-top: 1px solid var(--line); }
.rows > li > .icon { width: 1.125rem; height: 1.125rem; }
.rows .by { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.rows p { color: var(--soft); font-size: .875rem; }

.strip { width: 100%; height: .625rem; border-radius: .1875rem; background: var(--track); }
.strip rect { fill: var(--tone); }
.strip .ok { opacity: .55; }

.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)); gap: .75rem; }
.plot { padding: .875rem 1rem .75rem; min-width: 0; }
.plot header { display: flex; justify-content: space-between; align-items: baseline; gap: 1rem; }
.plot h3 { font-weight: 500; font-size: .9375rem; color: var(--soft); }
.plot b { font-size: 1.375rem; font-weight: 640; font-variant-numeric: tabular-nums; white-space: nowrap; }
.plot .frame { position: relative; margin: 1.25rem 0 .25rem; }
.plot .top-of-scale { position: absolute; bottom: 100%; left: 0; color: var(--soft); font-size: .6875rem;
  line-height: 1.4; }
.plot .area { width: 100%; height: 5.5rem; overflow: visible; }
.plot .area .fill { fill: var(--accent); opacity: .13; }
.plot .area .line { fill: none; stroke: var(--accent); stroke-width: 1.75; vector-effect: non-scaling-stroke;
  stroke-linejoin: round; stroke-linecap: round; }
.plot .area .grid { stroke: var(--line); stroke-width: 1; vector-effect: non-scaling-stroke; }
.plot .ends { display: flex; justify-content: space-between; gap: .5rem; color: var(--soft); font-size: .75rem;
  font-variant-numeric: tabular-nums; }
.plot .bar { width: 100%; height: .625rem; border-radius: .3125rem; background: var(--track); margin: .75rem 0 .5rem; }
.plot .bar rect { fill: var(--accent); }

.deeds > li { grid-template-columns: 1.25rem minmax(0, 1fr) auto; align-items: start; }
.deeds > li > .icon { margin-top: .1875rem; }
.deeds .alarm { color: var(--critical); font-weight: 600; }
details { margin-top: .75rem; }
summary { cursor: pointer; padding: .75rem 1.25rem; font-weight: 560; }
summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: .75rem; }
pre { margin: 0; padding: .25rem 1.25rem 1rem; overflow-x: auto; color: var(--soft); white-space: pre-wrap;
  overflow-wrap: anywhere; }
footer { padding-top: 2.25rem; padding-bottom: 2.5rem; color: var(--soft); font-size: .8125rem; }

@media (max-width: 42rem) {
  main, footer { padding-left: 1rem; padding-right: 1rem; }
  .top { padding: 1.25rem 0 1rem; }
  h1 { font-size: 1.375rem; }
  .counts { gap: .5rem; }
  .counts li { padding: .5rem .625rem; text-align: center; }
  .counts b { font-size: 1.375rem; }
  .counts span { font-size: .75rem; }
  .rows > li { grid-template-columns: 1.25rem minmax(0, 1fr) auto; gap: .25rem .75rem; padding: .625rem 1rem; }
  .rows > li > div { grid-column: 2 / -1; }
  .rows .strip { grid-column: 2; grid-row: 2; }
  .rows .by { grid-column: 3; grid-row: 2; font-size: .75rem; }
  .deeds > li time { grid-column: 2 / -1; }
  .alert { padding: .875rem 1rem; }
}
@media print {
  body { background: #fff; } .card, .rows, .counts li, details { box-shadow: none; break-inside: avoid; }
}
"""
