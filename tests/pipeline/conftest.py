from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.pipeline.short import ShortRun, short_run


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> ShortRun:
    """A finished run to look at."""
    return short_run(tmp_path_factory)


@pytest.fixture
def copied(shared: ShortRun, tmp_path: Path) -> ShortRun:
    """A finished run to change: the same recipe, a copy of its folder."""
    folder = tmp_path / "copied"
    shutil.copytree(shared.folder, folder)
    return ShortRun(folder, shared.recipe, shared.ran)
