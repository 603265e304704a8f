"""Fixtures of the container tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit.errors import ContainerError

from .builders import RawGGUF, RawTensor, small_model, split_pairs

Refuses = Callable[..., ContainerError]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A four-tensor GGUF."""
    return small_model().write(tmp_path / "small.gguf")


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """The four tensors of `small` in three shards; the last one has none of them twice."""
    whole = small_model()
    groups = [whole.tensors[:2], whole.tensors[2:3], whole.tensors[3:]]
    paths = []
    for number, group in enumerate(groups):
        pairs = [*(whole.pairs if number == 0 else []), *split_pairs(number, 3, 4)]
        path = tmp_path / f"m-{number + 1:05d}-of-00003.gguf"
        paths.append(RawGGUF(pairs, group).write(path))
    return paths


@pytest.fixture
def one_tensor() -> RawTensor:
    """A tensor of three floats."""
    return RawTensor("x.weight", (3,), 0, bytes(range(12)))
