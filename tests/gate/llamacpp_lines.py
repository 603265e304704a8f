"""Statistics in the words and digits of llama-perplexity's report, for comparing with it."""

from __future__ import annotations

import math

from quantkit.artifacts.kld import KldStatistics
from quantkit.gate.llamacpp_report import KLD_LABELS, P_DIFF_LABELS


def _ends(kind: str, labels: dict[str, str], level: str) -> str:
    names = {value: label for label, value in labels.items()}
    label = names[level]
    return f"{label.rjust(5) if label[0].isdigit() else label.ljust(7)}".ljust(7) + f" {kind}:"


def report_lines(found: KldStatistics) -> list[str]:
    """The lines of the three blocks of statistics, without their headings."""
    ppl, base = found.ppl, found.ppl_reference
    se = ppl * (found.nll_se_tokens or 0)
    se_base = base * (found.nll_reference_se_tokens or 0)
    correlation = found.nll_correlation or 0
    se_difference = math.sqrt(max(0, se**2 + se_base**2 - 2 * correlation * se * se_base))
    se_ratio = found.ln_ppl_ratio_se_tokens or 0
    lines = [
        f"Mean PPL(Q)                   : {ppl:10.6f} ± {se:10.6f}",
        f"Mean PPL(base)                : {base:10.6f} ± {se_base:10.6f}",
        f"Cor(ln(PPL(Q)), ln(PPL(base))): {100 * correlation:6.2f}%",
        f"Mean ln(PPL(Q)/PPL(base))     : {found.ln_ppl_ratio_mean:10.6f} ± {se_ratio:10.6f}",
        f"Mean PPL(Q)/PPL(base)         : {found.ppl_ratio:10.6f} ± "
        f"{found.ppl_ratio * se_ratio:10.6f}",
        f"Mean PPL(Q)-PPL(base)         : {ppl - base:10.6f} ± {se_difference:10.6f}",
        f"Mean    KLD: {found.kld_mean:10.6f} ± {found.kld_se_tokens or 0:10.6f}",
    ]
    for level in ("100", "99.9", "99", "95", "90", "50", "10", "5", "1", "0.1", "0"):
        value = found.kld_percentiles[level]
        lines.append(f"{_ends('KLD', KLD_LABELS, level)} {value:10.6f}")
    lines.append(
        f"Mean    Δp: {100 * found.p_diff_mean:6.3f} ± {100 * (found.p_diff_se_tokens or 0):5.3f} %"
    )
    levels = ("100", "99.9", "99", "95", "90", "75", "50", "25", "10", "5", "1", "0.1", "0")
    for level in levels:
        value = found.p_diff_percentiles[level]
        lines.append(f"{_ends('Δp', P_DIFF_LABELS, level)} {100 * value:6.3f}%")
    rms_se, top1_se = found.p_diff_rms_se_tokens or 0, found.top1_se_tokens or 0
    lines.append(f"RMS Δp    : {100 * found.p_diff_rms:6.3f} ± {100 * rms_se:5.3f} %")
    lines.append(f"Same top p: {100 * found.top1_agreement:6.3f} ± {100 * top1_se:5.3f} %")
    return lines


def full_report(found: KldStatistics) -> str:
    """A whole report with its chunk table; the table's figures are those of the end."""
    chunk = "   10.0000 ±    1.0000       0.01000 ±    0.00100       0.01000 ±    0.00100"
    table = [
        f"{number:4}    {chunk}     3.000 ±  0.100 %    95.000 ±  0.500 %"
        for number in range(1, found.n_chunks + 1)
    ]
    return "\n".join([*table, "", *report_lines(found), ""])
