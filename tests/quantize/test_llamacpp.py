"""llama.cpp as a peer: converted and encoded files load there and mean the same.

llama.cpp rounds activations to the type that a product with the weights' type asks for: bfloat16
for BF16 weights, 8 bits for block types, nothing for F32. Files in F32 therefore show whether the
mathematics and the file agree, to within float32; others show it only up to that rounding, which
on models of random weights also flips experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from quantkit import codecs
from quantkit.errors import PeerError
from quantkit.gate.logits_file import LogitsFile, open_logits_file
from quantkit.gate.meter_llamacpp import (
    PROGRAM_VARIABLE,
    LlamaCppSettings,
    LlamaPerplexity,
    find_llama_perplexity,
)
from quantkit.gate.meters import SweepMeter
from quantkit.gate.records import TokenRecords, compare_files
from quantkit.qtypes import QTYPES
from quantkit.quantize import convert_checkpoint
from quantkit.quantize.encode import Rule, encode_gguf
from quantkit.weights import open_model
from tests.tiny import ARCHITECTURES, CPU, EMBEDDED, Zoo, sample_text

pytestmark = pytest.mark.peer

CALIB = Path(__file__).parents[2] / "calib"
EXACT = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")
"""No rounding of keys, values and probabilities either."""
MAX_KLD_FLOAT32 = 1e-5
"""float32 on both sides; the file's steps of 2.4e-4 nats alone give about 1e-8."""
MAX_KLD_8_BITS = 0.01
"""Rounded activations gave 0.0005 to 0.0035 on this model; other weights give more than 0.1."""
MAX_KLD_BF16 = 2e-3
BUDGET = 32
WRITABLE = [q.name for q in QTYPES if codecs.can_encode(q) and q.gguf_id is not None]


@pytest.fixture(scope="module")
def program() -> LlamaPerplexity:
    try:
        return find_llama_perplexity()
    except PeerError:
        pytest.skip(f"llama-perplexity is neither in PATH nor in {PROGRAM_VARIABLE}")


@dataclass(frozen=True)
class Bench:
    """Runs both engines on a text with chunks of `n_ctx` tokens."""

    program: LlamaPerplexity
    text: Path
    folder: Path
    n_ctx: int

    def theirs(self, model: Path, *extra: str) -> LogitsFile:
        n = self.n_ctx
        settings = LlamaCppSettings(n, n_batch=n, n_ubatch=n, n_threads=1, extra=extra)
        out = self.folder / f"{model.stem}-{n}-{len(extra)}.theirs"
        return self.program.write_log_probs(model, self.text, out, settings)

    def ours(self, model: Path) -> LogitsFile:
        out = self.folder / f"{model.stem}-{self.n_ctx}.ours"
        SweepMeter(self.n_ctx, None, CPU).write_reference(model, [self.text], [out])
        return open_logits_file(out)

    def compare(self, model: Path, *extra: str) -> TokenRecords:
        """Their scores against ours; the tokens must be the same first."""
        ours, theirs = self.ours(model), self.theirs(model, *extra)
        assert np.array_equal(ours.tokens, theirs.tokens)
        return compare_files(ours, theirs)


def bench(program: LlamaPerplexity, folder: Path, n_ctx: int) -> Bench:
    text = folder / "text.txt"
    text.write_text(sample_text(400), encoding="utf-8")
    return Bench(program, text, folder, n_ctx)


def top1(records: TokenRecords) -> float:
    return float(records.same_top.mean())


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_random_models(arch: str, zoo: Zoo, program: LlamaPerplexity, tmp_path: Path) -> None:
    """Chunks within the indexer's budget; beyond it see below."""
    n_ctx = BUDGET if arch == "qwen4exp" else 128
    found = bench(program, tmp_path, n_ctx).compare(zoo.quantized(arch, ".*=F32"), *EXACT)
    assert abs(float(found.kld.mean())) < MAX_KLD_FLOAT32
    assert float(found.kld.max()) < 10 * MAX_KLD_FLOAT32
    assert top1(found) >= 0.998


