"""Small drawings as inline SVG; colours come from the page's style by class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckpt_tools.render._html import Html, el
from ckpt_tools.render._text import short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RANGE_WIDTH, RANGE_HEIGHT = 260.0, 18.0


@dataclass(frozen=True)
class Scale:
    """Values to pixels, linear near zero and logarithmic beyond, the same for all rows of a table.

    Attributes:
        largest: The largest magnitude to show.
        knee: Where it turns logarithmic.
        width: Pixels.
    """

    largest: float
    knee: float
    width: float = RANGE_WIDTH

    def x(self, value: float) -> float:
        """Position of a value; zero is in the middle."""
        half = self.width / 2 - 4
        top = math.asinh(self.largest / self.knee) or 1.0
        share = max(-1.0, min(1.0, math.asinh(value / self.knee) / top))
        return round(self.width / 2 + share * half, 1)


def deviation(stats: Mapping[str, Any]) -> float:
    """Standard deviation, from mean and rms."""
    return math.sqrt(max(0.0, float(stats["rms"]) ** 2 - float(stats["mean"]) ** 2))


def scale_of(stats: Sequence[Mapping[str, Any]]) -> Scale:
    """One scale for all tensors; the knee is the smallest rms, so that none is a mere dot at zero."""
    ends = [abs(s[k]) for s in stats for k in ("min", "max") if s.get(k) is not None]
    spreads = [s["rms"] for s in stats if s.get("rms")]
    largest = max(ends, default=1.0) or 1.0
    return Scale(largest, max(min(spreads, default=largest), largest * 1e-4))


def value_range(stats: Mapping[str, Any], scale: Scale) -> Html:
    """Minimum to maximum as a line, the mean plus and minus the deviation as a bar, the mean as a tick."""
    if stats.get("min") is None:
        return el("span", "no finite values", cls="muted")
    middle = RANGE_HEIGHT / 2
    low, high, mean = scale.x(stats["min"]), scale.x(stats["max"]), scale.x(stats["mean"])
    spread = deviation(stats)
    left, right = scale.x(stats["mean"] - spread), scale.x(stats["mean"] + spread)
    zero = scale.x(0.0)
    said = f"from {short(stats['min'])} to {short(stats['max'])}, mean {short(stats['mean'])}, deviation {short(spread)}"
    return el(
        "svg",
        el("title", said),
        el("line", cls="zero", x1=zero, x2=zero, y1=0.0, y2=RANGE_HEIGHT),
        el("line", cls="range", x1=low, x2=high, y1=middle, y2=middle),
        el("rect", cls="bar", x=left, y=4.0, width=max(1.0, right - left), height=RANGE_HEIGHT - 8),
        el("line", cls="mean", x1=mean, x2=mean, y1=2.0, y2=RANGE_HEIGHT - 2),
        role="img",
        width=RANGE_WIDTH,
        height=RANGE_HEIGHT,
        viewBox=f"0 0 {RANGE_WIDTH:g} {RANGE_HEIGHT:g}",
    )


def captured_layers(layers: Sequence[int], depth: int) -> Html:
    """The target's layers in a row, the captured ones filled; the embedding's output stands before layer 0."""
    step = max(6.0, min(14.0, 640.0 / (depth + 1)))
    inside = [i for i in layers if -1 <= i < depth]
    boxes = [
        el(
            "rect",
            el("title", "embedding" if i < 0 else f"layer {i}{' (captured)' if i in inside else ''}"),
            cls="on" if i in inside else "off",
            x=round((i + 1) * step, 1),
            y=2.0,
            width=round(step - 2, 1),
            height=14.0,
        )
        for i in range(-1, depth)
        if i >= 0 or i in inside
    ]
    marks = [el("text", str(i), x=round((i + 1.4) * step, 1), y=29.0, text_anchor="middle") for i in inside]
    wide = (depth + 1) * step + 12
    said = f"captured: outputs of layers {', '.join(map(str, layers))} of {depth}"
    return el(
        "svg",
        el("title", said),
        *boxes,
        *marks,
        role="img",
        width=wide,
        height=32.0,
        viewBox=f"0 0 {wide:g} 32",
    )


@dataclass(frozen=True)
class Point:
    """One measured value with its interval, if it has one."""

    at: int
    value: float
    low: float | None = None
    high: float | None = None


def points(measured: Any) -> list[Point]:
    """Values by position or depth, from a list (counted from 1) or a mapping, plain or with an interval."""
    named = hasattr(measured, "items")
    pairs = [(int(k), v) for k, v in measured.items()] if named else list(enumerate(measured or (), 1))
    out = []
    for at, entry in sorted(pairs, key=lambda p: p[0]):
        if isinstance(entry, (int, float)):
            out.append(Point(at, float(entry)))
        elif hasattr(entry, "get"):
            value = entry.get("value", entry.get("mean", entry.get("conditional")))
            if value is not None:
                out.append(
                    Point(
                        entry.get("position", entry.get("depth", at)),
                        value,
                        entry.get("low"),
                        entry.get("high"),
                    )
                )
    return out


def bars(data: Sequence[Point], label: str, top: float, best: int | None = None) -> Html:
    """A bar per position, with its value above and its interval as a whisker."""
    step, tall, foot = 46.0, 120.0, 34.0
    wide = step * len(data) + 16

    def y(value: float) -> float:
        return round(16 + tall * (1 - min(1.0, max(0.0, value / top))), 1)

    drawn: list[Html] = []
    for i, p in enumerate(data):
        x = 8 + i * step
        middle = round(x + step / 2 - 4, 1)
        drawn.append(
            el(
                "rect",
                cls="bar best" if p.at == best else "bar",
                x=x,
                y=y(p.value),
                width=step - 8,
                height=round(16 + tall - y(p.value), 1),
            )
        )
        if p.low is not None and p.high is not None:
            drawn.append(el("line", cls="mean", x1=middle, x2=middle, y1=y(p.low), y2=y(p.high)))
        drawn.append(
            el("text", f"{p.value:.2f}", x=middle, y=round(y(p.high or p.value) - 4, 1), text_anchor="middle")
        )
        drawn.append(el("text", str(p.at), cls="axis", x=middle, y=16 + tall + 14, text_anchor="middle"))
    tall_all = 16 + tall + foot
    return el(
        "svg",
        el("title", label),
        *drawn,
        el("text", label, cls="axis", x=8.0, y=tall_all - 4),
        role="img",
        width=max(wide, 260.0),
        height=tall_all,
        viewBox=f"0 0 {max(wide, 260.0):g} {tall_all:g}",
    )
