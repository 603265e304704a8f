"""The constants of the n-gram hash, as transformers' `qwen4_exp` derives them from a config.

A checkpoint also stores them; these are for making a model, and for checking one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_SEED_STEP = 10007


def _splitmix64(value: int) -> int:
    """One output of the SplitMix64 generator (Steele, Lea and Flood 2014) for a state `value`."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def multipliers(vocab_size: int, ngram_size: int, seed: int, module: int = 0) -> tuple[int, ...]:
    """One odd multiplier per position, below 2^63 / `vocab_size` so that products never wrap."""
    bound = max(1, (2**63 - 1) // vocab_size // 2)
    base = seed + _SEED_STEP * module
    states = ((base + _GAMMA * (place + 1)) & _MASK for place in range(ngram_size))
    return tuple(2 * (_splitmix64(state) % bound) + 1 for state in states)


def _primes_from(start: int) -> Iterator[int]:
    candidate = start
    while True:
        if candidate > 1 and all(candidate % d for d in range(2, math.isqrt(candidate) + 1)):
            yield candidate
        candidate += 1


def head_vocab_sizes(base: int, n_heads: int, module: int = 0) -> tuple[int, ...]:
    """Distinct primes from `base` upwards, one per head, going on where the last module ended."""
    primes = _primes_from(base)
    found = [next(primes) for _ in range((module + 1) * n_heads)]
    return tuple(found[module * n_heads :])


def head_offsets(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """First table row of each head."""
    return tuple(sum(sizes[:head]) for head in range(len(sizes)))
