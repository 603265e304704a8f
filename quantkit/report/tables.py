"""Tables as text and as Markdown, and figures as people write them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

BYTES_PER_MB, BYTES_PER_GB = 10**6, 10**9
Row = Sequence[str]

SIGNIFICANT_ERROR_DIGITS = 2
DIGITS_WITHOUT_ERROR = 4
MAX_DIGITS = 5


def text_table(align: str, head: Row, rows: Iterable[Row]) -> str:
    """Columns in line; `align` has an l or r for each."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(align))]

    def cell(text: str, side: str, width: int) -> str:
        return text.ljust(width) if side == "l" else text.rjust(width)

    return "\n".join(
        "  ".join(cell(*column) for column in zip(line, align, widths, strict=True)).rstrip()
        for line in lines
    )


def markdown_table(align: str, head: Row, rows: Iterable[Row]) -> str:
    """A table in GitHub's Markdown; `align` has an l or r for each column."""
    marks = ["---" if side == "l" else "---:" for side in align]
    return "\n".join(_markdown_row(line) for line in (head, marks, *rows))


def _markdown_row(cells: Row) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def size_unit(sizes: Iterable[int]) -> tuple[str, int]:
    """GB (1e9 bytes), or MB (1e6 bytes) where every size is below 1 GB."""
    small = max(sizes, default=0) < BYTES_PER_GB
    return ("MB", BYTES_PER_MB) if small else ("GB", BYTES_PER_GB)


def size_text(n_bytes: int, per: int) -> str:
    """Bytes in MB or GB, with the thousandths."""
    return f"{n_bytes / per:.3f}"


def with_error(value: float, standard_error: float | None) -> str:
    """`0.01127 ± 0.00030`: as many digits as the error has, which gets two, but not more than 5."""
    if standard_error is None or standard_error <= 0:
        return f"{value:.{DIGITS_WITHOUT_ERROR}g}"
    wanted = SIGNIFICANT_ERROR_DIGITS - 1 - math.floor(math.log10(standard_error))
    digits = min(max(0, wanted), MAX_DIGITS)
    return f"{value:.{digits}f} ± {standard_error:.{digits}f}"


def percent(share: float) -> str:
    """A share as a percentage with two digits."""
    return f"{100 * share:.2f}"


def figure(value: float | None) -> str:
    """A signed figure of a check, or nothing."""
    return "" if value is None else f"{value:+.5f}"
