"""The geometry of a model, whatever the file it came from.

One frozen dataclass per block kind; `models.read_config` fills them from a Hugging Face
`config.json` or from GGUF metadata. Sizes are in elements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

MAX_ROPE_THETA = 1e30
MAX_NGRAM_SIZE = 16
MAX_NGRAM_HEADS = 128
"""Far above every model; they keep a damaged number from asking for endless work."""


class Mixer(Enum):
    """What mixes the tokens of a layer."""

    GATED_DELTA_NET = "gated_delta_net"
    ATTENTION = "attention"


@dataclass(frozen=True)
class AttentionConfig:
    """Softmax attention with grouped keys and values, and partial rotary embedding."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    output_gate: bool
    """The query projection also yields a sigmoid gate for the output, interleaved per head."""
    rope_sections: tuple[int, ...] = field(default=(), compare=False)
    """Rotated pairs per position axis. Text has one position on all axes, so that nothing here
    depends on them; a GGUF must have them."""


@dataclass(frozen=True)
class IndexerConfig:
    """Qwen Sparse Attention: which earlier blocks of tokens a query may see."""

    n_heads: int
    head_dim: int
    budget: int
    """Tokens a query may select in whole blocks."""
    block: int
    """Tokens whose keys are averaged into one index key."""


@dataclass(frozen=True)
class DeltaNetConfig:
    """Gated DeltaNet (linear attention with a gated delta rule)."""

    n_key_heads: int
    n_value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    gate_activation: str
    """`sigmoid` or `silu`, on the gate that multiplies the normalised output."""


@dataclass(frozen=True)
class MoeConfig:
    """Routed experts, and a shared expert where `shared_inner` is not zero."""

    n_experts: int
    n_experts_used: int
    inner: int
    shared_inner: int
    renormalize: bool


@dataclass(frozen=True)
class HyperConnectionConfig:
    """Parallel residual streams that replace the layer norms."""

    n_streams: int
    low_rank: int


@dataclass(frozen=True)
class NgramConfig:
    """The hashed n-gram embedding of one layer; all constants are exact integers."""

    layer: int
    ngram_size: int
    heads_per_ngram: int
    row_dim: int
    conv_kernel: int
    eos_token_id: int
    multipliers: tuple[int, ...]
    head_offsets: tuple[int, ...]
    head_vocab_sizes: tuple[int, ...]

    @property
    def n_heads(self) -> int:
        """Rows gathered per token."""
        return (self.ngram_size - 1) * self.heads_per_ngram


@dataclass(frozen=True)
class ModelConfig:
    """Everything the layer mathematics needs to know about a model."""

    arch: str
    vocab_size: int
    hidden: int
    n_layers: int
    context_length: int
    rms_eps: float
    mixers: tuple[Mixer, ...]
    attention: AttentionConfig
    moe: MoeConfig
    tied_head: bool = False
    delta_net: DeltaNetConfig | None = None
    indexer: IndexerConfig | None = None
    hyper: HyperConnectionConfig | None = None
    ngram: NgramConfig | None = None
    n_mtp_layers: int = 0
