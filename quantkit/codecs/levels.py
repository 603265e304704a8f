"""The values that a code stands for, in units of the block's scale, and rounding to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from quantkit.codecs.base import Bytes, Floats

HALF = np.float32(0.5)


class Levels(ABC):
    """A finite set of values; `nearest` rounds to it, `codes` and `values` translate."""

    lowest: float
    highest: float

    @property
    def largest(self) -> float:
        """The largest magnitude among the levels."""
        return max(-self.lowest, self.highest)

    @abstractmethod
    def nearest(self, targets: Floats, out: Floats) -> None:
        """Write the level nearest to each of `targets` to `out` (another array)."""

    @abstractmethod
    def codes(self, targets: Floats) -> Bytes:
        """The code of the level nearest to each target."""

    @abstractmethod
    def values(self, codes: Bytes, out: Floats) -> None:
        """Write the level of each code to `out`."""


class IntegerLevels(Levels):
    """Consecutive integers from `lowest` to `highest`; code 0 is `zero_code` below level 0.

    Ties round to even, which treats both signs alike. A byte-wide two's complement code has
    `zero_code` 0: the level's low byte is the code.
    """

    def __init__(self, lowest: int, highest: int, zero_code: int) -> None:
        self.lowest = float(lowest)
        self.highest = float(highest)
        self._zero_code = zero_code

    def nearest(self, targets: Floats, out: Floats) -> None:
        np.rint(targets, out=out)
        np.clip(out, np.float32(self.lowest), np.float32(self.highest), out=out)

    def codes(self, targets: Floats) -> Bytes:
        levels = np.empty_like(targets)
        self.nearest(targets, levels)
        return (levels.astype(np.int16) + np.int16(self._zero_code)).astype(np.uint8)

    def values(self, codes: Bytes, out: Floats) -> None:
        levels = codes - np.uint8(self._zero_code) if self._zero_code else codes
        np.copyto(out, levels.view(np.int8))


class TableLevels(Levels):
    """Any integer levels, given by code, through a table over half-integer steps.

    Midpoints between integer levels are multiples of one half, so the truncated double of a
    target decides its level exactly; truncation treats both signs alike. Targets beyond the
    outermost level are clipped. Codes that repeat a level (a second zero) are never written.
    """

    def __init__(self, levels_by_code: Sequence[int]) -> None:
        self.lowest = float(min(levels_by_code))
        self.highest = float(max(levels_by_code))
        self._by_code = np.array(levels_by_code, np.float32)
        self._reach = int(2 * self.largest)
        steps = np.arange(-self._reach, self._reach + 1)
        centres = (steps + 0.5 * np.sign(steps)) / 2
        distance = np.abs(centres[:, None] - self._by_code[None, :].astype(np.float64))
        self._step_codes = distance.argmin(axis=1).astype(np.uint8)
        self._step_levels = self._by_code[self._step_codes]

    def _steps(self, targets: Floats) -> np.ndarray:
        doubled = targets + targets
        np.clip(doubled, np.float32(-self._reach), np.float32(self._reach), out=doubled)
        steps = doubled.astype(np.int16)
        steps += np.int16(self._reach)
        return steps

    def nearest(self, targets: Floats, out: Floats) -> None:
        np.take(self._step_levels, self._steps(targets), out=out, mode="clip")

    def codes(self, targets: Floats) -> Bytes:
        return self._step_codes[self._steps(targets)]

    def values(self, codes: Bytes, out: Floats) -> None:
        np.take(self._by_code, codes, out=out, mode="clip")
