"""The CUDA library: what the device runs, run by the host, and on a GPU the library itself."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from quantkit.errors import FormatError
from quantkit.native import cpu, cuda, lib
from quantkit.native.abi import Operation
from quantkit.qtypes import QTYPES, QType, by_name

SOURCES = lib.FOLDER / "csrc"
PLAIN = ("F32", "F16", "BF16")
DECODED = [q for q in QTYPES if cpu.can_decode(q.gguf_id)]
ENCODED = [q for q in QTYPES if cpu.can_encode(q.gguf_id)]
REQUIRED_ENCODERS = ["IQ4_NL", "IQ4_XS", "Q4_K", "Q6_K", "Q8_0", "MXFP4", "NVFP4", "Q2_0"]


def type_id(qtype: QType) -> int:
    assert qtype.gguf_id is not None
    return qtype.gguf_id


def random_bytes(qtype: QType, n_blocks: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, n_blocks * qtype.type_size, dtype=np.uint8)


def decoded_by_cpu(qtype: QType, data: np.ndarray, dtype: type = np.float32) -> np.ndarray:
    out = np.empty(data.size // qtype.type_size * qtype.block_size, dtype)
    cpu.decode(type_id(qtype), data, out)
    return out


def values_to_encode(seed: int, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """Rows of several kinds, float32: what searches and scales find hard among them."""
    rng = np.random.default_rng(seed)
    heavy = rng.standard_t(2, shape)
    empty_groups = np.repeat(rng.random((shape[0], shape[1] // 32)) < 0.5, 32, axis=1)
    kinds = {
        "gaussian": rng.standard_normal(shape),
        "heavy": heavy,
        "zeros": np.zeros(shape),
        "sparse": np.where(rng.random(shape) < 0.7, 0, heavy),
        "empty groups": np.where(empty_groups, 0, heavy),
        "small": heavy * 1e-7,
        "subnormal": heavy * 1e-40,
        "large": heavy.clip(-30, 30) * 1e36,
        "constant": np.full(shape, -0.3),
        "integers": rng.integers(-8, 8, shape),
    }
    return {name: values.astype(np.float32) for name, values in kinds.items()}


def importances(seed: int, row_length: int) -> dict[str, np.ndarray | None]:
    rng = np.random.default_rng(seed)
    uneven = (rng.random(row_length) ** 4).astype(np.float32)
    some = np.where(rng.random(row_length) < 0.5, 0, uneven).astype(np.float32)
    return {"none": None, "uneven": uneven, "some": some, "zeros": np.zeros_like(uneven)}


def encoded_by_cpu(qtype: QType, values: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    rows, row_length = values.shape
    out = np.empty((rows, row_length // qtype.block_size * qtype.type_size), np.uint8)
    cpu.encode(type_id(qtype), values, importance, out)
    return out


def floats_of(bfloats: np.ndarray) -> np.ndarray:
    return (bfloats.astype(np.uint32) << 16).view(np.float32)


def same_values(ours: np.ndarray, expected: np.ndarray) -> bool:
    """Same bits; any NaN stands for any other."""
    same = ours.view(np.uint32) == expected.view(np.uint32)
    return bool((same | (np.isnan(ours) & np.isnan(expected))).all())


# What the device runs, run by the host: one lane after the other.


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The device's functions compiled for the host."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    if lib.cpu() is None:
        pytest.skip(lib.load().diagnosis)
    path = tmp_path_factory.mktemp("twin") / "libtwin.so"
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-shared"]
    subprocess.run([compiler, *flags, SOURCES / "cuda/twin.cpp", "-o", path], check=True)
    library = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.qk_twin_decode.argtypes = [ctypes.c_int32, pointer, pointer, ctypes.c_int32, number]
    library.qk_twin_encode.argtypes = [ctypes.c_int32, pointer, pointer, pointer, number]
    return library


@pytest.mark.parametrize("to_bf16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("qtype", [q for q in DECODED if q.name not in PLAIN], ids=lambda q: q.name)
def test_device_decoders_run_by_the_host_give_the_bits_of_the_cpu(
    twin: ctypes.CDLL, qtype: QType, to_bf16: bool
) -> None:
    data = random_bytes(qtype, 1 << 20 >> (qtype.block_size.bit_length() - 1))
    expected = decoded_by_cpu(qtype, data, np.uint16 if to_bf16 else np.float32)
    ours = np.empty_like(expected)
    status = twin.qk_twin_decode(
        type_id(qtype), data.ctypes.data, ours.ctypes.data, to_bf16, ours.size
    )
    assert status == 0
    if to_bf16:
        ours, expected = floats_of(ours), floats_of(expected)
    assert same_values(ours, expected)


@pytest.mark.parametrize("qtype", ENCODED, ids=lambda q: q.name)
def test_device_encoders_run_by_the_host_give_the_bits_of_the_cpu(
    twin: ctypes.CDLL, qtype: QType
) -> None:
    row_length = 2048
    for kind, values in values_to_encode(3, (1, row_length)).items():
        for weighting, importance in importances(5, row_length).items():
            expected = encoded_by_cpu(qtype, values, importance)
            ours = np.empty_like(expected)
            status = twin.qk_twin_encode(
                type_id(qtype),
                values.ctypes.data,
                None if importance is None else importance.ctypes.data,
                ours.ctypes.data,
                row_length,
            )
            assert status == 0
            assert (ours == expected).all(), f"{kind} values, importance {weighting}"


# The library's interface.


def test_the_table_of_functions_is_what_the_header_declares() -> None:
    header = (SOURCES / "include/quantkit_cuda.h").read_text()
    declared = dict(re.findall(r"QK_CUDA_API [^;(]*?(qk_\w+)\(([^)]*)\)", header))
    assert set(declared) == set(cuda.FUNCTIONS)
    for name, arguments in declared.items():
        n_arguments = 0 if arguments == "void" else arguments.count(",") + 1
        assert len(cuda.FUNCTIONS[name].arguments) == n_arguments, name


def test_statuses_and_version_are_those_of_the_header() -> None:
    header = (SOURCES / "include/quantkit_cuda.h").read_text()
    for status in cuda.Status:
        assert re.search(rf"QK_CUDA_{status.name} = {int(status)}\b", header), status.name
    for operation in Operation:
        assert re.search(rf"QK_CUDA_{operation.name} = {int(operation)}\b", header), operation.name
    assert f"#define QK_CUDA_ABI_VERSION {cuda.VERSION}\n" in header


def test_a_missing_library_is_diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = cuda.load(tmp_path / cuda.FILE_NAME)
    assert missing.library is None
    assert "does not exist" in missing.diagnosis
    monkeypatch.setattr(cuda, "load", lambda: missing)
    with pytest.raises(cuda.DeviceError, match="make native-cuda"):
        cuda.block(Operation.DECODE, 8)


def test_a_file_that_is_no_library_is_diagnosed(tmp_path: Path) -> None:
    path = tmp_path / cuda.FILE_NAME
    path.write_bytes(b"not a library")
    assert "does not load" in cuda.load(path).diagnosis


def test_a_library_of_another_kind_is_diagnosed() -> None:
    if not lib.library_path().is_file():
        pytest.skip(lib.load().diagnosis)
    assert "qk_cuda_abi_version" in cuda.load(lib.library_path()).diagnosis


@pytest.fixture
def library() -> ctypes.CDLL:
    loaded = cuda.load()
    if loaded.library is None:
        pytest.skip(loaded.diagnosis)
    return loaded.library


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("operation", Operation)
def test_the_gpu_has_every_type_of_the_cpu(operation: Operation) -> None:
    for qtype in QTYPES:
        expected = cpu.block(operation, qtype.gguf_id)
        if qtype.gguf_id is not None:
            assert cuda.block(operation, qtype.gguf_id) == expected, qtype.name
    if operation is Operation.ENCODE:
        assert all(cuda.block(operation, type_id(by_name(n))) for n in REQUIRED_ENCODERS)


def test_wrong_arguments_are_refused_without_a_device(library: ctypes.CDLL) -> None:
    aligned, odd = 1 << 20, (1 << 20) + 4  # never read
    decode, encode = library.qk_cuda_decode, library.qk_cuda_encode
    bad, no_such_type = cuda.Status.BAD_ARGUMENT, cuda.Status.NO_SUCH_TYPE
    assert decode(99, aligned, aligned, 1, 32, None) == no_such_type
    assert decode(8, aligned, aligned, 1, 33, None) == bad
    assert decode(8, aligned, aligned, 1, -32, None) == bad
    assert decode(8, None, aligned, 1, 32, None) == bad
    assert decode(8, aligned, odd, 1, 32, None) == bad
    assert decode(8, None, None, 1, 0, None) == cuda.Status.OK
    assert encode(16, aligned, 0, None, aligned, 1, 256, None) == no_such_type
    assert encode(8, aligned, 0, None, aligned, 1, 33, None) == bad
    assert encode(8, aligned, 0, None, None, 1, 32, None) == bad
    assert encode(8, odd, 0, None, aligned, 1, 32, None) == bad
    assert encode(8, aligned, 0, odd, aligned, 1, 32, None) == bad
    assert b"misaligned" in library.qk_cuda_last_error()
    assert encode(8, None, 0, None, None, 0, 32, None) == cuda.Status.OK


# On a GPU.


@pytest.fixture
def device(library: ctypes.CDLL) -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda")


def copied(array: np.ndarray, device: torch.device, offset: int = 0) -> torch.Tensor:
    """On the device, `offset` elements after an aligned address."""
    tensor = torch.from_numpy(array)
    space = torch.empty(tensor.numel() + offset, dtype=tensor.dtype, device=device)
    return space[offset:].view(tensor.shape).copy_(tensor)


@pytest.mark.gpu
@pytest.mark.parametrize("qtype", DECODED, ids=lambda q: q.name)
def test_gpu_decodes_to_the_bits_of_the_cpu(device: torch.device, qtype: QType) -> None:
    for n_elements in (256, 8192, 8192 * 500 + 256 * 3):  # less than a tile, one, many and a part
        data = random_bytes(qtype, n_elements // qtype.block_size, n_elements)
        for offset in (0, 4 if qtype.name in PLAIN else 3):
            blocks = copied(data, device, offset)
            floats = cuda.decode(type_id(qtype), blocks, torch.float32).cpu().numpy()
            assert same_values(floats, decoded_by_cpu(qtype, data))
            bfloats = cuda.decode(type_id(qtype), blocks).float().cpu().numpy()
            assert same_values(bfloats, floats_of(decoded_by_cpu(qtype, data, np.uint16)))


@pytest.mark.gpu
@pytest.mark.parametrize("qtype", ENCODED, ids=lambda q: q.name)
def test_gpu_encodes_to_the_bits_of_the_cpu(device: torch.device, qtype: QType) -> None:
    rows, row_length = 37, 2560
    for kind, values in values_to_encode(7, (rows, row_length)).items():
        bfloats = torch.from_numpy(values).bfloat16()
        for weighting, importance in importances(9, row_length).items():
            weights = None if importance is None else copied(importance, device)
            ours = cuda.encode(type_id(qtype), copied(values, device, 1), weights)
            expected = encoded_by_cpu(qtype, values, importance)
            assert (ours.cpu().numpy() == expected).all(), f"{kind}, importance {weighting}"
            ours = cuda.encode(type_id(qtype), bfloats.to(device), weights)
            expected = encoded_by_cpu(qtype, bfloats.float().numpy(), importance)
            assert (ours.cpu().numpy() == expected).all(), f"bf16 {kind}, importance {weighting}"


@pytest.mark.gpu
def test_gpu_refuses_bad_input_by_name(device: torch.device) -> None:
    values = torch.ones(2, 64, device=device)
    with pytest.raises(FormatError, match="does not fit"):
        cuda.encode(12, values)
    with pytest.raises(FormatError, match="no encoder"):
        cuda.encode(16, torch.ones(1, 256, device=device))
    with pytest.raises(FormatError, match="no decoder"):
        cuda.decode(99, torch.zeros(34, dtype=torch.uint8, device=device))
    with pytest.raises(FormatError, match="whole blocks"):
        cuda.decode(8, torch.zeros(33, dtype=torch.uint8, device=device))
    for bad in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(FormatError, match="not finite"):
            cuda.encode(8, values.index_fill(1, torch.tensor([5], device=device), bad))
        with pytest.raises(FormatError, match="importance"):
            cuda.encode(8, values, torch.full((64,), bad, device=device))
    with pytest.raises(FormatError, match="importance"):
        cuda.encode(8, values, torch.full((64,), -1.0, device=device))
