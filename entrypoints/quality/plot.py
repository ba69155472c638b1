"""Plot of a comparison: KL divergence over bits per weight, one point per variant."""

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
"""Height of a label, and the minimum distance between two."""

CHAR_WIDTH = 6.6
"""Approximate width of a character of a label."""

X, Y = "bits per weight, in memory", "mean KL divergence to the reference, nats per token"


@dataclass(frozen=True)
class Point:
    """A variant: `kl` is positive."""

    name: str
    bits: float
    kl: float


def write_plot(report: QualityReport, file: Path) -> None:
    """Write FILE.svg, or FILE.png if matplotlib is installed.

    Raises UsageError if it is not installed, and if no variant differs from the reference.
    """
    points = [Point(v.name, v.weights.bits, v.kl.value) for v in report.variants if v.kl.value > 0]
    if not points:
        raise UsageError("--plot: no variant differs from the reference; nothing to plot")
    title = f"{report.model} on {report.text}"
    if file.suffix == ".png":
        draw(points, title, file)
    else:
        file.write_text(svg(points, title), "utf-8")


def check_plot(file: Path) -> None:
    """Raise UsageError for a file that `write_plot` cannot write."""
    if file.suffix not in (".svg", ".png"):
        raise UsageError(f"--plot {file}: expected a name ending with .svg or .png")
    if file.suffix == ".png":
        pyplot()


def pyplot() -> Any:
    """Import matplotlib.figure. Raises UsageError if it is not installed."""
    try:
        from matplotlib import figure
    except ImportError:
        raise UsageError("--plot: install matplotlib for .png, or use .svg") from None
    return figure


def draw(points: Sequence[Point], title: str, file: Path) -> None:
    """Draw the plot with matplotlib."""
    figure = pyplot().Figure(figsize=(WIDTH / 100, HEIGHT / 100), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel=X, ylabel=Y, yscale="log")
    axes.scatter([point.bits for point in points], [point.kl for point in points])
    for point in points:
        axes.annotate(point.name, (point.bits, point.kl), xytext=(5, 3), textcoords="offset points")
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=200)


def svg(points: Sequence[Point], title: str) -> str:
    """Return the plot as SVG: points with labels, with a logarithmic vertical axis."""
    bits = [point.bits for point in points]
    left, right = floor(min(bits)), ceil(max(bits) + 0.5)
    low = floor(min(log10(point.kl) for point in points))
    high = max(low + 1, ceil(max(log10(point.kl) for point in points)))

    def x(bits: float) -> float:
        return MARGIN + (bits - left) / (right - left) * (WIDTH - 2 * MARGIN)

    def y(exponent: float) -> float:
        return HEIGHT - MARGIN - (exponent - low) / (high - low) * (HEIGHT - 2 * MARGIN)

    center_x, center_y = WIDTH / 2, HEIGHT / 2
    step = max(1, (right - left) // 8)
    positions = [(point, x(point.bits), y(log10(point.kl))) for point in points]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(center_x, 24, title, size=14),
        text(center_x, HEIGHT - 16, X),
        f'<g transform="rotate(-90 16 {center_y})">{text(16, center_y, Y)}</g>',
        *(rule(x(n), HEIGHT - MARGIN, x(n), MARGIN) for n in range(left, right + 1, step)),
        *(text(x(n), HEIGHT - MARGIN + 16, str(n)) for n in range(left, right + 1, step)),
        *(rule(MARGIN, y(n), WIDTH - MARGIN, y(n)) for n in range(low, high + 1)),
        *(text(MARGIN - 6, y(n) + 4, f"{10.0**n:g}", "end") for n in range(low, high + 1)),
        *(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="#1f6feb"/>' for _, a, b in positions),
        *labels(positions),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def labels(positions: Sequence[tuple[Point, float, float]]) -> Iterator[str]:
    """Yield names beside their points, moved down if they would overlap."""
    taken: list[tuple[float, float, float]] = []
    for point, a, b in sorted(positions, key=lambda position: position[2]):
        width, height = CHAR_WIDTH * len(point.name), b + 4
        start = a + 6 if a + 6 + width < WIDTH else a - 6 - width
        for first, last, other in sorted(taken, key=lambda each: each[2]):
            if start < last and first < start + width and abs(height - other) < LINE:
                height = other + LINE
        taken.append((start, start + width, height))
        yield text(start, height, point.name, "start")


def text(x: float, y: float, content: str, anchor: str = "middle", size: int = 11) -> str:
    attributes = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {attributes}>{escape(content)}</text>"


def rule(x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="#ddd"/>'
