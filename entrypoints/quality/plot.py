"""The picture of a comparison: bits per weight against divergence, a point per variant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from ostro.core.errors import UsageError
from ostro.entrypoints.quality.figures import QualityReport

WIDTH, HEIGHT, MARGIN = 720, 440, 64
LINE = 13
"""Height of a label, and what two of them keep from each other."""

LETTER = 6.6
"""Width of a letter of a label, about."""

X, Y = "bits per weight, in memory", "mean KL divergence to the reference, nats per token"


@dataclass(frozen=True)
class Point:
    """A variant: `kl` is positive."""

    name: str
    bits: float
    kl: float


def write_plot(report: QualityReport, file: Path) -> None:
    """Write FILE.svg, or FILE.png where matplotlib is installed.

    Raises UsageError where it is not, and where there is nothing to draw.
    """
    points = [Point(v.name, v.weights.bits, v.kl.value) for v in report.variants if v.kl.value > 0]
    if not points:
        raise UsageError("--plot: no variant differs from the reference, there is nothing to draw")
    title = f"{report.model} on {report.text}"
    if file.suffix == ".png":
        draw(points, title, file)
    else:
        file.write_text(svg(points, title), "utf-8")


def check_plot(file: Path) -> None:
    """Raise UsageError for a file that `write_plot` would not write."""
    if file.suffix not in (".svg", ".png"):
        raise UsageError(f"--plot {file}: end its name with .svg, or .png")
    if file.suffix == ".png":
        pyplot()


def pyplot() -> Any:
    """matplotlib's figures. Raises UsageError where it is not installed."""
    try:
        from matplotlib import figure
    except ImportError:
        raise UsageError("--plot: for .png install matplotlib; .svg needs nothing") from None
    return figure


def draw(points: Sequence[Point], title: str, file: Path) -> None:
    """The same picture by matplotlib."""
    figure = pyplot().Figure(figsize=(WIDTH / 100, HEIGHT / 100), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel=X, ylabel=Y, yscale="log")
    axes.scatter([point.bits for point in points], [point.kl for point in points])
    for point in points:
        axes.annotate(point.name, (point.bits, point.kl), xytext=(5, 3), textcoords="offset points")
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=200)


def svg(points: Sequence[Point], title: str) -> str:
    """A picture of points with labels; the vertical axis is logarithmic."""
    bits = [point.bits for point in points]
    left, right = floor(min(bits)), ceil(max(bits) + 0.5)
    low = floor(min(log10(point.kl) for point in points))
    high = max(low + 1, ceil(max(log10(point.kl) for point in points)))

    def x(bits: float) -> float:
        return MARGIN + (bits - left) / (right - left) * (WIDTH - 2 * MARGIN)

    def y(exponent: float) -> float:
        return HEIGHT - MARGIN - (exponent - low) / (high - low) * (HEIGHT - 2 * MARGIN)

    middle, centre = WIDTH / 2, HEIGHT / 2
    step = max(1, (right - left) // 8)
    places = [(point, x(point.bits), y(log10(point.kl))) for point in points]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(middle, 24, title, size=14),
        text(middle, HEIGHT - 16, X),
        f'<g transform="rotate(-90 16 {centre})">{text(16, centre, Y)}</g>',
        *(rule(x(n), HEIGHT - MARGIN, x(n), MARGIN) for n in range(left, right + 1, step)),
        *(text(x(n), HEIGHT - MARGIN + 16, str(n)) for n in range(left, right + 1, step)),
        *(rule(MARGIN, y(n), WIDTH - MARGIN, y(n)) for n in range(low, high + 1)),
        *(text(MARGIN - 6, y(n) + 4, f"{10.0**n:g}", "end") for n in range(low, high + 1)),
        *(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="#1f6feb"/>' for _, a, b in places),
        *labels(places),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def labels(places: Sequence[tuple[Point, float, float]]) -> Iterator[str]:
    """Names beside their points, moved down where they would cover another."""
    taken: list[tuple[float, float, float]] = []
    for point, a, b in sorted(places, key=lambda place: place[2]):
        width, height = LETTER * len(point.name), b + 4
        start = a + 6 if a + 6 + width < WIDTH else a - 6 - width
        for first, last, other in sorted(taken, key=lambda each: each[2]):
            if start < last and first < start + width and abs(height - other) < LINE:
                height = other + LINE
        taken.append((start, start + width, height))
        yield text(start, height, point.name, "start")


def text(x: float, y: float, words: str, anchor: str = "middle", size: int = 11) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {where}>{escape(words)}</text>"


def rule(x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="#ddd"/>'
