"""Entry point of `quantkit`.

Only the module of the verb that is called is imported: `select` needs no torch, and `--help` of a
light verb should not wait for it.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from types import FrameType

import typer

import quantkit
from quantkit.cli.streams import secure_streams
from quantkit.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED
from quantkit.progress import log

VERBS = {
    "inspect": "quantkit.cli.inspect",
    "calib": "quantkit.cli.calib",
    "capture": "quantkit.cli.capture",
    "convert": "quantkit.cli.convert",
    "quantize": "quantkit.cli.quantize",
    "measure": "quantkit.cli.measure",
    "select": "quantkit.cli.select",
    "splice": "quantkit.cli.splice",
    "gate": "quantkit.cli.gate",
    "run": "quantkit.cli.run",
}
"""Verb -> module; each module has `register(app)`."""

# torch's threads spin while they wait for each other; on a machine where anything else runs, the
# sweep's many small products then take ten times as long. Read when torch is loaded, so set here.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

EXIT_SIGNAL = 128
"""Plus its number: how a shell shows a program that a signal ended."""

EXIT_INTERNAL_ERROR = 70
"""Not 1: a crash must never look like a gate's verdict (sysexits.h, EX_SOFTWARE)."""

HELP = """Build smaller MoE models from donor quantizations and prove them good before release.

stdout is data (--json everywhere), stderr is progress. Exit codes: 0 pass, 1 the gate failed,
2 usage, 3 bad input, 4 inconclusive, 130 interrupted (143 by SIGTERM).
"""


def build_app(arguments: list[str]) -> typer.Typer:
    """The application with the verb that `arguments` name, or with all for help and mistakes."""
    app = typer.Typer(
        help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )

    @app.callback(invoke_without_command=True)
    def options(
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    ) -> None:
        if version:
            print(quantkit.__version__, flush=True)
            raise typer.Exit

    named = next((a for a in arguments if not a.startswith("-")), None)
    for verb in [named] if named in VERBS else VERBS:
        importlib.import_module(VERBS[verb]).register(app)
    return app


def run() -> None:
    """Console script: run, and turn a crash of ours into its own exit code."""
    secure_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, _end)
    try:
        build_app(sys.argv[1:])()
    except KeyboardInterrupt:  # while modules were still being imported
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:  # help and version; verbs say it themselves
        log(f"error: {error.strerror}\n  file: {error.filename}")
        sys.exit(EXIT_BAD_INPUT)
    except Exception:
        traceback.print_exc()
        log("\nhint: this is a fault in quantkit; please report it")
        sys.exit(EXIT_INTERNAL_ERROR)


def _end(number: int, frame: FrameType | None) -> None:
    """End like Ctrl-C does, so that temporary files go; a second signal must not disturb that."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(EXIT_SIGNAL + number)


if __name__ == "__main__":
    run()
