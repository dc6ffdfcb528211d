"""The plots of a report as inline SVG: errors against inputs with the allowed band, and bars of counts.

Colours are those of report.css: a plot follows the light or dark page it stands in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from contract.markup import Markup, el
from contract.sketch import MOST, STEP, WIDTHS, Sketch

WIDTH, HEIGHT = 460, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 38
#: An axis is logarithmic where the largest value is this many times the middle one.
SPREAD = 16.0


@dataclass(frozen=True)
class Scale:
    """Values to pixels: linear, or beyond +-`bend` logarithmic to both sides.

    Attributes:
        least, most: values at the ends; first, last: their pixels.
        bend: 0 for a linear scale.
    """

    least: float
    most: float
    first: float
    last: float
    bend: float = 0.0

    def __call__(self, value: float) -> float:
        a, b = self._place(self.least), self._place(self.most)
        value = min(max(value, self.least), self.most)
        return self.first + (self.last - self.first) * (self._place(value) - a) / (b - a)

    def _place(self, value: float) -> float:
        if not self.bend:
            return value
        size = abs(value) / self.bend
        return math.copysign(size if size <= 1 else 1 + math.log10(size), value)

    def ticks(self) -> list[float]:
        """Some five round values."""
        if not self.bend:
            step = _round_up((self.most - self.least) / 5)
            start = math.ceil(self.least / step - 1e-9)
            stop = math.floor(self.most / step + 1e-9)
            return [i * step for i in range(start, stop + 1)]
        lowest, highest = (
            math.floor(math.log10(x)) for x in (self.bend, max(-self.least, self.most))
        )
        every = max(1, math.ceil((highest - lowest) / 3))
        powers = [10.0**k for k in range(highest, lowest, -every)]
        found = [0.0, *powers, *(-power for power in powers)]
        return sorted(value for value in found if self.least <= value <= self.most)


def _round_up(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= step * (1 - 1e-9))


def scale_of(values: Sequence[float], first: float, last: float, bend: float = 0.0) -> Scale:
    """A scale that shows all these finite values, and zero where it is logarithmic.

    Args:
        bend: up to where a logarithmic scale is linear; a small one of the values where 0.
    """
    least, most = min(values), max(values)
    sizes = sorted(abs(value) for value in values if value)
    middle = bend or (sizes[len(sizes) // 2] if sizes else 0.0)
    if sizes and sizes[-1] > SPREAD * middle:
        # a tenth of the values are smaller, and lie in the linear part
        bend = bend or max(sizes[len(sizes) // 10], sizes[-1] * 1e-80)
        least, most = min(least, 0.0), max(most, 0.0)
    else:
        bend = 0.0
    if least == most:
        least, most = least - 1.0, most + 1.0
    return Scale(least, most, first, last, bend)


def errors(sketch: Sketch) -> Markup:
    """Errors of outputs against what they are drawn against, over the band of allowed errors."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    x = scale_of([point[0] for point in sketch.points], LEFT + 6, right - 6)
    ends = [value for point in sketch.points for value in point[1:4]]
    # one ulp is what matters, however far the largest error is
    y = scale_of([*ends, -1.0, 1.0], bottom - 4, TOP + 4, bend=1.0)
    band: list[str] = []
    good: list[str] = []
    bad: list[str] = []
    for at, error, low, high, refused in sketch.points:
        place = f"M{x(at):.1f} "
        band.append(f"{place}{y(low):.1f}V{y(high):.1f}")
        (bad if refused else good).append(f"{place}{y(error):.1f}h0")
    count = len(sketch.points)
    said = f"{count} outputs, {len(bad)} of them refused: error in ulps against {sketch.against}"
    return _frame(
        said,
        *_axis_x(x, sketch.against),
        *_axis_y(y, "error, ulps"),
        el("line", class_="zero", x1=LEFT, x2=right, y1=f"{y(0):.1f}", y2=f"{y(0):.1f}"),
        el("path", class_="band", d="".join(band)),
        el("path", class_="dots", d="".join(good)),
        el("path", class_="dots refused", d="".join(bad)) if bad else "",
    )


