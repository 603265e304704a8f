"""The library under test: skipped, with its diagnosis, where it was not built."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quantkit.native import cpu, lib


@pytest.fixture
def library() -> Iterator[object]:
    """The loaded library; the best variant is in use again afterwards."""
    found = lib.load()
    if found.library is None:
        pytest.skip(found.diagnosis)
    yield found.library
    cpu.set_variant(None)
