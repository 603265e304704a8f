"""A GGUF whose logits are known exactly, for holding llama-perplexity's figures against ours.

One llama layer that adds nothing (its output projections are zero) between an embedding of ±1
and an output matrix of small multiples of 1/64: the norm leaves the embedding as it is, and every
sum is exact in float32 whatever the order. The logits at a position are `head @ embedding[token]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

N_EMBD = 64
N_BYTES = 256
MERGES = ["0 1", "2 3", "4 5", "6 7", "8 9"]
LETTERS = "etaoinsrhldcumfgpwyb "
N_SUCCESSORS = 5
NO_EPSILON = 1e-30


@dataclass(frozen=True)
class ExactModel:
    path: Path
    embedding: NDArray[np.float32]
    head: NDArray[np.float32]

    @property
    def n_vocab(self) -> int:
        return len(self.head)

    def logits(self, tokens: NDArray[np.int32]) -> torch.Tensor:
        """float32 (len(tokens), n_vocab)."""
        return torch.from_numpy(self.embedding[tokens] @ self.head.T)


def byte_characters() -> list[str]:
    """The 256 characters that byte-level BPE writes for bytes (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def vocabulary() -> list[str]:
    return [*byte_characters(), *(merge.replace(" ", "") for merge in MERGES)]


def successors(seed: int) -> NDArray[np.int64]:
    """(n_letters, 5): the letters that the model of this seed expects after each letter."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(len(LETTERS))[:N_SUCCESSORS] for _ in LETTERS])


def make_text(seed: int, length: int) -> str:
    """Text that the model of this seed finds likely; each letter is one token."""
    rng = np.random.default_rng(seed)
    following = successors(seed)
    place, text = 0, []
    for _ in range(length):
        place = int(rng.choice(following[place]))
        text.append(LETTERS[place])
    return "".join(text)


def _head_steps(seed: int, embedding: NDArray[np.float32], noise: int) -> NDArray[np.float64]:
    """Multiples of 1/64: random, raised for likely successors, and far lower for many others,
    so that rows spread over more than the 16 nats that the file keeps.
    """
    steps = np.rint(np.random.default_rng(seed).normal(0, 12, embedding.shape))
    steps[len(vocabulary()) - 64 :] *= 3
    characters = vocabulary()
    ids = [characters.index(letter.replace(" ", "Ġ")) for letter in LETTERS]
    for letter, following in enumerate(successors(seed)):
        for place in following:
            steps[ids[place]] += 12 * embedding[ids[letter]]
    if noise:
        steps += np.random.default_rng(noise).integers(-noise, noise + 1, steps.shape)
    return steps


def make_model(path: Path, seed: int, noise: int = 0, n_extra: int = 0) -> ExactModel:
    """The same `seed` gives the same model; `noise` shifts head weights by up to noise/64."""
    tokens = vocabulary() + [f"<extra_{n}>" for n in range(n_extra)]
    rng = np.random.default_rng(seed)
    embedding = rng.choice(np.float32([-1, 1]), (len(tokens), N_EMBD))
    head = (_head_steps(seed, embedding, noise) / 64).astype(np.float32)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(1)
    writer.add_feed_forward_length(N_EMBD)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(NO_EPSILON)
    writer.add_rope_dimension_count(N_EMBD)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    ones = np.ones(N_EMBD, np.float32)
    zeros = np.zeros((N_EMBD, N_EMBD), np.float32)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", head)
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", ones)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", zeros)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ExactModel(path, embedding, head)
