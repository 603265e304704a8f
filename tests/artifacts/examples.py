"""Small, valid artifacts that tests change one field at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from quantkit.artifacts.gate import CheckRow, GateModel, GateReport, GateText
from quantkit.artifacts.kld import KldStatistics, PairedDifference, TextKld
from quantkit.artifacts.machine import Machine
from quantkit.artifacts.provenance import Provenance, ProvenanceSource, TensorOrigin, WrittenFile
from quantkit.artifacts.selection import Choice, Extreme, Goal, Selection, SelectionSource
from quantkit.artifacts.sensitivity import (
    DOWN,
    GATE_UP,
    LAYER,
    Contents,
    Sensitivity,
    Source,
    SourceLayer,
    TensorSize,
    UnitError,
)
from quantkit.artifacts.store import Artifact, FileId

ALIGNMENT = 32
MACHINE = Machine("Linux", "a processor", 2, "3.11.2", ("cpu",), {"torch": "2.13.0"})


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def file_id(name: str, size: int = 64) -> FileId:
    return FileId(name, sha(name), size)


def unit_error(value: float) -> UnitError:
    return UnitError(value, value / 10, 4096, 8, 0.99)


def source_layer(
    layer: int,
    gate_up: tuple[int, float],
    down: tuple[int, float],
    types: tuple[str, str] = ("IQ3_S", "IQ4_NL"),
    rows: tuple[int, int] = (2560, 640),
) -> SourceLayer:
    """(bytes, error) per unit; the layer's error is the sum of both."""
    name = f"blk.{layer}.ffn_{{}}_exps.weight"
    half = gate_up[0] // (2 * ALIGNMENT) * ALIGNMENT
    gate = TensorSize(name.format("gate"), types[0], rows[0], half)
    up = TensorSize(name.format("up"), types[0], rows[0], gate_up[0] - half)
    downs = TensorSize(name.format("down"), types[1], rows[1], down[0])
    return SourceLayer(
        layer,
        {GATE_UP: (gate, up), DOWN: (downs,)},
        {
            LAYER: unit_error(gate_up[1] + down[1]),
            GATE_UP: unit_error(gate_up[1]),
            DOWN: unit_error(down[1]),
        },
    )


def sensitivity(
    sources: Mapping[str, Sequence[SourceLayer]],
    header_bytes: int = 1024,
    overhead_bytes: int = 256,
) -> Sensitivity:
    """The first source is the base; the n-gram table is the fixed part."""
    fixed = TensorSize("per_layer_token_embd.weight", "IQ4_NL", 160, 4096)
    made = tuple(
        Source(name, (file_id(f"{name}.gguf"),), tuple(layers), _contents(name, layers))
        for name, layers in sources.items()
    )
    return Sensitivity(
        architecture="qwen4exp",
        reference=(file_id("bf16.gguf"),),
        texts=(file_id("selection.txt"),),
        parameters={"n_tokens": 4096, "seed": 0},
        alignment=ALIGNMENT,
        header_bytes=header_bytes,
        overhead_bytes=overhead_bytes,
        fixed_tensors=(fixed,),
        sources=made,
    )


def _contents(name: str, layers: Sequence[SourceLayer]) -> Contents:
    names = [tensor.name for layer in layers for tensor in layer.tensors_of(LAYER)]
    return Contents(sha(name), {tensor: sha(name + tensor) for tensor in names})


def statistics(kld_mean: float = 0.03, kld_se: float = 0.001, top1: float = 0.95) -> KldStatistics:
    levels = {"0": 0.0, "50": 0.01, "100": 2.5}
    return KldStatistics(
        n_tokens=5100,
        n_chunks=20,
        kld_mean=kld_mean,
        kld_se_tokens=kld_se,
        kld_se_chunks=kld_se,
        kld_percentiles=levels,
        top1_agreement=top1,
        top1_se_tokens=0.003,
        top1_se_chunks=0.003,
        nll_mean=2.1,
        nll_se_tokens=0.03,
        nll_se_chunks=0.04,
        nll_reference_mean=2.0,
        nll_reference_se_tokens=0.03,
        nll_correlation=0.98,
        ln_ppl_ratio_mean=0.1,
        ln_ppl_ratio_se_tokens=0.004,
        p_diff_mean=-0.01,
        p_diff_se_tokens=0.001,
        p_diff_rms=0.04,
        p_diff_rms_se_tokens=0.002,
        p_diff_percentiles=levels,
    )


def _selection() -> Selection:
    types = {"blk.0.ffn_down_exps.weight": "IQ4_NL"}
    return Selection(
        name="tiny",
        unit="layer",
        goal=Goal(6000, None),
        sources=(
            SelectionSource("base", (file_id("base.gguf"),)),
            SelectionSource("donor", (file_id("donor.gguf"),)),
        ),
        predicted_file_bytes=5824,
        predicted_error=0.2,
        predicted_standard_error=0.02,
        optimality_gap=0.0,
        fixed_bytes=5376,
        overhead_bytes=256,
        floor=Extreme(5632, 0.4),
        ceiling=Extreme(6400, 0.1),
        floor_reasons=("rows of 640 values",),
        choices=(
            Choice(0, "layer", "base", types, 0.1, 0.01, 224),
            Choice(1, "layer", "donor", types, 0.1, 0.01, 224),
        ),
        sensitivity=file_id("sensitivity.json"),
        command=("quantkit", "select", "--target-gb", "0.000006"),
        contents={"base": Contents(sha("header"), {"blk.0.ffn_down_exps.weight": sha("down")})},
    )


def _gate() -> GateReport:
    row = CheckRow("kld", "f.txt", "selection", 0.001, (0.0, 0.002), 0.003, "nats", "PASS", "")
    text = GateText(
        file_id("f.txt"),
        "selection",
        statistics(),
        statistics(0.029),
        PairedDifference(0.001, 0.0005, 0.0006, 0.0, 0.002, None),
    )
    model = {name: GateModel(name, (file_id(f"{name}.gguf"),)) for name in ("hybrid", "q4", "bf16")}
    return GateReport(
        verdict="PASS",
        criterion={"kld_combined_standard_errors": 2.0},
        criterion_sha256=sha("criterion"),
        candidate=model["hybrid"],
        baseline=model["q4"],
        reference=model["bf16"],
        meter="sweep",
        settings={"n_ctx": 512},
        checks=(row,),
        texts=(text,),
        machine=MACHINE,
    )


def examples() -> list[Artifact]:
    """One valid artifact of every schema."""
    layers = [source_layer(n, (640, 0.1), (320, 0.2)) for n in range(2)]
    tensor = TensorOrigin("blk.0.x.weight", "IQ4_NL", 180, sha("t"), "base", True)
    return [
        sensitivity({"base": layers, "donor": layers}),
        _selection(),
        Provenance(
            operation="splice",
            outputs=(WrittenFile("out.gguf", sha("out"), 64),),
            sources=(ProvenanceSource("base", (file_id("base.gguf"),)),),
            inputs=(file_id("tiny.json"),),
            parameters={"split_max_bytes": None},
            tensors=(tensor,),
            command=("quantkit", "splice"),
        ),
        TextKld(
            model=(file_id("q4.gguf"),),
            reference=(file_id("bf16.gguf"),),
            text=file_id("f.txt"),
            meter="sweep",
            settings={"n_ctx": 512},
            statistics=statistics(),
            machine=MACHINE,
        ),
        _gate(),
    ]
