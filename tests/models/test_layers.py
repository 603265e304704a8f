"""Layer mathematics against definitions: recurrences, loops and transformers' own modules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import (
    Qwen4ExpTextGatedResidual,
    Qwen4ExpTextNGramEmbedding,
    Qwen4ExpTextRotaryEmbedding,
    apply_rotary_pos_emb,
)

from quantkit.models.config import IndexerConfig, MoeConfig
from quantkit.models.hf_config import config_from_hf
from quantkit.models.layers import attention, gated_delta_net, moe, ngram
from quantkit.models.layers.hyper_connection import HyperWeights, read_streams, write_streams
from quantkit.models.layers.norm import grouped_rms_norm, rms_norm
from quantkit.models.layers.rope import apply_rope, rope_table
from tests.tiny import EOS, VOCAB_SIZE, random_model


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestDeltaRule:
    """The chunked form of the sweep and the sentence that defines it."""

    @staticmethod
    def inputs(length: int, seed: int, decay: float) -> tuple[Tensor, ...]:
        q, k = (F.normalize(normal(2, 3, length, 8, seed=seed + i), dim=-1) for i in range(2))
        v = normal(2, 3, length, 5, seed=seed + 2)
        log_decay = -decay * normal(2, 3, length, seed=seed + 3).abs()
        beta = torch.sigmoid(2 * normal(2, 3, length, seed=seed + 4))
        return q, k, v, log_decay, beta

    @given(
        length=st.one_of(st.integers(1, 200), st.sampled_from([63, 64, 65, 127, 128, 129])),
        seed=st.integers(0, 999),
        decay=st.sampled_from([0.0, 0.05, 1.0, 30.0]),
    )
    @settings(max_examples=40, deadline=None)
    def test_chunks_change_nothing(self, length: int, seed: int, decay: float) -> None:
        inputs = self.inputs(length, seed, decay)
        wanted = gated_delta_net.delta_rule_recurrent(*inputs)
        torch.testing.assert_close(
            gated_delta_net.delta_rule_chunked(*inputs), wanted, rtol=1e-9, atol=1e-10
        )

    def test_recurrence_is_the_definition(self) -> None:
        """S_t = a S + b k (v - a S^T k)^T, o = S^T q, for one head, written out."""
        q, k, v, log_decay, beta = (x[0, 0] for x in self.inputs(9, 1, 1.0))
        state = torch.zeros(8, 5, dtype=torch.float64)
        wanted = []
        for t in range(9):
            state = log_decay[t].exp() * state
            state = state + beta[t] * torch.outer(k[t], v[t] - state.T @ k[t])
            wanted.append(state.T @ q[t])
        inputs = (x[None, None] for x in (q, k, v, log_decay, beta))
        found = gated_delta_net.delta_rule_recurrent(*inputs)
        torch.testing.assert_close(found[0, 0], torch.stack(wanted), rtol=1e-12, atol=1e-12)

    def test_float32_error_does_not_grow_with_length(self) -> None:
        inputs = self.inputs(1500, 5, 0.01)
        wanted = gated_delta_net.delta_rule_recurrent(*inputs)
        found = gated_delta_net.delta_rule_chunked(*(x.float() for x in inputs))
        error = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1).mean()
        assert float(error.max()) < 1e-4


class TestCausalConvolution:
    @pytest.mark.parametrize("dilation", [1, 3])
    def test_is_the_sum_over_earlier_tokens(self, dilation: int) -> None:
        x, kernel = normal(2, 11, 4), normal(4, 3, seed=1)
        wanted = torch.zeros_like(x)
        for t in range(11):
            for tap in range(3):
                earlier = t - (2 - tap) * dilation
                if earlier >= 0:
                    wanted[:, t] += kernel[:, tap] * x[:, earlier]
        torch.testing.assert_close(gated_delta_net.causal_conv(x, kernel, dilation), wanted)


class TestNgramRows:
    """Rows against transformers' module, which looks them up in an embedding of row numbers."""

    @staticmethod
    def module_and_config(**changes: Any) -> tuple[Qwen4ExpTextNGramEmbedding, Any]:
        config = random_model("qwen4exp", **changes).config
        module = Qwen4ExpTextNGramEmbedding(config, config.ple_embed_dim, 1)
        n_rows, width = module.ngram_embedding.weight.shape
        numbers = torch.arange(n_rows, dtype=torch.float64)
        module.ngram_embedding.weight = torch.nn.Parameter(
            numbers[:, None].expand(n_rows, width), requires_grad=False
        )
        return module, config_from_hf(config.to_dict()).ngram

    @given(
        tokens=st.lists(
            st.one_of(st.just(EOS), st.just(1), st.integers(0, VOCAB_SIZE - 1)),
            min_size=1,
            max_size=40,
        ),
        changes=st.sampled_from(
            [{}, {"ngram_size": 4, "heads_per_ngram": 3, "ple_embed_dim": 144}, {"ngram_size": 2}]
        ),
    )
    @settings(max_examples=60, deadline=None)
    def test_rows(self, tokens: list[int], changes: dict[str, Any]) -> None:
        module, config = self.module_and_config(**changes)
        ids = torch.tensor([tokens, tokens[::-1]])
        wanted = module(ids, None).unflatten(-1, (config.n_heads, -1))[..., 0].long()
        assert torch.equal(ngram.ngram_rows(ids, config), wanted)

    def test_end_of_text_hides_what_was_before(self) -> None:
        _, config = self.module_and_config()
        rows = ngram.ngram_rows(torch.tensor([[5, 6, EOS, 7, 8], [9, 3, EOS, 7, 8]]), config)
        assert torch.equal(rows[0, 3:], rows[1, 3:])
        assert not torch.equal(rows[0, 2], rows[1, 2]), "the end itself sees what it ends"

    def test_large_vocabulary_does_not_wrap(self) -> None:
        """The last token of a large vocabulary, in Python's unbounded integers."""
        settings_ = {"vocab_size": 248_320, "ngram_vocab_size_base": 20_000_000}
        config = config_from_hf(_text_config() | settings_).ngram
        assert config is not None
        found = ngram.ngram_rows(torch.tensor([[248_319, 248_318]]), config)[0, 1].tolist()
        bigram = 248_318 * config.multipliers[0] ^ 248_319 * config.multipliers[1]
        trigram = bigram ^ EOS * config.multipliers[2]
        mixed = [bigram] * config.heads_per_ngram + [trigram] * config.heads_per_ngram
        sizes, offsets = config.head_vocab_sizes, config.head_offsets
        assert found == [m % s + o for m, s, o in zip(mixed, sizes, offsets, strict=True)]


