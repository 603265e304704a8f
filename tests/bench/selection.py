"""The knapsack at the size of a real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quantkit.select import bounds_of
from tests.bench.figures import Figure, best_seconds
from tests.select.test_select import random_sensitivity
from tests.select.test_select import run as select

N_LAYERS, N_SOURCES = 48, 16
MAX_SECONDS = 1.0


def run(folder: Path) -> Iterator[Figure]:
    """Whole layers and units, for a size in the middle of the range."""
    for unit_mode in ("layer", "split"):
        worst = 0.0
        for seed in range(4):
            made = random_sensitivity(seed, N_LAYERS, N_SOURCES)
            bounds = bounds_of(made, unit_mode)
            target = (bounds.floor.file_bytes + bounds.ceiling.file_bytes) // 2

            def once(made=made, unit_mode=unit_mode, target=target) -> object:
                return select(made, unit_mode=unit_mode, target_bytes=target)

            worst = max(worst, best_seconds(once, 2))
        name = f"select, {N_LAYERS} layers x {N_SOURCES} sources, {unit_mode}"
        yield Figure(name, worst, "s", MAX_SECONDS, note="worst of 4 instances")
