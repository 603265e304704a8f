"""What llama-perplexity prints at the end of a `--kl-divergence` run, parsed strictly.

Every line of the report must be there exactly once, and the chunk table must count to the number
of chunks in the reference file: the program ends with exit code 0 after failures, and its last
lines can be lost when it exits. Figures carry the printed digits only.
"""

from __future__ import annotations

import math
import re

from quantkit.artifacts.kld import KldStatistics
from quantkit.errors import PeerError

NUMBER = r"(-?(?:\d+\.\d+|nan|inf))"
PAIR = rf"\s*{NUMBER} ±\s*{NUMBER}"
CHUNK_LINE = re.compile(rf"^\s*(\d+)(?:{PAIR}){{3}}(?:{PAIR} %){{2}}\s*$", re.MULTILINE)
TAIL_LINES = 12

# Label in the report -> name here. Means come with their error; percentiles stand alone.
MEANS = {
    "Mean PPL(Q)": "ppl",
    "Mean PPL(base)": "ppl_reference",
    "Mean ln(PPL(Q)/PPL(base))": "ln_ppl_ratio",
    "Mean    KLD": "kld",
    "Mean    Δp": "p_diff",
    "RMS Δp": "p_diff_rms",
    "Same top p": "top1",
}
CORRELATION = "Cor(ln(PPL(Q)), ln(PPL(base)))"
KLD_LABELS = {"Minimum": "0", "Median": "50", "Maximum": "100"} | {
    f"{level:.1f}%": f"{level:g}" for level in (0.1, 1.0, 5.0, 10.0, 90.0, 95.0, 99.0, 99.9)
}
P_DIFF_LABELS = KLD_LABELS | {"25.0%": "25", "75.0%": "75"}
LAST_LINE = "Same top p:"
PERCENT = 100.0


def is_complete(output: str) -> bool:
    """Whether the report's last line was printed."""
    return any(line.startswith(LAST_LINE) for line in output.splitlines())


def tail(output: str) -> str:
    """The last lines that say something."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    return "\n  ".join(line[:200] for line in lines[-TAIL_LINES:])


def parse_report(output: str, n_chunks: int, n_tokens: int) -> KldStatistics:
    """The statistics that `output` reports for `n_chunks` chunks with `n_tokens` scored tokens.

    PeerError if a line is missing, doubled or unreadable, or the chunks are not all there.
    Errors over chunks are None: single tokens are not printed.
    """
    chunks = [int(match[1]) for match in CHUNK_LINE.finditer(output)]
    if chunks != list(range(1, n_chunks + 1)):
        raise _unreadable(output, f"{len(chunks)} lines of chunks", f"{n_chunks} chunks")
    mean = {name: _line(output, label, PAIR) for label, name in MEANS.items()}
    correlation = _line(output, CORRELATION, rf"\s*{NUMBER}%")[0]
    share = {
        name: tuple(value / PERCENT for value in mean[name])
        for name in ("p_diff", "p_diff_rms", "top1")
    }
    return KldStatistics(
        n_tokens=n_tokens,
        n_chunks=n_chunks,
        kld_mean=mean["kld"][0],
        kld_se_tokens=_known(mean["kld"][1]),
        kld_se_chunks=None,
        kld_percentiles=_percentiles(output, "KLD", KLD_LABELS, 1.0),
        top1_agreement=share["top1"][0],
        top1_se_tokens=_known(share["top1"][1]),
        top1_se_chunks=None,
        nll_mean=math.log(mean["ppl"][0]),
        nll_se_tokens=_known(mean["ppl"][1] / mean["ppl"][0]),
        nll_se_chunks=None,
        nll_reference_mean=math.log(mean["ppl_reference"][0]),
        nll_reference_se_tokens=_known(mean["ppl_reference"][1] / mean["ppl_reference"][0]),
        nll_correlation=_known(correlation / PERCENT),
        ln_ppl_ratio_mean=mean["ln_ppl_ratio"][0],
        ln_ppl_ratio_se_tokens=_known(mean["ln_ppl_ratio"][1]),
        p_diff_mean=share["p_diff"][0],
        p_diff_se_tokens=_known(share["p_diff"][1]),
        p_diff_rms=share["p_diff_rms"][0],
        p_diff_rms_se_tokens=_known(share["p_diff_rms"][1]),
        p_diff_percentiles=_percentiles(output, "Δp", P_DIFF_LABELS, PERCENT),
    )


def _line(output: str, label: str, pattern: str) -> tuple[float, ...]:
    found = re.findall(rf"^\s*{re.escape(label)}\s*:{pattern}", output, re.MULTILINE)
    if len(found) != 1:
        raise _unreadable(output, f"'{label}' {len(found)} times", "every line once, with numbers")
    numbers = (found[0],) if isinstance(found[0], str) else found[0]
    values = tuple(float(number) for number in numbers)
    if not math.isfinite(values[0]) and label != CORRELATION:
        raise _unreadable(output, f"'{label}' is {numbers[0]}", "finite figures")
    return values


def _percentiles(output: str, what: str, labels: dict[str, str], unit: float) -> dict[str, float]:
    # Low levels are printed with a leading space (" 5.0%"), which `_line` allows.
    found = {}
    for label, level in labels.items():
        spaced = rf"^ ?{re.escape(label)} +{what}:\s*{NUMBER}"
        values = re.findall(spaced, output, re.MULTILINE)
        if len(values) != 1:
            value = f"'{label} {what}' {len(values)} times"
            raise _unreadable(output, value, "every line once, with numbers")
        found[level] = float(values[0]) / unit
    return found


def _known(error: float) -> float | None:
    """None where the program printed nan (an error of identical values)."""
    return error if math.isfinite(error) else None


def _unreadable(output: str, value: str, rule: str) -> PeerError:
    return PeerError(
        "llama-perplexity's report is not complete",
        value=value,
        rule=rule,
        hint=f"run it again; its last lines were:\n  {tail(output)}",
    )
