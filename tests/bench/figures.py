"""One measured figure and how a table shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A value, and the bound that it is held against where there is one."""

    name: str
    value: float
    unit: str
    bound: float | None = None
    at_most: bool = True
    note: str = ""

    @property
    def kept(self) -> bool | None:
        """Whether the bound is kept; None without one."""
        if self.bound is None:
            return None
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def record(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self) | {"kept": self.kept}

    def line(self) -> str:
        """A row of the table."""
        bound = ""
        if self.bound is not None:
            sign = "<=" if self.at_most else ">="
            bound = f"{sign} {self.bound:g} {'ok' if self.kept else 'MISSED'}"
        return f"{self.name:<55}{self.value:>12.4g} {self.unit:<6} {bound:<14} {self.note}".rstrip()


def best_seconds(action: Callable[[], object], repeats: int) -> float:
    """Shortest time of some repetitions."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def table(figures: Iterable[Figure]) -> str:
    """All rows."""
    return "\n".join(figure.line() for figure in figures)
