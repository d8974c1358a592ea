"""The page's style: system fonts, two colour schemes, paper."""

from __future__ import annotations

CSS = """
:root{--bg:#fff;--fg:#1c2128;--muted:#59636e;--line:#d8dee4;--soft:#f6f8fa;--accent:#0969da;
--error:#cf222e;--warning:#9a6700;--info:#0969da;--pass:#1a7f37;--bar:#7fb2e8}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--muted:#9198a1;--line:#30363d;--soft:#161b22;
--accent:#4493f8;--error:#f85149;--warning:#d29922;--info:#4493f8;--pass:#3fb950;--bar:#2f5e94}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:72rem;margin:0 auto;padding:1.5rem 1rem 3rem}
h1{font-size:1.35rem;margin:0;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:2rem 0 .6rem;padding-bottom:.3rem;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
h3{font-size:.95rem;margin:0;display:flex;gap:.6rem;align-items:baseline;flex-wrap:wrap}
p{margin:.35rem 0;overflow-wrap:anywhere}
a{color:var(--accent)}
code{font:.86em/1.4 ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}
header{display:grid;grid-template-columns:auto 1fr;gap:.2rem .8rem;align-items:center}
header dl{grid-column:1/-1}
nav{margin-bottom:3rem}
article+article{margin-top:3rem;padding-top:2rem;border-top:3px solid var(--line)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:.6rem 0}
dt{color:var(--muted)}
dd{margin:0;overflow-wrap:anywhere}
.badge{color:#fff;border-radius:1rem;padding:.05rem .8rem;font-weight:600;background:var(--muted)}
.badge.pass{background:var(--pass)}.badge.fail,.badge.error{background:var(--error)}
@media(prefers-color-scheme:dark){.badge{color:#0d1117}}
.muted,figcaption,footer{color:var(--muted);font-weight:400;font-size:.87rem}
.finding{border:1px solid var(--line);border-left:4px solid var(--c,var(--muted));border-radius:6px;background:var(--soft);
padding:.7rem 1rem;margin:.7rem 0}
.finding.error{--c:var(--error)}.finding.warning{--c:var(--warning)}.finding.info{--c:var(--info)}
.severity{color:var(--c)}
.message{margin-top:.45rem}
.muted code{margin-right:.8rem}
.hint::before{content:"→ ";color:var(--c,var(--accent));font-weight:600}
details{margin:.5rem 0}
summary{cursor:pointer;color:var(--muted);font-size:.87rem}
details dl{grid-template-columns:1fr;gap:0;font-size:.9rem}
details dt{margin-top:.4rem;font-weight:600}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.88rem}
th,td{text-align:left;vertical-align:top;padding:.25rem .9rem .25rem 0;border-bottom:1px solid var(--line)}
th{color:var(--muted);font-weight:500}
.numbers td+td{font-variant-numeric:tabular-nums}
td code{overflow-wrap:break-word}
.name{display:inline-block;margin-right:.7rem}
.fill.nothing,.fill.partly{color:var(--error);font-weight:600}.fill.default{color:var(--warning)}
.fill.checkpoint{color:var(--pass)}.fill.target{color:var(--info)}
figure{margin:1rem 0 0;overflow-x:auto}
.charts{display:flex;flex-wrap:wrap;gap:1rem 2rem}
svg{display:block}
svg text{fill:var(--fg);font-size:11px}
svg .axis{fill:var(--muted)}
svg .zero{stroke:var(--line)}svg .range{stroke:var(--muted)}svg .mean{stroke:var(--fg);stroke-width:1.5}
svg .bar{fill:var(--bar)}svg .best{fill:var(--pass)}
svg .on{fill:var(--accent)}svg .off{fill:var(--soft);stroke:var(--line)}
footer{margin-top:3rem}
@media print{details{display:block}.finding{break-inside:avoid}}
"""
