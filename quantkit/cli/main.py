"""Entry point of `quantkit`.

Only the module of the verb that is called is imported: `select` needs no torch, and `--help` of a
light verb should not wait for it.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback

import typer

import quantkit

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

EXIT_INTERNAL_ERROR = 70
"""Not 1: a crash must never look like a gate's verdict (sysexits.h, EX_SOFTWARE)."""

HELP = """Build smaller MoE models from donor quantizations and prove them good before release.

stdout is data (--json everywhere), stderr is progress. Exit codes: 0 pass, 1 the gate failed,
2 usage, 3 bad input, 4 inconclusive, 130 interrupted.
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
            print(quantkit.__version__)
            raise typer.Exit

    named = next((a for a in arguments if not a.startswith("-")), None)
    for verb in [named] if named in VERBS else VERBS:
        importlib.import_module(VERBS[verb]).register(app)
    return app


def run() -> None:
    """Console script: run, and turn a crash of ours into its own exit code."""
    try:
        build_app(sys.argv[1:])()
    except KeyboardInterrupt:  # while modules were still being imported
        sys.exit(130)
    except Exception:
        traceback.print_exc()
        print("\nhint: this is a fault in quantkit; please report it", file=sys.stderr)
        sys.exit(EXIT_INTERNAL_ERROR)


if __name__ == "__main__":
    run()
