"""`decode` and `encode` for torch tensors: on their GPU where that can be, else by way of the CPU.

A GPU works where `libquantkit_cuda` is built and has the type; its bits are those of the native
CPU library. Everything else is copied to the CPU and the result copied back. Errors are the CPU's:
where the GPU finds something wrong, the CPU is asked to name it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from quantkit.codecs.base import (
    DATA,
    Codec,
    codec_for,
    require_part,
    require_size,
    require_whole_rows,
)
from quantkit.codecs.blocks import BlockCodec, EncodingCodec, checked_importance, matrices
from quantkit.native import cuda
from quantkit.native.abi import Operation
from quantkit.qtypes import QType


def runs_on_gpu(qtype: QType, operation: Operation, tensor: Tensor) -> bool:
    """Whether `operation` on `tensor` stays on its GPU."""
    if not tensor.is_cuda or qtype.gguf_id is None or cuda.load().library is None:
        return False
    return cuda.block(operation, qtype.gguf_id) is not None


def decode(
    qtype: QType, parts: Mapping[str, Tensor], shape: tuple[int, ...], threads: int | None = None
) -> Tensor:
    """The values of the `data` part, uint8, as float32 on the part's device."""
    data = _data_part(qtype, parts, shape)
    values = _decode_on_gpu(qtype, data, shape, torch.float32)
    if values is not None:
        return values
    found = codec_for(qtype).decode({DATA: data.cpu().numpy()}, shape, threads)
    return torch.from_numpy(found).to(data.device)


def decode_bfloat(
    qtype: QType, parts: Mapping[str, Tensor], shape: tuple[int, ...], threads: int | None = None
) -> Tensor:
    """The values of the `data` part, uint8, as bfloat16 on the part's device."""
    data = _data_part(qtype, parts, shape)
    values = _decode_on_gpu(qtype, data, shape, torch.bfloat16)
    if values is not None:
        return values
    bits = codec_for(qtype).decode_bfloat({DATA: data.cpu().numpy()}, shape, threads)
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).to(data.device)


def encode(
    qtype: QType,
    values: Tensor,
    importance: np.ndarray | Tensor | None,
    threads: int | None = None,
) -> dict[str, Tensor]:
    """The parts that store `values` (float32 or bfloat16), uint8 on the device of `values`."""
    codec = codec_for(qtype)
    if isinstance(importance, Tensor):
        importance = importance.cpu().numpy()
    if values.numel() and runs_on_gpu(qtype, Operation.ENCODE, values):
        found = _encode_on_gpu(codec, values, importance)
        if found is not None:
            return {DATA: found}
    array = values.float().cpu().numpy()
    parts = codec.encode(array, checked_importance(array, importance), threads)
    return {name: torch.from_numpy(part).to(values.device) for name, part in parts.items()}


def _data_part(qtype: QType, parts: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor:
    """The `data` part as 1-D bytes, checked against what `shape` needs."""
    require_part(qtype, parts)
    data = parts[DATA].reshape(-1).view(torch.uint8)
    require_size(qtype, data.numel(), shape)
    return data


def _decode_on_gpu(
    qtype: QType, data: Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor | None:
    """The values; None where the CPU has to decode, or to name a block that is not finite."""
    if not runs_on_gpu(qtype, Operation.DECODE, data):
        return None
    assert qtype.gguf_id is not None
    values = cuda.decode(qtype.gguf_id, data.contiguous(), dtype).reshape(shape)
    if isinstance(codec_for(qtype), BlockCodec) and not bool(values.isfinite().all()):
        return None
    return values


def _encode_on_gpu(codec: Codec, values: Tensor, importance: np.ndarray | None) -> Tensor | None:
    """The bytes; None where a value is more than the type can hold."""
    assert isinstance(codec, EncodingCodec)
    qtype, shape = codec.qtype, tuple(values.shape)
    assert qtype.gguf_id is not None
    require_whole_rows(qtype, shape)
    if values.dtype != torch.bfloat16:
        values = values.float()
    rows = values.reshape(-1, shape[-1]).contiguous()
    if not bool(rows.abs().amax() <= codec.largest):
        return None
    stand_in = np.broadcast_to(np.float32(0), shape)  # the shape is all that these look at
    weights = checked_importance(stand_in, importance)
    blocks_of_row = shape[-1] // qtype.block_size
    packed = []
    for part, of_row in matrices(stand_in, weights, qtype.block_size):
        matrix = rows[part.start // blocks_of_row : part.stop // blocks_of_row]
        on_gpu = None if of_row is None else torch.from_numpy(of_row).to(rows.device)
        packed.append(cuda.encode(qtype.gguf_id, matrix, on_gpu, known_finite=True).reshape(-1))
    return torch.cat(packed)
