"""A line chart as SVG, written by hand: no library for one picture."""

from dataclasses import dataclass
from pathlib import Path

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 56, 40
COLOURS = ("#b3261e", "#1b6ca8", "#3a7d44", "#7b4ea3")


@dataclass(frozen=True)
class Series:
    """points: (x, y), both in seconds, by x."""

    name: str
    points: list[tuple[float, float]]


def write_chart(path: Path, title: str, series: list[Series]) -> None:
    """Seconds waited (y) by second of arrival (x)."""
    max_x = max(x for one in series for x, _ in one.points) or 1.0
    max_y = max(y for one in series for _, y in one.points) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{title}</text>',
        *_axes(max_x, max_y),
    ]
    for number, one in enumerate(series):
        parts += _line(one, COLOURS[number % len(COLOURS)], number, max_x, max_y)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")


def _at(x: float, y: float, max_x: float, max_y: float) -> tuple[float, float]:
    across = LEFT + x / max_x * (WIDTH - LEFT - RIGHT)
    return round(across, 1), round(HEIGHT - BOTTOM - y / max_y * (HEIGHT - TOP - BOTTOM), 1)


def _axes(max_x: float, max_y: float) -> list[str]:
    parts = []
    for tenth in range(0, 11, 2):
        x, floor = _at(max_x * tenth / 10, 0, max_x, max_y)
        left, y = _at(0, max_y * tenth / 10, max_x, max_y)
        parts += [
            f'<text x="{x}" y="{floor + 16}" text-anchor="middle">{max_x * tenth / 10:.0f}</text>',
            f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{max_y * tenth / 10:.1f}</text>',
            f'<path d="M{left} {y}H{WIDTH - RIGHT}" stroke="#ddd"/>',
        ]
    labels = f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">arrived at, s</text>'
    turned = f'transform="rotate(-90 14 {HEIGHT / 2})"'
    side = f'<text x="14" y="{HEIGHT / 2}" text-anchor="middle" {turned}>waited, s</text>'
    return [*parts, labels, side]


def _line(one: Series, colour: str, number: int, max_x: float, max_y: float) -> list[str]:
    places = [_at(x, y, max_x, max_y) for x, y in one.points]
    joined = " ".join(f"{x},{y}" for x, y in places)
    return [
        f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>',
        f'<text x="{LEFT + number * 300}" y="38" fill="{colour}">{one.name}</text>',
    ]