def error_bars(sketch: Sketch) -> Markup:
    """How many outputs have which error."""
    most = int(MOST / STEP)
    places = [i for i in range(-most, most) if sketch.errors[i]] or [0]
    shown = range(min(-4, *places), max(3, *places) + 1)
    bars = [(f"{STEP * i:g} to {STEP * (i + 1):g} ulps", sketch.errors[i]) for i in shown]
    marks = [(place, f"{STEP * i:g}") for place, i in enumerate(shown) if not (STEP * i) % 1]
    every = -(-len(marks) // 6)
    label = "error, ulps" + (
        f" (the last bars: {MOST} and beyond)" if {-most, most - 1} & set(places) else ""
    )
    return _bars(bars, marks[::every], 0.0, label)


def width_bars(sketch: Sketch) -> Markup:
    """How many outputs have a range of which width."""
    bars = [(label, sketch.widths[label]) for _, label in WIDTHS]
    return _bars(
        bars, [(i, label) for i, (label, _) in enumerate(bars)], 0.5, "width of the range, steps"
    )


def _bars(
    bars: Sequence[tuple[str, int]], marks: Sequence[tuple[int, str]], shift: float, label: str
) -> Markup:
    """Bars of counts on a logarithmic axis: one output of ten thousand must be seen."""
    bottom = HEIGHT - BOTTOM
    step = (WIDTH - LEFT - RIGHT) / len(bars)
    top = max(1, max(count for _, count in bars))
    y = Scale(0.0, 10.0 ** math.ceil(math.log10(top) or 1), bottom, TOP, 1.0)
    rects = [
        el(
            "rect", class_="bar", x=f"{LEFT + i * step + 0.5:.1f}", y=f"{y(count):.1f}",
            width=f"{max(1.0, step - 1):.1f}", height=f"{bottom - y(count):.1f}",
        )
        for i, (_, count) in enumerate(bars)
        if count
    ]  # fmt: skip
    names = [
        el("text", name, x=f"{LEFT + (place + shift) * step:.1f}", y=bottom + 14, class_="mid")
        for place, name in marks
    ]
    said = "; ".join(f"{name}: {count}" for name, count in bars if count)
    return _frame(
        f"outputs by {label}: {said}", *_axis_y(y, "outputs"), *rects, *names, _label_x(label)
    )


def _frame(said: str, *children: object) -> Markup:
    frame = el("path", class_="axis", d=f"M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}")
    return el(
        "svg", el("title", said), frame, *children,
        viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", class_="plot",
    )  # fmt: skip


def _label_x(label: str) -> Markup:
    return el("text", label, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 6, class_="mid label")


def _axis_x(scale: Scale, label: str) -> list[Markup]:
    bottom = HEIGHT - BOTTOM
    found = [_label_x(label)]
    for value in scale.ticks():
        at = f"{scale(value):.1f}"
        found.append(el("line", class_="axis", x1=at, x2=at, y1=bottom, y2=bottom + 4))
        found.append(el("text", _number(value), x=at, y=bottom + 14, class_="mid"))
    return found


def _axis_y(scale: Scale, label: str) -> list[Markup]:
    right, middle = WIDTH - RIGHT, (TOP + HEIGHT - BOTTOM) / 2
    found = [el("text", label, transform=f"translate(11 {middle}) rotate(-90)", class_="mid label")]
    for value in scale.ticks():
        at = f"{scale(value):.1f}"
        found.append(el("line", class_="grid", x1=LEFT, x2=right, y1=at, y2=at))
        found.append(el("text", _number(value), x=LEFT - 5, y=at, class_="end"))
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 and abs(value) < 1e6 else f"{value:.4g}"