def test_sparse_attention(zoo: Zoo, program: LlamaPerplexity, tmp_path: Path) -> None:
    """llama.cpp always takes budget + block - 1 tokens. Where fewer belong to the incomplete block
    it fills up with a part of the next best block, which transformers and quantkit leave out;
    only where the incomplete block is as long as it can be do both select the same tokens.
    """
    n_ctx, block = 128, 4
    found = bench(program, tmp_path, n_ctx).compare(zoo.quantized("qwen4exp", ".*=F32"), *EXACT)
    kld = found.kld.reshape(-1, n_ctx - 1 - n_ctx // 2)
    positions = np.arange(n_ctx // 2, n_ctx - 1)
    same = (positions + 1) % block == block - 1
    assert float(np.abs(kld[:, same]).max()) < 10 * MAX_KLD_FLOAT32
    assert 10 * MAX_KLD_FLOAT32 < float(kld[:, ~same].max()) < 0.05


@pytest.mark.parametrize("qtype", WRITABLE)
def test_every_type_that_we_write(
    qtype: str, zoo: Zoo, program: LlamaPerplexity, tmp_path: Path
) -> None:
    """Rows of gate and up fit every type; those of down fall back where a fallback is defined."""
    units = "gate|up" if qtype in ("NVFP4", "Q1_0") else "gate|up|down"
    out = tmp_path / "encoded.gguf"
    encode_gguf(
        zoo.gguf("qwen3moe"), out, [Rule.parse(rf"blk\.\d+\.ffn_({units})_exps\.weight={qtype}")]
    )
    found = bench(program, tmp_path, 128).compare(out, *EXACT)
    assert abs(float(found.kld.mean())) < MAX_KLD_8_BITS


def test_bound_for_types_would_see_other_weights(zoo: Zoo, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(sample_text(400), encoding="utf-8")
    files = [tmp_path / "a", tmp_path / "b"]
    for model, out in zip((zoo.gguf("qwen3moe"), zoo.gguf("qwen3moe", seed=1)), files, strict=True):
        SweepMeter(128, None, CPU).write_reference(model, [text], [out])
    other = compare_files(*(open_logits_file(path) for path in files))
    assert float(other.kld.mean()) > 10 * MAX_KLD_8_BITS


@pytest.mark.parametrize("arch", ["qwen4exp", "qwen35moe"])
def test_everything_encoded(arch: str, zoo: Zoo, program: LlamaPerplexity, tmp_path: Path) -> None:
    """Also embedding, head, mixers, narrow rows and the n-gram table."""
    found = bench(program, tmp_path, BUDGET).compare(zoo.quantized(arch, ".*=Q8_0"), *EXACT)
    # Of the median token, because some flip an expert that the rounding decides on.
    assert abs(float(np.median(found.kld))) < MAX_KLD_8_BITS


@dataclass(frozen=True)
class Embedded:
    """The embedded model in BF16 and in F32, and a text of a few chunks."""

    bf16: Path
    float32: Path
    text: Path
    budget: int


@pytest.fixture(scope="module")
def embedded(program: LlamaPerplexity, tmp_path_factory: pytest.TempPathFactory) -> Embedded:
    folder = tmp_path_factory.mktemp("embedded")
    bf16, float32 = folder / "bf16.gguf", folder / "float32.gguf"
    convert_checkpoint(EMBEDDED, bf16)
    encode_gguf(bf16, float32, [Rule.parse(".*=F32")])
    text = folder / "text.txt"
    text.write_text((CALIB / "check.txt").read_text(encoding="utf-8")[:8500], encoding="utf-8")
    indexer = open_model(bf16).config.indexer
    assert indexer is not None
    return Embedded(bf16, float32, text, indexer.budget)


def test_embedded_model_within_the_budget(
    embedded: Embedded, program: LlamaPerplexity, tmp_path: Path
) -> None:
    both = Bench(program, embedded.text, tmp_path, embedded.budget)
    found = both.compare(embedded.float32, *EXACT)
    assert abs(float(found.kld.mean())) < MAX_KLD_FLOAT32
    assert top1(found) >= 0.995


def test_embedded_model_as_converted(
    embedded: Embedded, program: LlamaPerplexity, tmp_path: Path
) -> None:
    """BF16 and sparse attention at work. How often the first choice changes depends on how sure the
    model is, so that llama.cpp's own change between F32 and BF16 is the yardstick.
    """
    both = Bench(program, embedded.text, tmp_path, 512)
    theirs = both.theirs(embedded.bf16)
    found = compare_files(both.ours(embedded.bf16), theirs)
    assert float(found.kld.mean()) < MAX_KLD_BF16
    rounding = compare_files(both.theirs(embedded.float32, *EXACT), theirs)
    assert top1(found) >= top1(rounding) - 0.005
