"""`python -m quantkit`: the same as the command `quantkit`."""

from quantkit.cli.main import run

run()
