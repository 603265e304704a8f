"""Blocks with a scale and an offset: Q4_1 and Q5_1.

Layout: `d` and `m` (binary16), then the packed codes; a value is `code * d + m`. Source:
ggml-common.h and ggml-quants.c of llama.cpp. The encoder scans ranges that cut something from
either end of the block's own range, then scales around the best. Each candidate only proposes
codes; the least squares line through them gives `d` and `m`, which are scored as stored.
"""

from __future__ import annotations

import numpy as np

from quantkit.codecs.base import Bytes, Floats, register
from quantkit.codecs.blocks import SearchingCodec
from quantkit.codecs.legacy import HALF_BYTES, half_bytes, read_half
from quantkit.codecs.packing import FiveBits, Layout, Nibbles
from quantkit.codecs.scale_search import HALF_LARGEST, round_to_half
from quantkit.qtypes import by_name

# Fractions of the block's range cut from an end; negative ones widen it.
PLAIN_CUTS = (0.0, 0.03, 0.06)
WEIGHTED_CUTS = (0.0, 0.03, 0.06, 0.12, 0.22, 0.36)
# Then: scales around the best one, with the middle code's value kept in place.
SCALE_FACTORS = tuple(np.linspace(0.92, 1.08, 25))
REFINEMENTS = 2


class RangeSearch:
    """The best (d, m) so far for each of many blocks; arrays are (block_size, n_blocks)."""

    def __init__(self, n_codes: int, values: Floats, weight: Floats | None) -> None:
        self._top = np.float32(n_codes - 1)
        self._values = values
        self._weight = weight
        self._targets = np.empty_like(values)
        self._rounded = np.empty_like(values)
        weights = np.ones_like(values) if weight is None else weight
        self._mass = np.add.reduce(weights, axis=0)
        self._mean = np.add.reduce(weights * values, axis=0) / self._mass
        self.scale = np.zeros(values.shape[1], np.float32)
        self.offset = self._mean.astype(np.float16).astype(np.float32)
        self._centred = weights * (values - self._mean)
        constant = values - self.offset
        self._error = self._weighted_sum(constant * constant)

    def _weighted_sum(self, terms: Floats) -> Floats:
        if self._weight is not None:
            terms *= self._weight
        total: Floats = np.add.reduce(terms, axis=0)
        return total

    def _round_at(self, inverse_scale: Floats, offset: Floats) -> None:
        np.subtract(self._values, offset, out=self._targets)
        np.multiply(self._targets, inverse_scale, out=self._targets)
        np.rint(self._targets, out=self._rounded)
        np.clip(self._rounded, np.float32(0), self._top, out=self._rounded)

    def consider(self, scale: Floats, offset: Floats) -> None:
        """Score `scale` and `offset`, rounded as they are stored, and keep the better.

        A scale of 0 or infinity scores NaN, and so never wins.
        """
        with np.errstate(all="ignore"):
            scale = round_to_half(scale)
            offset = offset.astype(np.float16).astype(np.float32)
            self._round_at(np.reciprocal(scale), offset)
            residual = np.subtract(self._targets, self._rounded, out=self._targets)
            np.multiply(residual, residual, out=residual)
            error = self._weighted_sum(residual) * scale * scale
            better = error < self._error
        np.copyto(self._error, error, where=better)
        np.copyto(self.scale, scale, where=better)
        np.copyto(self.offset, offset, where=better)

    def consider_fit(self, scale: Floats, offset: Floats) -> None:
        """Consider the weighted least squares line through the codes of `scale`, `offset`."""
        with np.errstate(all="ignore"):
            self._round_at(np.reciprocal(scale), offset)
            codes, product = self._rounded, self._targets
            np.multiply(codes, self._centred, out=product)
            covariance = np.add.reduce(product, axis=0)
            weighted = codes
            if self._weight is not None:
                weighted = np.multiply(codes, self._weight, out=product)
            code_mean = np.add.reduce(weighted, axis=0) / self._mass
            np.multiply(weighted, codes, out=product)
            spread = np.add.reduce(product, axis=0) - code_mean * code_mean * self._mass
            slope = covariance / spread
        self.consider(slope, self._mean - slope * code_mean)

    def codes(self) -> np.ndarray:
        """Codes (block_size, n_blocks) at the best scale and offset, uint8."""
        nonzero = self.scale != 0
        inverse = np.divide(1, self.scale, out=np.zeros_like(self.scale), where=nonzero)
        self._round_at(inverse, self.offset)
        return self._rounded.astype(np.uint8)


class AffineCodec(SearchingCodec):
    """Scale, offset, packed codes."""

    def __init__(self, name: str, n_codes: int, layout: Layout) -> None:
        super().__init__(by_name(name))
        self._n_codes = n_codes
        self._layout = layout

    @property
    def largest(self) -> float:
        return HALF_LARGEST

    def decode_blocks(self, blocks: Bytes, out: Floats) -> None:
        np.copyto(out, self._layout.unpack(blocks[:, 2 * HALF_BYTES :]))
        np.multiply(out, read_half(blocks, 0), out=out)
        np.add(out, read_half(blocks, HALF_BYTES), out=out)

    def encode_columns(self, values: Floats, weight: Floats | None) -> Bytes:
        top = self._n_codes - 1
        search = RangeSearch(self._n_codes, values, weight)
        low, high = values.min(axis=0), values.max(axis=0)
        width = high - low
        search.consider(width * np.float32(1 / top), low)
        cuts = PLAIN_CUTS if weight is None else WEIGHTED_CUTS
        for below in cuts:
            for above in cuts:
                step = width * np.float32((1 - below - above) / top)
                search.consider_fit(step, low + width * np.float32(below))
        scale, middle = search.scale.copy(), search.offset + search.scale * (top / 2)
        for factor in SCALE_FACTORS:
            stretched = scale * np.float32(factor)
            search.consider_fit(stretched, middle - stretched * (top / 2))
        for _ in range(REFINEMENTS):
            search.consider_fit(search.scale, search.offset)
        codes = np.ascontiguousarray(search.codes().T)
        fields = [half_bytes(search.scale), half_bytes(search.offset), self._layout.pack(codes)]
        return np.concatenate(fields, axis=1)


register(AffineCodec("Q4_1", 16, Nibbles(32)))
register(AffineCodec("Q5_1", 32, FiveBits()))
