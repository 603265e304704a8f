"""Settings that must be there before torch is loaded, in this process and in those it starts."""

from __future__ import annotations

import os

# As in quantkit.cli.main; and the workers of a parallel run share the cores already.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
