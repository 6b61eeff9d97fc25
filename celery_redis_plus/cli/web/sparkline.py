"""Draws small lines of figures as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

WIDTH, HEIGHT = 120, 28


def sparkline(values: Sequence[float], label: str) -> Markup:
    """Return an SVG picture of figures, the oldest on the left, from 0 up; `label` says what they are."""
    most = max(values, default=0)
    step = WIDTH / max(1, len(values) - 1)
    points = " ".join(f"{at * step:.1f},{_height(value, most):.1f}" for at, value in enumerate(values))
    # Markup escapes what is formatted into it.
    return Markup(
        '<svg class="sparkline" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}"><title>{}</title>'
        '<polyline points="{}"/></svg>'
    ).format(WIDTH, HEIGHT, label, label, points)


def _height(value: float, most: float) -> float:
    return HEIGHT - 1.5 - (HEIGHT - 3) * (value / most if most else 0)
