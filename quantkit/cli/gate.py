"""`quantkit gate CANDIDATE --baseline FILE --reference FILE --text ROLE=FILE...`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantkit.artifacts.gate import ROLES, GateReport
from quantkit.artifacts.schema import to_json
from quantkit.artifacts.store import save
from quantkit.cli.common import (
    AsJson,
    Context,
    Device,
    DryRun,
    as_usage,
    emit,
    emit_written,
    guarded,
    named_paths,
    require_outputs,
)
from quantkit.errors import RecipeError, UsageError
from quantkit.gate.criterion import criterion_from_bars
from quantkit.gate.meter_llamacpp import LlamaCppSettings, find_llama_perplexity
from quantkit.gate.meters import LlamaCppMeter, Meter, SweepMeter
from quantkit.gate.run import gate as run_gate
from quantkit.runtime import pick_device

METERS = ("quantkit", "llama.cpp")
EPILOG = (
    "Example: quantkit gate hybrid.gguf --baseline iq4_xs.gguf --reference bf16.gguf "
    "--text selection=calib/selection.txt --text check=calib/check.txt "
    "--text held_out=calib/heldout.txt"
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("gate", epilog=EPILOG)(gate)


@guarded
def gate(
    candidate: Annotated[Path, typer.Argument(help="Model to judge.")],
    baseline: Annotated[Path, typer.Option(help="Reference quantization to keep up with.")],
    reference: Annotated[Path, typer.Option(help="Unquantized model.")],
    text: Annotated[list[str], typer.Option(help="ROLE=FILE: selection, check, held_out.")],
    bar: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, instead of the report's bar.")
    ] = None,
    context: Context = 512,
    max_chunks: Annotated[int | None, typer.Option(min=2, help="Chunks of a text.")] = None,
    meter: Annotated[str, typer.Option(help="quantkit or llama.cpp.")] = "quantkit",
    llama_perplexity: Annotated[
        Path | None, typer.Option(help="The program for --meter llama.cpp; default: from PATH.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for log-probabilities; default: beside --out.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Report to write.")] = Path("gate.json"),
    device: Device = "auto",
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """KLD, top-1 agreement and held-out loss against fixed bars: PASS, FAIL or INCONCLUSIVE."""
    with as_usage("--bar"):
        criterion = criterion_from_bars(dict(_bar(pair) for pair in bar or []))
    texts = named_paths(text, "--text")
    unknown = sorted(set(texts) - set(ROLES))
    if unknown:
        raise UsageError(
            "--text: unknown role", value=unknown[0], rule=f"one of {', '.join(ROLES)}"
        )
    require_outputs([out], [candidate, baseline, reference, *texts.values()])
    chosen = make_meter(meter, context, max_chunks, device, llama_perplexity)
    if dry_run:
        reads = [str(path) for path in (candidate, baseline, reference, *texts.values())]
        lines = [f"reads {path}" for path in reads]
        lines += [f"bar {name} = {value}" for name, value in criterion.bars().items()]
        plan = {"reads": reads, "bars": criterion.bars(), "bars_sha256": criterion.sha256}
        emit(as_json, plan, "\n".join(lines))
        return
    report = run_gate(
        candidate,
        baseline,
        reference,
        texts,
        criterion,
        meter=chosen,
        cache=cache or out.absolute().parent / "gate-cache",
    )
    save(report, out)
    emit_written(as_json, [out], table(report), report=to_json(report))
    raise typer.Exit(report.exit_code)


def make_meter(
    name: str, context: int, max_chunks: int | None, device: str, program: Path | None
) -> Meter:
    """The meter of that name; UsageError for another name or settings that it cannot have."""
    if name == "quantkit":
        return SweepMeter(context, max_chunks, pick_device(device))
    if name != "llama.cpp":
        raise UsageError("unknown meter", value=name, rule=f"one of {', '.join(METERS)}")
    extra = ("--chunks", str(max_chunks)) if max_chunks else ()
    settings = LlamaCppSettings(n_ctx=context, n_batch=context, n_ubatch=context, extra=extra)
    return LlamaCppMeter(find_llama_perplexity(program), settings)


def _bar(pair: str) -> tuple[str, object]:
    name, _, value = pair.partition("=")
    try:
        return name, int(value) if value.isdecimal() else float(value)
    except ValueError:
        pass
    if not value:
        raise RecipeError("a bar without a value", value=pair, rule="NAME=VALUE")
    return name, value


def table(report: GateReport) -> str:
    """One row a check, then the verdict."""
    head = f"{'check':36} {'text':16} {'figure':>10} {'interval':>22} {'bar':>10}  verdict"
    rows = [head]
    for row in report.checks:
        interval = "" if row.interval is None else f"{row.interval[0]:.5f} .. {row.interval[1]:.5f}"
        figure = "" if row.figure is None else f"{row.figure:.5f}"
        bar = "" if row.bar is None else f"{row.bar:.5f}"
        note = f"  ({row.note})" if row.note else ""
        rows.append(
            f"{row.check:36} {row.text:16} {figure:>10} {interval:>22} {bar:>10}  "
            f"{row.verdict}{note}"
        )
    for text in report.texts:
        ours, theirs = text.candidate, text.baseline
        rows.append(
            f"{text.text.name}: KLD {ours.kld_mean:.5f} ± {ours.kld_se_tokens or 0:.5f} "
            f"(baseline {theirs.kld_mean:.5f}), top-1 {ours.top1_agreement:.2%} "
            f"({theirs.top1_agreement:.2%}), loss {ours.nll_mean:.4f} "
            f"({theirs.nll_mean:.4f}, unquantized {ours.nll_reference_mean:.4f}) nats/token"
        )
    rows.append(f"{report.verdict}: {report.candidate.name} against {report.baseline.name}")
    return "\n".join(rows)
