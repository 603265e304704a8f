"""Fixtures of the container tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .builders import RawGGUF, small_model, split_pairs


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A four-tensor GGUF."""
    return small_model().write(tmp_path / "small.gguf")


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """The same model in three shards."""
    whole = small_model()
    groups = [whole.tensors[:2], whole.tensors[2:3], whole.tensors[3:]]
    paths = []
    for number, group in enumerate(groups):
        pairs = [*(whole.pairs if number == 0 else []), *split_pairs(number, 3, 4)]
        path = tmp_path / f"m-{number + 1:05d}-of-00003.gguf"
        paths.append(RawGGUF(pairs, group).write(path))
    return paths
