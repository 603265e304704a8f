"""The size-KLD plane: every file of a run as one point.

The line joins the uniform donors that no other donor beats in both size and KLD. Between two of
them it shows their mixture in proportion: what a hybrid would have if every layer counted the
same. A hybrid below the line has gained from choosing. The same points give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Annotation
from matplotlib.ticker import LogFormatter
from matplotlib.transforms import Bbox, BboxBase

from quantkit.files import atomic_path
from quantkit.report.facts import BASE, DONOR, HYBRID, ModelFacts
from quantkit.report.tables import size_unit

SIZE_INCHES = (8.0, 5.0)
DPI = 150
ERROR_STANDARD_ERRORS = 2.0
LINE_POINTS = 200
LINE_LABEL = "donors mixed"
INNER_MARGIN, LABEL_MARGIN = 2, 3
"""Pixels between a label and the frame, and around a label."""
INK, MUTED, GRID = "#222222", "#767676", "#e4e4e4"


@dataclass(frozen=True)
class _Style:
    marker: str
    color: str
    label: str
    size: float = 8.0


STYLES = {
    DONOR: _Style("o", "#5b6770", "donor"),
    BASE: _Style("s", "#1f6fb2", "base"),
    HYBRID: _Style("D", "#1a8f4c", "hybrid, passed"),
}
NOT_PASSED = _Style("X", "#c2352b", "hybrid, not passed", 9.5)

LABEL_PLACES = (
    (9, 7, "left"), (9, -15, "left"), (-9, 7, "right"), (-9, -15, "right"),
    (0, 14, "center"), (0, -22, "center"), (16, 24, "left"), (-16, 24, "right"),
    (16, -32, "left"), (-16, -32, "right"), (0, 36, "center"), (0, -44, "center"),
)  # fmt: skip
"""Offsets from a marker in points, and the alignment there; the first free one is taken."""


class _Decimals(LogFormatter):
    """Chooses which ticks of a logarithmic axis have room for a label; writes 0.02, not 2e-2."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def plot_size_kld(models: Sequence[ModelFacts], passed: str, title: str, path: Path) -> None:
    """Draw the models into the PNG `path`; `passed` is the verdict that counts as passed."""
    with mpl.rc_context():
        mpl.rcdefaults()
        figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        unit, per = size_unit(model.bytes for model in models)
        _draw_line(axes, [model for model in models if model.kind == DONOR], per)
        for model in models:
            _draw_model(axes, model, _style(model, passed), per)
        legend = _dress(axes, title, unit)
        _label(axes, canvas, legend, models, per)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})


def front(donors: Sequence[ModelFacts]) -> list[ModelFacts]:
    """The donors that no other one beats in both size and KLD, by size."""
    ranked = sorted(donors, key=lambda m: (m.bytes, m.mean_kld()[0]))
    found: list[ModelFacts] = []
    for model in ranked:
        if not found or model.mean_kld()[0] < found[-1].mean_kld()[0]:
            found.append(model)
    return found


def _style(model: ModelFacts, passed: str) -> _Style:
    not_passed = model.kind == HYBRID and model.verdict != passed
    return NOT_PASSED if not_passed else STYLES[model.kind]


def _draw_line(axes: Axes, donors: Sequence[ModelFacts], per: int) -> None:
    known = front(donors)
    if len(known) < 2:
        return
    sizes = [model.bytes / per for model in known]
    x = np.union1d(np.linspace(sizes[0], sizes[-1], LINE_POINTS), sizes)
    y = np.interp(x, sizes, [model.mean_kld()[0] for model in known])
    axes.plot(x, y, color=MUTED, linewidth=1.2, linestyle="--", zorder=1, label=LINE_LABEL)


def _draw_model(axes: Axes, model: ModelFacts, style: _Style, per: int) -> None:
    mean, error = model.mean_kld()
    _, labels = axes.get_legend_handles_labels()
    x, half = model.bytes / per, ERROR_STANDARD_ERRORS * error
    axes.errorbar(x, mean, half, fmt="none", ecolor=style.color, elinewidth=1.4, capsize=5)
    axes.plot(
        x,
        mean,
        style.marker,
        markersize=style.size,
        color=style.color,
        markeredgecolor="white",
        markeredgewidth=0.8,
        zorder=3,
        label=None if style.label in labels else style.label,
    )


def _dress(axes: Axes, title: str, unit: str) -> Legend:
    axes.set_yscale("log")
    axes.margins(x=0.12, y=0.16)
    axes.set_title(title, fontsize=11, color=INK, loc="left")
    axes.set_xlabel(f"file size, {unit}", color=INK)
    axes.set_ylabel("mean KLD to the unquantized model, nats/token", color=INK)
    axes.yaxis.set_major_formatter(_Decimals())
    axes.yaxis.set_minor_formatter(_Decimals(minor_thresholds=(1.5, 0.5)))
    axes.grid(True, which="major", color=GRID, linewidth=0.8)
    axes.grid(True, which="minor", axis="y", color=GRID, linewidth=0.4)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=INK)
    return axes.legend(frameon=False, fontsize=9, loc="upper right")


def _label(
    axes: Axes, canvas: FigureCanvasAgg, legend: Legend, models: Sequence[ModelFacts], per: int
) -> None:
    """Name every point, where no other name, no marker and no line is in the way."""
    canvas.draw()
    renderer = canvas.get_renderer()
    inner = axes.bbox.padded(-INNER_MARGIN)
    taken = [legend.get_window_extent(renderer)]
    taken += [_marker_box(axes, model, per) for model in models]
    taken += _line_boxes(axes)
    for model in models:
        notes = [_note(axes, model, per, place) for place in LABEL_PLACES]
        boxes = [note.get_window_extent(renderer).padded(LABEL_MARGIN) for note in notes]
        free = (i for i, box in enumerate(boxes) if _is_free(box, inner, taken))
        chosen = next(free, 0)
        taken.append(boxes[chosen])
        for i, note in enumerate(notes):
            if i != chosen:
                note.remove()


def _is_free(box: BboxBase, inner: BboxBase, taken: Sequence[BboxBase]) -> bool:
    inside = inner.contains(*box.min) and inner.contains(*box.max)
    return inside and not any(box.overlaps(other) for other in taken)


def _note(axes: Axes, model: ModelFacts, per: int, place: tuple[int, int, str]) -> Annotation:
    dx, dy, side = place
    return axes.annotate(
        model.name,
        (model.bytes / per, model.mean_kld()[0]),
        xytext=(dx, dy),
        textcoords="offset points",
        ha=side,
        fontsize=9.5,
        color=INK,
        zorder=4,
    )


def _marker_box(axes: Axes, model: ModelFacts, per: int) -> Bbox:
    mean, error = model.mean_kld()
    half = ERROR_STANDARD_ERRORS * error
    x, low = axes.transData.transform((model.bytes / per, max(mean - half, mean / 10)))
    _, high = axes.transData.transform((model.bytes / per, mean + half))
    radius = 6 * DPI / 72
    return Bbox.from_extents(x - radius, low - radius, x + radius, high + radius)


def _line_boxes(axes: Axes) -> list[Bbox]:
    """Small boxes along the line of donors, if there is one."""
    lines = [line for line in axes.get_lines() if line.get_label() == LINE_LABEL]
    points = [axes.transData.transform(line.get_xydata()) for line in lines]
    return [
        Bbox([np.minimum(a, b), np.maximum(a, b)]) for path in points for a, b in pairwise(path)
    ]
