"""Draw log.csv as loss.png: `python recipes/embedded/plot.py`."""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
CURVES = {"trunk": "next token", "mtp": "token after next (MTP head)", "indexer": "indexer (KL)"}


def main() -> None:
    """One panel for the losses, one for the learning rate."""
    with (HERE / "log.csv").open(newline="") as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    steps = [row["step"] for row in rows]
    figure, (losses, rate) = plt.subplots(
        2, 1, figsize=(8, 5), sharex=True, height_ratios=(4, 1), layout="constrained"
    )
    for name, label in CURVES.items():
        losses.plot(steps, [row[name] for row in rows], label=label, linewidth=1)
    losses.set_yscale("log")
    losses.set_ylabel("nats per token")
    losses.grid(alpha=0.3, which="both")
    losses.legend()
    rate.plot(steps, [row["lr"] for row in rows], color="gray", linewidth=1)
    rate.set_ylabel("learning rate")
    rate.set_xlabel("step")
    figure.savefig(HERE / "loss.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
