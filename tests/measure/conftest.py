"""Tiny models, made once; small products are faster on one thread."""

from __future__ import annotations

import pytest
import torch

from tests.tiny import Zoo


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return Zoo(tmp_path_factory.mktemp("zoo"))
