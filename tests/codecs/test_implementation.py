"""What `implementation` names is what runs."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from quantkit.codecs import can_encode, encode, implementation
from quantkit.codecs.base import codec_for
from quantkit.errors import FormatError
from quantkit.native import cpu, lib
from quantkit.qtypes import QTYPES, QType, by_name

READ_ONLY = by_name("IQ2_XS")


def blocks_encoded_natively(qtype: QType, monkeypatch: pytest.MonkeyPatch) -> int:
    spy = mock.Mock(wraps=cpu.encode)
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "encode", spy)
        encode(qtype, np.ones((2, 256), np.float32))
    return spy.call_count


@pytest.mark.parametrize("qtype", [q for q in QTYPES if can_encode(q)], ids=lambda q: q.name)
def test_the_named_implementation_encodes(qtype: QType, monkeypatch: pytest.MonkeyPatch) -> None:
    native = implementation(qtype) != "numpy"
    assert (blocks_encoded_natively(qtype, monkeypatch) > 0) == native


@pytest.mark.parametrize("variant", cpu.VARIANTS)
def test_the_instructions_in_use_are_named(variant: str) -> None:
    if lib.cpu() is None or not cpu.set_variant(variant):
        pytest.skip(f"no {variant} variant here")
    try:
        for name in ("Q4_K", "MXFP4"):
            assert implementation(by_name(name)) == f"native {variant}"
        # It has no encoder: what decodes it counts.
        assert not codec_for(READ_ONLY).can_encode
        assert implementation(READ_ONLY) == f"native {variant}"
    finally:
        cpu.set_variant(None)


@pytest.mark.parametrize("engine", ["numpy"], indirect=True)
@pytest.mark.parametrize("name", ["Q4_0", "IQ2_XS", "BF16", "I32"])
def test_without_the_library_it_is_numpy(engine: str, name: str) -> None:
    assert engine == implementation(by_name(name)) == "numpy"


def test_a_type_without_codec_is_refused() -> None:
    opaque = QType("NOT_A_TYPE", 32, 18, 999)
    with pytest.raises(FormatError, match="no codec reads NOT_A_TYPE"):
        implementation(opaque)
