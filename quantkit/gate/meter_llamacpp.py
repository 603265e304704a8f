"""The gate's figures from an installed llama-perplexity instead of quantkit's own engine.

The program is never believed by its exit code: it ends with 0 after a truncated reference or
another vocabulary. A reference is used only if its file is complete, a result only if the whole
report was printed. What it prints passes through a thread that is not waited for at the end
(llama.cpp, common/log.cpp), so the last lines can be lost; a small model on a busy machine loses
them in every third run. A run without its last lines is therefore repeated once, and a short
one a few times more. `score_tokens` does not depend on what is printed at all: it has the
candidate's log-probabilities written to a file, too, and gives per-token scores.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantkit.artifacts.kld import KldStatistics
from quantkit.artifacts.schema import Scalar
from quantkit.errors import ContainerError, PeerError, QuantkitError, RecipeError, TextError
from quantkit.files import atomic_path
from quantkit.gate.llamacpp_report import CHUNK_LINE, is_complete, parse_report, tail
from quantkit.gate.logits_file import LogitsFile, expected_bytes, open_logits_file
from quantkit.gate.records import TokenRecords, compare_files
from quantkit.progress import Progress

PROGRAM = "llama-perplexity"
SCRATCH_PREFIX = ".llama-perplexity-"
"""Of the folders that stand beside a reference while a model is scored."""
PROGRAM_VARIABLE = "QUANTKIT_LLAMA_PERPLEXITY"
POLL_SECONDS = 0.2
MIN_ATTEMPTS = 2
MAX_ATTEMPTS = 12
RETRY_SECONDS = 60.0
MIN_TOKENS = 100
STOP_SECONDS = 10

# Messages after which the program still ends with exit code 0, or prints figures all the same.
COMPLAINTS: tuple[tuple[str, type[QuantkitError], str], ...] = (
    ("you need at least", TextError, "use a longer text or a smaller context"),
    ("inconsistent vocabulary", TextError, "compare models with the same tokenizer"),
    ("does not look like a file", ContainerError, "write the reference again"),
    ("failed reading", ContainerError, "write the reference again"),
    ("failed to decode", PeerError, "lower the context or batch size"),
    ("Increase it with -c", TextError, "give the reference's context length"),
)


@dataclass(frozen=True)
class LlamaCppSettings:
    """What the figures depend on; `extra` are further arguments (devices, offload)."""

    n_ctx: int = 512
    n_batch: int = 512
    n_ubatch: int = 512
    n_threads: int = os.cpu_count() or 1
    extra: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """As command-line arguments; RecipeError for a batch that the program would abort on."""
        if self.n_batch >= self.n_ctx and self.n_batch % self.n_ctx:
            raise RecipeError(
                "the batch size does not fit the context length",
                value=f"n_batch {self.n_batch}, n_ctx {self.n_ctx}",
                rule="n_batch is smaller than n_ctx or a multiple of it",
                hint="use n_batch = n_ctx",
            )
        counts = {"-c": self.n_ctx, "-b": self.n_batch, "-ub": self.n_ubatch, "-t": self.n_threads}
        return [text for name, count in counts.items() for text in (name, str(count))] + [
            *("-fit", "off"),
            *self.extra,
        ]


@dataclass(frozen=True)
class LlamaPerplexity:
    """An installed program and the version line that it prints."""

    program: Path
    version: str

    def settings_record(self, settings: LlamaCppSettings) -> dict[str, Scalar]:
        """What to store beside the figures."""
        return {
            "n_ctx": settings.n_ctx,
            "n_batch": settings.n_batch,
            "n_ubatch": settings.n_ubatch,
            "n_threads": settings.n_threads,
            "extra": " ".join(settings.extra),
            "version": self.version,
        }

    def write_log_probs(
        self, model: Path, text: Path, output: Path, settings: LlamaCppSettings
    ) -> LogitsFile:
        """The model's log-probabilities on a text, in a file that is complete or not there.

        The first run of a comparison is that of the unquantized model.
        """
        _require_files(model, text)
        with atomic_path(output) as temporary:
            command = ["-m", str(model), "-f", str(text), "--kl-divergence-base", str(temporary)]
            self._run(
                command + settings.arguments(),
                finished=lambda _: _is_whole(temporary),
                share=lambda _: _share_written(temporary),
                label=f"{PROGRAM} {model.name}",
            )
            open_logits_file(temporary)
        return open_logits_file(output)

    def measure(self, model: Path, reference: Path, settings: LlamaCppSettings) -> KldStatistics:
        """The model against a file of log-probabilities; figures have the printed digits."""
        _require_files(model)
        base = open_logits_file(reference)
        if base.n_ctx != settings.n_ctx:
            raise TextError(
                "the reference has another context length",
                file=reference,
                value=base.n_ctx,
                rule=f"n_ctx {settings.n_ctx}",
                hint="write the reference again with this context length",
            )
        n_tokens = base.n_chunks * base.n_rows
        if n_tokens < MIN_TOKENS:
            raise TextError(
                f"too few tokens for {PROGRAM}",
                file=reference,
                value=f"{n_tokens} scored tokens",
                rule=f"it prints statistics from {MIN_TOKENS} tokens on",
                hint="use a longer text, or quantkit's own meter",
            )
        files = ["-m", str(model), "--kl-divergence-base", str(reference), "--kl-divergence"]
        output = self._run(
            files + settings.arguments(),
            finished=is_complete,
            share=lambda text: len(CHUNK_LINE.findall(text)) / base.n_chunks,
            label=f"{PROGRAM} {model.name}",
        )
        return parse_report(output, base.n_chunks, n_tokens)

    def score_tokens(
        self, model: Path, text: Path, reference: LogitsFile, settings: LlamaCppSettings
    ) -> TokenRecords:
        """Per-token scores of the model, from a second file of log-probabilities.

        The file is written beside the reference, takes as much space, and is removed.
        """
        with tempfile.TemporaryDirectory(
            prefix=SCRATCH_PREFIX, dir=reference.path.parent
        ) as folder:
            own = self.write_log_probs(model, text, Path(folder, "candidate"), settings)
            return compare_files(reference, own)

    def _run(
        self,
        arguments: Sequence[str],
        *,
        finished: Callable[[str], bool],
        share: Callable[[str], float],
        label: str,
    ) -> str:
        """Standard output of a run that finished; the error that it complained of otherwise."""
        command = [str(self.program), *arguments]
        start = time.monotonic()
        for attempt in range(1, MAX_ATTEMPTS + 1):
            code, output, log = _execute(command, share, label)
            _raise_complaint(command, log + output)
            if finished(output):
                return output
            hopeless = code != 0 or time.monotonic() - start > RETRY_SECONDS
            if hopeless and attempt >= MIN_ATTEMPTS:
                break
        raise PeerError(
            f"{PROGRAM} did not finish its work",
            file=self.program,
            value=f"exit code {code}: {' '.join(command[1:])}",
            rule="it must print its whole report, or write its whole file",
            hint=f"its last lines were:\n  {tail(output + log) or '(none)'}",
        )


def find_llama_perplexity(program: Path | None = None) -> LlamaPerplexity:
    """The given program, that of $QUANTKIT_LLAMA_PERPLEXITY, or the one in PATH, asked its version.

    PeerError if there is none or it does not run.
    """
    wanted = str(program or os.environ.get(PROGRAM_VARIABLE) or PROGRAM)
    found = shutil.which(wanted)
    if found is None:
        raise PeerError(
            f"{PROGRAM} was not found",
            file=wanted,
            rule="an executable of llama.cpp",
            hint=f"put it into PATH or name it in {PROGRAM_VARIABLE}; "
            "or use quantkit's own meter, which needs no llama.cpp",
        )
    code, output, log = _execute([found, "--version"], lambda _: 0.0, PROGRAM)
    lines = [line for line in (log + output).splitlines() if line.startswith("version:")]
    if not lines:
        raise PeerError(
            f"{PROGRAM} does not say its version",
            file=found,
            value=f"exit code {code}",
            hint=f"its last lines were:\n  {tail(log + output) or '(none)'}",
        )
    return LlamaPerplexity(Path(found), lines[0].removeprefix("version:").strip())


def _execute(
    command: Sequence[str], share: Callable[[str], float], label: str
) -> tuple[int, str, str]:
    """(exit code, standard output, standard error); stopped with us if we are interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        with out.open("wb") as out_stream, err.open("wb") as err_stream:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out_stream, stderr=err_stream
            )
            try:
                _watch(process, lambda: share(_text(out)), label)
            finally:
                _stop(process)
        return process.returncode, _text(out), _text(err)


def _watch(process: subprocess.Popen[bytes], share: Callable[[], float], label: str) -> None:
    with Progress(label, 1.0) as progress:
        while True:
            try:
                process.wait(POLL_SECONDS)
                return
            except subprocess.TimeoutExpired:
                progress.step(share() - progress.done)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


def _require_files(*paths: Path) -> None:
    for path in paths:
        if not path.is_file():
            raise PeerError(f"no such file to give to {PROGRAM}", file=path)


def _raise_complaint(command: Sequence[str], messages: str) -> None:
    for words, error, hint in COMPLAINTS:
        match = re.search(f"[^\n]*{re.escape(words)}[^\n]*", messages)
        if match:
            raise error(
                f"{PROGRAM} complained",
                file=command[command.index("-m") + 1] if "-m" in command else command[0],
                value=match[0].strip()[-200:],
                hint=hint,
            )


def _is_whole(path: Path) -> bool:
    expected = expected_bytes(path)
    return expected is not None and path.stat().st_size == expected


def _share_written(path: Path) -> float:
    expected = expected_bytes(path)
    return 0.0 if expected is None else path.stat().st_size / expected