def _text_config() -> dict[str, Any]:
    return dict(random_model("qwen4exp").config.to_dict())


class TestRope:
    @pytest.mark.parametrize("factor", [0.25, 0.5, 1.0])
    def test_text_positions_match_transformers(self, factor: float) -> None:
        rope = {
            "rope_type": "default",
            "rope_theta": 1e5,
            "partial_rotary_factor": factor,
            "mrope_section": [2, 1, 1],
        }
        config = Qwen4ExpTextConfig(head_dim=32, rope_parameters=rope)
        positions = torch.arange(50)
        cos, sin = Qwen4ExpTextRotaryEmbedding(config)(torch.zeros(1), positions[None])
        x = normal(1, 50, 3, 32).float()
        wanted = apply_rotary_pos_emb(x, cos=cos, sin=sin, unsqueeze_dim=2)
        found = apply_rope(x, rope_table(positions, int(32 * factor), 1e5))
        torch.testing.assert_close(found, wanted)

    def test_dot_product_depends_on_distance_alone(self) -> None:
        q, k = normal(1, 1, 1, 16), normal(1, 1, 1, 16, seed=1)
        dots = [
            (apply_rope(q, rope_table(torch.tensor([a]), 16, 1e4))
             * apply_rope(k, rope_table(torch.tensor([b]), 16, 1e4))).sum()
            for a, b in ((5, 2), (905, 902))
        ]  # fmt: skip
        assert float(dots[0]) == pytest.approx(float(dots[1]), abs=1e-4)


class TestHyperConnection:
    @pytest.mark.parametrize("inject", [True, False])
    def test_matches_transformers(self, inject: bool) -> None:
        config = random_model("qwen4exp").config
        module = Qwen4ExpTextGatedResidual(config, use_combine=inject).double()
        for index, parameter in enumerate(module.parameters()):
            parameter.data = normal(*parameter.shape, seed=index) / 8
        state = normal(2, 7, 4 * config.hidden_size, seed=9)
        weights = HyperWeights(
            module.hc_norm.weight + 1,
            module.input_mix_weight_down.weight,
            module.input_mix_weight_up.weight,
            module.block_inject_weight.weight if inject else None,
        )
        mixed, write = read_streams(state, weights, 4, config.rms_norm_eps)
        if not inject:
            assert write is None
            torch.testing.assert_close(mixed, module(state))
            return
        wanted, _, injection = module(state)
        torch.testing.assert_close(mixed, wanted)
        torch.testing.assert_close(write, injection)

    def test_write_adds_to_each_stream(self) -> None:
        state, y = normal(3, 4 * 5), normal(3, 5, seed=1)
        weights = torch.tensor([0.0, 1.0, 2.0, -1.0]).double().expand(3, 4)
        change = (write_streams(state, y, weights) - state).unflatten(-1, (4, 5))
        torch.testing.assert_close(change, torch.stack((0 * y, y, 2 * y, -y), dim=1))


