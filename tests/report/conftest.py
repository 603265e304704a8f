from __future__ import annotations

import pytest

from tests.pipeline.short import ShortRun, short_run


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> ShortRun:
    """A finished run to look at; the same one as in the tests of the pipeline."""
    return short_run(tmp_path_factory)
