"""Per-token scores of a whole text, kept so that every statistic can be made from them later.

They are small (25 bytes a token beside half a megabyte of log-probabilities), so they are stored:
percentiles, errors clustered by chunk and paired differences between two models need them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from quantkit.errors import ArtifactError
from quantkit.files import atomic_path, read_regular
from quantkit.gate.kld import Losses, TokenScores, score_log_probs
from quantkit.gate.logits_file import LogitsFile
from quantkit.progress import Progress

LOSSES = (np.dtype(np.float32), np.dtype(np.float64))
COLUMNS = {
    "chunk": (np.dtype(np.int32),),
    "kld": (np.dtype(np.float64),),
    "nll": LOSSES,
    "nll_reference": LOSSES,
    "same_top": (np.dtype(np.bool_),),
}


@dataclass(frozen=True)
class TokenRecords:
    """Columns of one text's scored tokens, (n_tokens,) each; `chunk` never falls."""

    chunk: NDArray[np.int32]
    kld: NDArray[np.float64]
    nll: Losses
    nll_reference: Losses
    same_top: NDArray[np.bool_]

    @property
    def n_tokens(self) -> int:
        return len(self.chunk)

    @property
    def n_chunks(self) -> int:
        return len(np.unique(self.chunk))


class Recorder:
    """Collects scores while a meter goes through the chunks in order."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, TokenScores]] = []

    def add(self, chunk: int, scores: TokenScores) -> None:
        """Append the next scored tokens of a chunk; a chunk may come in several parts."""
        assert not self._parts or chunk >= self._parts[-1][0]
        self._parts.append((chunk, scores))

    def records(self) -> TokenRecords:
        """Everything collected so far."""
        scores = [part for _, part in self._parts]
        return TokenRecords(
            np.concatenate([np.full(len(s.kld), c, np.int32) for c, s in self._parts]),
            np.concatenate([s.kld for s in scores]),
            np.concatenate([s.nll for s in scores]),
            np.concatenate([s.nll_reference for s in scores]),
            np.concatenate([s.same_top for s in scores]),
        )


def save_records(records: TokenRecords, path: Path) -> None:
    """Write the columns as safetensors; the same records give the same bytes."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(save_arrays({name: getattr(records, name) for name in COLUMNS}))


def load_records(path: Path) -> TokenRecords:
    """Read what `save_records` wrote; ArtifactError on anything else."""
    hint = "measure this text again"
    try:
        columns = load_arrays(read_regular(path))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ArtifactError(
            "cannot read the per-token scores", file=path, value=str(error), hint=hint
        ) from error
    fits = columns.keys() == COLUMNS.keys() and all(
        column.ndim == 1 and column.dtype in COLUMNS[name] for name, column in columns.items()
    )
    if not fits or len({len(column) for column in columns.values()}) != 1:
        raise ArtifactError(
            "not a file of per-token scores",
            file=path,
            value=", ".join(sorted(columns)),
            rule=f"the columns {', '.join(COLUMNS)}, of one length",
            hint=hint,
        )
    return TokenRecords(**columns)


def compare_files(reference: LogitsFile, candidate: LogitsFile) -> TokenRecords:
    """Scores of one log-probability file against another over the same text.

    TextError unless both have the same tokens and vocabulary. The candidate's values are stored
    in steps of at most 2.5e-4 nats too: a token's KLD is off by up to 1e-4 nats either way, the
    mean over thousands of tokens by about 1e-6.
    """
    reference.require_vocabulary(candidate.n_vocab, candidate.path)
    reference.require_tokens(candidate.tokens, candidate.path)
    recorder = Recorder()
    with Progress("compare log-probabilities", reference.n_chunks) as progress:
        for chunk in range(reference.n_chunks):
            targets = reference.targets(chunk)
            for rows, log_probs in reference.blocks(chunk):
                other = candidate.log_probs(chunk, rows.start, rows.stop)
                scores = score_log_probs(
                    log_probs, other, targets[rows], candidate_is_normalized=True
                )
                recorder.add(chunk, scores)
            progress.step()
    return recorder.records()
