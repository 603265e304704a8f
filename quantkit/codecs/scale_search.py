"""The search for a block's scale: try many, keep the one with the least weighted squared error.

For a fixed scale the best codes are the nearest levels, so a block's only freedom is its scale.
Its error as a function of the scale is rugged (each element rounds in its own rhythm), which is
why a handful of closed-form guesses loses 5 to 30 % to a dense scan. Every candidate is scored as
it will be stored, after rounding to the scale's own format. Two more steps follow: the least
squares scale for the best codes, and again rounding.

All arrays are (elements of a block, blocks): a sum over a block is then a sum of whole rows, so
that its order, and with it every bit of the result, does not depend on how many blocks are
searched at once, nor on the processor.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quantkit.codecs.base import Floats
from quantkit.codecs.levels import Levels

HALF_LARGEST = 65504.0  # of IEEE binary16
HALF_SMALLEST = 2.0**-24


def round_to_half(scale: Floats) -> Floats:
    """Scales as binary16 would store them; overflow becomes infinite."""
    with np.errstate(over="ignore"):
        return scale.astype(np.float16).astype(np.float32)


def block_extreme(values: Floats) -> Floats:
    """The element of largest magnitude of each block, with its sign; the first one of equals."""
    where = np.abs(values).argmax(axis=0)
    return np.take_along_axis(values, where[None], axis=0)[0]


class ScaleSearch:
    """The best scale so far for each of many blocks.

    `values` and `weight` are (block_size, n_blocks); a missing weight is 1 everywhere. The search
    starts from scale 0, which decodes to zeros, so that blocks of zeros need no special case.
    """

    def __init__(self, levels: Levels, values: Floats, weight: Floats | None) -> None:
        self._levels = levels
        self._values = values
        self._weight = weight
        self._targets = np.empty_like(values)
        self._rounded = np.empty_like(values)
        self.scale = np.zeros(values.shape[1], np.float32)
        np.multiply(values, values, out=self._targets)
        self._error = self._weighted_sum(self._targets)

    def _weighted_sum(self, terms: Floats) -> Floats:
        """Sum over each block of weight * terms; overwrites `terms`."""
        if self._weight is not None:
            terms *= self._weight
        total: Floats = np.add.reduce(terms, axis=0)
        return total

    def _round_at(self, inverse_scale: Floats) -> None:
        """Fill the buffers: values in units of the scale, and the levels nearest to them."""
        np.multiply(self._values, inverse_scale, out=self._targets)
        self._levels.nearest(self._targets, out=self._rounded)

    def _inverse(self) -> Floats:
        """1 / best scale, 0 where that is 0."""
        return np.divide(1, self.scale, out=np.zeros_like(self.scale), where=self.scale != 0)

    def consider(self, scale: Floats) -> None:
        """Score one storable scale per block and keep it where it is better."""
        # A scale of 0 or infinity scores NaN or infinity, and so never wins.
        with np.errstate(all="ignore"):
            self._round_at(np.reciprocal(scale))
            residual = np.subtract(self._targets, self._rounded, out=self._targets)
            np.multiply(residual, residual, out=residual)
            error = self._weighted_sum(residual) * scale * scale
            better = error < self._error
        np.copyto(self._error, error, where=better)
        np.copyto(self.scale, scale, where=better)

    def refine(self, storable: Callable[[Floats], Floats]) -> None:
        """Try the least squares scale of the best codes, rounded by `storable`."""
        self._round_at(self._inverse())
        product = np.multiply(self._values, self._rounded, out=self._targets)
        numerator = self._weighted_sum(product)
        np.multiply(self._rounded, self._rounded, out=self._targets)
        denominator = self._weighted_sum(self._targets)
        fitted = np.divide(
            numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0
        )
        self.consider(storable(fitted))

    def codes(self) -> np.ndarray:
        """Codes (block_size, n_blocks) of the levels nearest at the best scale, uint8."""
        np.multiply(self._values, self._inverse(), out=self._targets)
        return self._levels.codes(self._targets)
