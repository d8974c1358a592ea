"""Write docs/pairs.md: what each format's drafts become in every other, from the samples in ``fixtures/formats``.

    python docs/generate_pairs.py [--check]

``--check`` compares with the file that is there and fails when it differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ckpt_tools.formats import formats  # noqa: E402
from tests.interop.pairs import Outcome, counts, walk, writes  # noqa: E402

PAGE = ROOT / "docs" / "pairs.md"
ORDER = ("eagle3", "peagle", "eagle", "dflash", "dflash2", "domino", "dspark", "xpress", "mtp")


def page() -> str:
    """The page's text."""
    outcomes = walk()
    lines = [
        "# Which format converts to which",
        "",
        "Made by `docs/generate_pairs.py` from the samples in `fixtures/formats`: each is converted, read back, converted back to its own",
        "format and compared, tensors bit for bit and canonical facts one by one. A test walks the same matrix.",
        "",
        "- **same**: there and back, every tensor and every fact is the same.",
        "- **named**: it converts, and what the format has no room for is named in the plan or in a finding (in brackets).",
        "- **one way**: it converts; the source's format is only read, so there is no way back.",
        "- **refused**: with these codes (`ckpt explain CODE`); nothing is written.",
        "",
        "Numbers count samples. `--to trtllm` isn't there: TensorRT-LLM has no format of its own and loads SGLang's names and Hugging Face",
        "configs; write `--to sglang` and give it the captured layers by its API (`eagle3_layers_to_capture`).",
        "",
        "| | samples x formats |",
        "| --- | --- |",
        *(f"| {name} | {n} |" for name, n in counts(outcomes).items()),
        "",
    ]
    for algorithm in ORDER:
        lines += _table(algorithm, [o for o in outcomes if o.algorithm == algorithm])
    read = sorted(n for n, f in formats().items() if f.write is None)
    lines += [
        "## Formats that are only read",
        "",
        *(f"- `{name}` ({formats()[name].title})" for name in read),
        "",
        "Recognised and refused: Model-Optimizer's Medusa heads and AngelSlim's DFlare, which no other format has.",
        "",
    ]
    return "\n".join(lines)


def _table(algorithm: str, outcomes: list[Outcome]) -> list[str]:
    sources = sorted({o.source for o in outcomes})
    targets = [to for to in formats() if writes(to, algorithm)]
    lines = [
        f"## {algorithm}",
        "",
        "| from | " + " | ".join(f"to {t}" for t in targets) + " |",
        "| --- |" + " --- |" * len(targets),
    ]
    for source in sources:
        cells = [_cell([o for o in outcomes if (o.source, o.to) == (source, to)]) for to in targets]
        lines.append(f"| {source} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _cell(outcomes: list[Outcome]) -> str:
    parts = []
    same = sum(o.same and not o.one_way for o in outcomes)
    one_way = sum(o.one_way for o in outcomes)
    named = [o for o in outcomes if (o.tensors or o.facts) and not o.one_way]
    refused = [o for o in outcomes if o.refused or o.back_refused]
    if same:
        parts.append(f"same {same}")
    if named:
        what = sorted({name for o in named for name in (*o.tensors, *o.facts)})
        parts.append(f"named {len(named)} ({', '.join(what)})")
    if one_way:
        parts.append(f"one way {one_way}")
    if refused:
        codes = sorted({code for o in refused for code in (*o.refused, *o.back_refused)})
        parts.append(f"refused {len(refused)} ({', '.join(codes)})")
    return "; ".join(parts) or "-"


def main() -> int:
    """Write the page, or compare it."""
    text = page()
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.exists() and PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
