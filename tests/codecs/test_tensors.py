"""Torch tensors through the codecs: what arrays give, and on a GPU the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quantkit.codecs import decode, decode_bfloat, encode, tensors
from quantkit.errors import FormatError
from quantkit.native import cuda
from quantkit.native.abi import Operation
from quantkit.qtypes import QType, by_name
from tests.codecs.helpers import BLOCK_TYPES, ENCODABLE, ROW, channel_weights, heavy_tailed

BOTH = pytest.mark.parametrize("qtype", ENCODABLE, ids=lambda q: q.name)
CPU = torch.device("cpu")
SHAPE = (3, 5, ROW)


@pytest.fixture
def gpu() -> torch.device:
    """A device with the library that works on it."""
    if cuda.load().library is None:
        pytest.skip(cuda.load().diagnosis)
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda")


def check_round_trip(qtype: QType, device: torch.device, importance: np.ndarray | None) -> None:
    values = heavy_tailed(1, SHAPE)
    expected = encode(qtype, values, importance)["data"]
    stored = encode(qtype, torch.from_numpy(values).to(device), importance)["data"]
    assert stored.device.type == device.type
    np.testing.assert_array_equal(stored.cpu().numpy(), expected)
    decoded = decode(qtype, {"data": stored}, SHAPE)
    assert (decoded.device.type, decoded.dtype) == (device.type, torch.float32)
    np.testing.assert_array_equal(decoded.cpu(), decode(qtype, {"data": expected}, SHAPE))
    bfloats = decode_bfloat(qtype, {"data": stored}, SHAPE)
    assert (bfloats.device.type, bfloats.dtype) == (device.type, torch.bfloat16)
    bits = decode_bfloat(qtype, {"data": expected}, SHAPE)
    np.testing.assert_array_equal(bfloats.cpu().view(torch.int16).numpy().view(np.uint16), bits)


def check_errors(device: torch.device) -> None:
    qtype = by_name("Q8_0")
    values = torch.zeros(2, 64, device=device)
    values[1, 3] = float("nan")
    with pytest.raises(FormatError, match=r"nan at index \(1, 3\)"):
        encode(qtype, values)
    with pytest.raises(FormatError, match="importance that does not fit"):
        encode(qtype, torch.zeros(2, 64, device=device), np.ones(32, np.float32))
    with pytest.raises(FormatError, match="rows of 33 elements"):
        encode(qtype, torch.zeros(2, 33, device=device))
    with pytest.raises(FormatError, match="of the wrong size"):
        decode(qtype, {"data": torch.zeros(33, dtype=torch.uint8, device=device)}, (32,))
    with pytest.raises(FormatError, match="without its 'data' part"):
        decode(qtype, {"scales": torch.zeros(34, dtype=torch.uint8, device=device)}, (32,))
    block = torch.full((34,), 0xFF, dtype=torch.uint8, device=device)
    for decoder in (decode, decode_bfloat):
        with pytest.raises(FormatError, match="every scale must be finite"):
            decoder(qtype, {"data": block}, (32,))


@BOTH
@pytest.mark.parametrize("weighted", [False, True])
def test_tensors_on_the_cpu_give_what_arrays_give(qtype: QType, weighted: bool) -> None:
    check_round_trip(qtype, CPU, channel_weights(2) if weighted else None)


def test_errors_of_tensors_are_those_of_arrays() -> None:
    check_errors(CPU)


def test_other_dtypes_and_views_are_taken() -> None:
    qtype = by_name("Q4_0")
    values = torch.from_numpy(heavy_tailed(3, (ROW, 6))).bfloat16().T
    importance = torch.from_numpy(channel_weights(4))
    expected = encode(qtype, np.ascontiguousarray(values.float().numpy()), importance.numpy())
    assert torch.equal(
        encode(qtype, values, importance)["data"].data, torch.tensor(expected["data"])
    )
    assert encode(qtype, torch.zeros(0, 64))["data"].shape == (0,)


def test_what_lies_on_the_cpu_stays_there() -> None:
    here = torch.zeros(34, dtype=torch.uint8)
    assert not tensors.runs_on_gpu(by_name("Q8_0"), Operation.DECODE, here)
    assert not tensors.runs_on_gpu(by_name("F8_E4M3"), Operation.DECODE, here)


@pytest.mark.gpu
@BOTH
@pytest.mark.parametrize("kind", ["none", "channels", "experts"])
def test_a_gpu_gives_the_bits_of_the_cpu(gpu: torch.device, qtype: QType, kind: str) -> None:
    experts = np.stack([channel_weights(seed) for seed in (5, 6, 7)])
    experts[1] = 0
    importance = {"none": None, "channels": channel_weights(2), "experts": experts}[kind]
    check_round_trip(qtype, gpu, importance)


@pytest.mark.gpu
@pytest.mark.parametrize("qtype", BLOCK_TYPES, ids=lambda q: q.name)
def test_block_types_run_on_the_gpu(gpu: torch.device, qtype: QType) -> None:
    values = torch.zeros(2, ROW, device=gpu)
    assert tensors.runs_on_gpu(qtype, Operation.ENCODE, values)
    assert tensors.runs_on_gpu(qtype, Operation.DECODE, values)


@pytest.mark.gpu
def test_errors_of_a_gpu_are_those_of_the_cpu(gpu: torch.device) -> None:
    check_errors(gpu)
