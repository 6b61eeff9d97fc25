"""Draws the series as an SVG: a panel for each quantity, without any library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tests.chaos.soak.meters import QUANTITIES, Series

WIDTH, HEIGHT = 720, 130
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 26, 18
COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b8860b", "#444444")


def svg(series: Sequence[Series], title: str) -> str:
    """Return the text of an SVG file."""
    panels = [(quantity, [one for one in series if one.quantity == quantity]) for quantity in QUANTITIES]
    panels = [(quantity, found) for quantity, found in panels if found]
    height = len(panels) * HEIGHT + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (quantity, found) in enumerate(panels):
        parts += _panel(quantity, found, 24 + number * HEIGHT)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(quantity: str, series: Sequence[Series], y: int) -> list[str]:
    longest_s = max((at_s for one in series for at_s, _ in one.points), default=0.0) or 1.0
    most = max((amount for one in series for _, amount in one.points), default=0.0) * 1.1 or 1.0
    bottom, right = y + HEIGHT - BOTTOM, WIDTH - RIGHT
    unit = QUANTITIES[quantity].unit
    parts = [
        f'<text x="{LEFT}" y="{y + TOP - 8}">{escape(quantity)}{f", {unit}" if unit else ""}</text>',
        f'<path d="M{LEFT} {y + TOP}V{bottom}H{right}" fill="none" stroke="#888"/>',
        f'<text x="{LEFT - 6}" y="{y + TOP + 8}" text-anchor="end">{most:,.0f}</text>',
        f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{right}" y="{bottom + 13}" text-anchor="end">{longest_s / 60:.0f} min</text>',
    ]
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{LEFT + at_s / longest_s * (right - LEFT):.1f},{bottom - amount / most * (bottom - y - TOP):.1f}"
            for at_s, amount in _thinned(one.points)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{right + 10}" y="{y + TOP + 10 + number * 14}" fill="{colour}">{escape(one.whose)}</text>')
    return parts


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return no more points than a panel has pixels."""
    return points[:: max(1, len(points) // (WIDTH - LEFT - RIGHT))]