class TestNorms:
    def test_definitions(self) -> None:
        x, gamma = normal(6, 12), normal(12, seed=1)
        row = x[2] / math.sqrt(float((x[2] ** 2).mean()) + 1e-6) * gamma
        torch.testing.assert_close(rms_norm(x, gamma, 1e-6)[2], row)
        parts = torch.cat([rms_norm(p, torch.ones(4), 1e-6) for p in x.split(4, dim=-1)], dim=-1)
        torch.testing.assert_close(grouped_rms_norm(x, gamma, 3, 1e-6), parts * gamma)


class TestBlockSelection:
    """Which tokens a query sees, against a loop over queries."""

    @given(
        length=st.integers(1, 60),
        block=st.integers(1, 7),
        kept_blocks=st.integers(1, 5),
        start=st.integers(0, 59),
        seed=st.integers(0, 99),
    )
    @settings(max_examples=80, deadline=None)
    def test_loop(self, length: int, block: int, kept_blocks: int, start: int, seed: int) -> None:
        start %= length
        # With few heads two blocks often tie at 0, and no order of them is right.
        cfg = IndexerConfig(n_heads=40, head_dim=4, budget=kept_blocks * block, block=block)
        index = attention.IndexKeys(
            normal(1, length, 40, 4, seed=seed), normal(1, length // block, 4, seed=seed + 1)
        )
        scores = attention.block_scores(index, start, length, block)
        mask = attention.selected_tokens(scores, start, length, cfg)[0]
        for query in range(start, length):
            n_complete = (query + 1) // block
            dots = index.block_keys[0, :n_complete] @ index.queries[0, query].T
            ranked = dots.relu().sum(1).argsort(descending=True)[:kept_blocks].tolist()
            seen = {t for b in ranked for t in range(b * block, (b + 1) * block)}
            seen |= set(range(n_complete * block, query + 1))
            visible = mask[query - start].nonzero().flatten().tolist()
            assert {t for t in visible if t <= query} == seen

    def test_tiles_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = random_model("qwen4exp")
        config = config_from_hf(model.config.to_dict())
        sizes = {"q": (256, 128), "k": (64, 128), "v": (64, 128), "out": (128, 128)}
        w = attention.AttentionWeights(
            *(normal(*s, seed=i).float() / 11 for i, s in enumerate(sizes.values())),
            torch.ones(32),
            torch.ones(32),
        )
        sparse = attention.IndexerWeights(
            normal(128, 128, seed=7).float(), normal(16, 128, seed=8).float(),
            torch.ones(16), torch.ones(16),
        )  # fmt: skip
        assert config.indexer is not None
        x = normal(2, 90, 128, seed=9).float()
        arguments = (x, w, config.attention, 1e-6, (sparse, config.indexer))
        whole = attention.attention(*arguments)
        monkeypatch.setattr(attention, "QUERY_TILE", 32)
        torch.testing.assert_close(attention.attention(*arguments), whole)


class TestExperts:
    @pytest.mark.parametrize("renormalize", [True, False])
    def test_block_is_the_weighted_sum(self, renormalize: bool) -> None:
        cfg = MoeConfig(
            n_experts=6, n_experts_used=3, inner=5, shared_inner=0, renormalize=renormalize
        )
        x, router = normal(10, 4), normal(6, 4, seed=1)
        experts = [
            moe.ExpertWeights(
                normal(5, 4, seed=e), normal(5, 4, seed=20 + e), normal(4, 5, seed=40 + e)
            )
            for e in range(6)
        ]
        chosen = moe.route(x, router, cfg)
        found = moe.routed_experts(x, chosen, experts.__getitem__, 6)
        for token in range(10):
            p = torch.softmax((router @ x[token]).float(), 0).double()
            best = p.argsort(descending=True)[:3]
            scale = p[best].sum() if renormalize else 1.0
            wanted = torch.zeros(4).double()
            for e in best.tolist():
                w = experts[e]
                wanted += p[e] / scale * (w.down @ (F.silu(w.gate @ x[token]) * (w.up @ x[token])))
            torch.testing.assert_close(found[token], wanted, rtol=1e-5, atol=1e-6)

    def test_unused_experts_are_not_fetched(self) -> None:
        fetched: list[int] = []

        def expert(number: int) -> moe.ExpertWeights:
            fetched.append(number)
            return moe.ExpertWeights(normal(5, 4), normal(5, 4), normal(4, 5))

        chosen = moe.Route(torch.tensor([[3, 1], [1, 3]]), torch.full((2, 2), 0.5).double())
        moe.routed_experts(normal(2, 4), chosen, expert, 6)
        assert fetched == [1, 3]
