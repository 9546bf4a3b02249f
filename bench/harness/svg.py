"""Plots as SVG: lines with markers, and grouped bars. On a light ground of their own, so that they
can be read on a page of any colour."""

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape

#: Colours that people with any colour vision can tell apart; markers and dashes differ as well.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d00", "#56b4e9", "#444444", "#a50f15",
           "#6a3d9a", "#1b7837", "#7f7f7f", "#b15928", "#e6ab02", "#17becf", "#4d004b", "#a6d854")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
WIDTH, HEIGHT = 860, 430
#: Characters of a name for which there is room.
NAME = 29
LEFT, RIGHT, TOP, BOTTOM = 76, 210, 44, 58


@dataclass
class Series:
    """Points of one line; `labels` stand beside them. Not joined, they are only marked."""

    name: str
    points: list
    labels: tuple = ()
    joined: bool = True


def number(value: float) -> str:
    """A short number for an axis."""
    if value == 0:
        return "0"
    size = abs(value)
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if suffix == 'k' else limit):g}{suffix}"
    return f"{value:.4g}" if size < 1000 else f"{value:g}"


def linear_ticks(low: float, high: float) -> list:
    """About six round numbers from `low` to `high`, both enclosed."""
    if high <= low:
        high = low + 1
    raw = (high - low) / 6
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list:
    """Powers of ten from `low` to `high`, both enclosed, with 2 and 5 between if there are few."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    steps = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    start = max((t for t in ticks if t <= low * 1.000001), default=ticks[0])
    end = min((t for t in ticks if t >= high * 0.999999), default=ticks[-1])
    return [t for t in ticks if start <= t <= end] if end > start else [start, start * 10]


class _Axis:
    """Turns values into positions."""

    def __init__(self, values, log: bool, start: float, end: float, zero=False, ticks=()):
        values = list(values)
        low, high = (min(values), max(values)) if values else (1.0, 10.0)
        self.log = log
        if len(ticks) > 1:
            self.ticks = list(ticks)
        elif log:
            self.ticks = log_ticks(low, high)
        else:
            self.ticks = linear_ticks(0.0 if zero else low, high)
        self.low, self.high = self._scale(self.ticks[0]), self._scale(self.ticks[-1])
        self.start, self.end = start, end

    def _scale(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def at(self, value: float) -> float:
        share = (self._scale(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def _text(x, y, text, anchor="middle", size=12, more="") -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{more}>'
            f"{escape(text)}</text>")


def _line(x1, y1, x2, y2, style) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def _marker(x, y, index) -> str:
    colour = f'fill="{COLOURS[index % len(COLOURS)]}"'
    kind = index % 4
    if kind == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {colour}/>'
    if kind == 1:
        return f'<rect x="{x - 3.6:.1f}" y="{y - 3.6:.1f}" width="7.2" height="7.2" {colour}/>'
    top, side = (-5, 4.5) if kind == 2 else (5, 4.5)
    points = f"{x:.1f},{y + top:.1f} {x - side:.1f},{y - top * .7:.1f} {x + side:.1f},{y - top * .7:.1f}"
    return f'<polygon points="{points}" {colour}/>'


def _frame(title, x_label, y_label, body) -> str:
    """The page with title and labels of the axes around a drawing."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    turned = f' transform="rotate(-90 20 {(TOP + bottom) / 2:.1f})"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" font-family="sans-serif" fill="#222222">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#fbfbf8" stroke="#cccccc"/>',
        _text(LEFT, 25, title, "start", 15, ' font-weight="bold"'),
        *body,
        _text((LEFT + right) / 2, HEIGHT - 14, x_label),
        _text(20, (TOP + bottom) / 2, y_label, more=turned),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _grid(axis: _Axis, horizontal: bool) -> list:
    found = []
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for tick in axis.ticks:
        at = axis.at(tick)
        if horizontal:
            found.append(_line(LEFT, at, right, at, 'stroke="#dddddd"'))
            found.append(_text(LEFT - 7, at + 4, number(tick), "end", 11))
        else:
            found.append(_line(at, TOP, at, bottom, 'stroke="#eeeeee"'))
            found.append(_text(at, bottom + 17, number(tick), size=11))
    return found


def short(name: str) -> str:
    """A name with an ellipsis in place of what has no room."""
    return name if len(name) <= NAME else name[:NAME - 1].rstrip(" ,") + "…"


def _legend(names) -> list:
    found = []
    for index, name in enumerate(names):
        y = TOP + 12 + 19 * index
        x = WIDTH - RIGHT + 16
        found += [_marker(x, y, index), _text(x + 12, y + 4, short(name), "start", 12)]
    return found


def lines(title, x_label, y_label, series, log_x=False, log_y=False, mark=None, ticks=()) -> str:
    """Lines with markers. `mark` draws a level across; `ticks` are those of the x axis, which have
    to enclose all points."""
    def shown(x, y):
        return x is not None and y is not None and (x > 0 or not log_x) and (y > 0 or not log_y)

    clean = [Series(s.name, [(x, y) for x, y in s.points if shown(x, y)], s.labels, s.joined)
             for s in series]
    points = [point for s in clean for point in s.points]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    x_axis = _Axis((x for x, _ in points), log_x, LEFT + 12, right - 12, ticks=ticks)
    levels = [y for _, y in points] + ([mark] if mark is not None else [])
    y_axis = _Axis(levels, log_y, bottom, TOP)
    body = _grid(y_axis, True) + _grid(x_axis, False)
    if mark is not None:
        at = y_axis.at(mark)
        body.append(_line(LEFT, at, right, at, 'stroke="#555555" stroke-dasharray="3 3"'))
    for index, s in enumerate(clean):
        colour = COLOURS[index % len(COLOURS)]
        places = [(x_axis.at(x), y_axis.at(y)) for x, y in s.points]
        if s.joined and len(places) > 1:
            dash = DASHES[index // 4 % len(DASHES)]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                        f'stroke-width="2" stroke-dasharray="{dash or "none"}"/>')
        for n, (x, y) in enumerate(places):
            body.append(_marker(x, y, index))
            if n < len(s.labels):
                body.append(_text(x + 6, y - 6, s.labels[n], "start", 10))
    return _frame(title, x_label, y_label, body + _legend([s.name for s in clean]))


def bars(title, y_label, groups, series, log_y=False) -> str:
    """Bars in groups. `series` maps a name to one value, or none, for each group."""
    values = [v for row in series.values() for v in row if v is not None and v > 0]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    axis = _Axis(values, log_y, bottom, TOP, zero=True)
    body = _grid(axis, True)
    width = (right - LEFT) / max(1, len(groups))
    bar = width * 0.82 / max(1, len(series))
    for g, group in enumerate(groups):
        left = LEFT + g * width + width * 0.09
        body.append(_text(LEFT + (g + 0.5) * width, bottom + 17, str(group), size=11))
        for index, row in enumerate(series.values()):
            value = row[g]
            if value is None or value <= 0:
                continue
            top = axis.at(value)
            body.append(
                f'<rect x="{left + index * bar:.1f}" y="{top:.1f}" width="{max(bar - 1, 1):.1f}" '
                f'height="{max(bottom - top, 0.5):.1f}" fill="{COLOURS[index % len(COLOURS)]}">'
                f"<title>{escape(str(group))}: {number(value)}</title></rect>"
            )
    return _frame(title, "", y_label, body + _legend(series))
