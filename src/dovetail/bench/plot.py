"""A bar chart of steady-state times as one SVG file, with nothing but the standard library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from dovetail.bench.results import Results

COLOURS = ("#8c8c8c", "#d1793b", "#3b7dd1", "#5aa469", "#8e5ea2", "#c2b038")
LEFT, WIDTH, BAR, GAP, TOP = 250, 640, 12, 14, 60


def plot(results: Results, rivals: Sequence[str]) -> str:
    """One group of bars a case: time relative to the first rival's, on a logarithmic axis."""
    base, shown = rivals[0], [c for c in results if rivals[0] in results[c]]
    ratios = {
        case: {r: results[case][r]["best"] / results[case][base]["best"] for r in results[case]}
        for case in shown
    }
    every = [ratio for row in ratios.values() for ratio in row.values()] or [1.0]
    low = math.floor(math.log2(min(every)) - 0.2)
    high = max(math.ceil(math.log2(max(every))), low + 1)

    def x(ratio: float) -> float:
        return LEFT + WIDTH * (math.log2(ratio) - low) / (high - low)

    parts, y = [], float(TOP)
    for case in shown:
        count = len(rivals)
        middle = y + count * BAR / 2 + 4
        parts.append(f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{escape(case)}</text>')
        for number, rival in enumerate(rivals):
            if rival in ratios[case]:
                parts.append(_bar(ratios[case][rival], x, y + number * BAR, number))
        y += count * BAR + GAP
    return _page(parts, [_grid(power, x, y) for power in range(low, high + 1)], rivals, base, y)


def _bar(ratio: float, x: object, y: float, number: int) -> str:
    end = x(ratio)  # type: ignore[operator]
    colour = COLOURS[number % len(COLOURS)]
    return (
        f'<rect x="{LEFT}" y="{y}" width="{max(end - LEFT, 1):.1f}" height="{BAR - 2}" '
        f'fill="{colour}"/><text x="{end + 4:.1f}" y="{y + BAR - 3}" class="value">'
        f"{ratio:.2f}</text>"
    )


def _grid(power: int, x: object, bottom: float) -> str:
    place = x(2.0**power)  # type: ignore[operator]
    return (
        f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="#ddd"/>'
        f'<text x="{place:.1f}" y="{TOP - 12}" text-anchor="middle" class="value">{2.0**power:g}'
        "</text>"
    )


def _page(bars: list[str], grid: list[str], rivals: Sequence[str], base: str, bottom: float) -> str:
    names = [
        f'<rect x="{LEFT + 130 * n}" y="12" width="10" height="10" fill="'
        f'{COLOURS[n % len(COLOURS)]}"/><text x="{LEFT + 130 * n + 15}" y="21">{escape(r)}</text>'
        for n, r in enumerate(rivals)
    ]
    title = f'<text x="8" y="21">time relative to {escape(base)}</text>'
    style = "<style>text{font:12px sans-serif}.value{font-size:10px;fill:#555}</style>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 60}" height="{bottom}">'
    white = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, style, white, title, *names, *grid, *bars, "</svg>", ""])
