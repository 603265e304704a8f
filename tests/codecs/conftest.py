"""Random blocks of any type, the two implementations of the codecs, and ggml's library."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from quantkit.codecs import decode
from quantkit.errors import FormatError
from quantkit.native import lib
from quantkit.qtypes import QType
from tests.ggml import LIBRARY_VARIABLE, Ggml, find_ggml


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which implementation runs: "numpy" for the reference, else what the product would take."""
    wanted = getattr(request, "param", "native")
    with pytest.MonkeyPatch.context() as patch:
        if wanted == "numpy":
            patch.setattr(lib, "cpu", lambda: None)
        yield wanted


@pytest.fixture(scope="session")
def ggml() -> Ggml:
    """ggml's library, or a reason to skip."""
    found = find_ggml()
    if found is None:
        pytest.skip(f"libggml-base not found; set {LIBRARY_VARIABLE} to it or to its folder")
    return found


def _valid(qtype: QType, block: np.ndarray) -> bool:
    try:
        return bool(np.isfinite(decode(qtype, {"data": block}, (qtype.block_size,))).all())
    except FormatError:
        return False


@pytest.fixture(scope="session")
def random_blocks() -> Callable[[QType, int], np.ndarray]:
    """Random bytes of n blocks, (n, type_size), without the few that hold a non-finite scale."""

    def make(qtype: QType, n_blocks: int) -> np.ndarray:
        rng = np.random.default_rng(sum(qtype.name.encode()))
        drawn = rng.integers(0, 256, (2 * n_blocks, qtype.type_size), dtype=np.uint8)
        valid = np.array([block for block in drawn if _valid(qtype, block)])
        # Of the scale formats binary16 is the most often not finite: one in 32, and up to two.
        assert len(valid) > 0.85 * len(drawn)
        return valid[:n_blocks]

    return make
