"""The chart of the report: mean delay by carrier and hour of the day, and by carrier alone."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.colors import LinearSegmentedColormap

INK, SOFT, PAPER = "#22313f", "#7b8a97", "#fbfaf7"
CALM_TO_LATE = LinearSegmentedColormap.from_list("late", ["#e8f1ee", "#f6d58e", "#ec8f5e", "#b8324a", "#5c1a3b"])
FEWEST_FLIGHTS = 20  # a mean of fewer flights is not significant: such cells stay blank


def draw(hours: pd.DataFrame, names: dict[str, str], path: Path) -> None:
    """``hours`` has carrier, local_hour, flights, cancelled, delay_minutes: sums over the year. At least one row."""
    flown = hours.assign(flown=hours["flights"] - hours["cancelled"])
    carriers = flown.groupby("carrier")[["flown", "delay_minutes"]].sum()
    mean = (carriers["delay_minutes"] / carriers["flown"].where(carriers["flown"] > 0)).sort_values()
    order = list(mean.index)

    # With a few hundred flights, no cell has that many: then draw all cells.
    fewest = FEWEST_FLIGHTS if flown["flown"].max() >= FEWEST_FLIGHTS else min(1, flown["flown"].max())
    flown = flown[flown["flown"] >= fewest]
    flown = flown.assign(flown=flown["flown"].where(flown["flown"] > 0))
    cells = flown.assign(mean=flown["delay_minutes"] / flown["flown"]).pivot(
        index="carrier", columns="local_hour", values="mean"
    )
    columns = list(range(int(flown["local_hour"].min()), int(flown["local_hour"].max()) + 1))
    grid = cells.reindex(index=order, columns=columns).to_numpy(dtype=float)

    with mpl.rc_context(
        {
            "font.family": "DejaVu Sans",
            "text.color": INK,
            "axes.labelcolor": INK,
            "figure.constrained_layout.h_pad": 0.12,
            "figure.constrained_layout.w_pad": 0.1,
        }
    ):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(13, 7), width_ratios=[3, 1], sharey=True, facecolor=PAPER, layout="constrained"
        )
        known = grid[~np.isnan(grid)]
        top = max(1.0, float(np.percentile(known, 97))) if known.size else 1.0
        shown = left.imshow(grid, cmap=CALM_TO_LATE, vmin=0, vmax=top, aspect="auto", origin="lower")
        left.set_xticks(range(len(columns)), [f"{hour:02d}" for hour in columns], color=INK)
        left.set_yticks(range(len(order)), [names.get(carrier, carrier) for carrier in order], color=INK)
        left.set_xlabel("scheduled hour of departure, New York time")
        left.set_facecolor(PAPER)
        left.set_xticks(np.arange(-0.5, len(columns)), minor=True)
        left.set_yticks(np.arange(-0.5, len(order)), minor=True)
        left.grid(which="minor", color=PAPER, linewidth=2)
        left.tick_params(which="both", length=0)
        bar = figure.colorbar(shown, ax=left, location="bottom", shrink=0.5, aspect=40, pad=0.02, extend="max")
        bar.set_label("mean delay at departure, minutes", color=SOFT)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0, colors=SOFT)

        values = mean.fillna(0.0).to_numpy()
        longest = max(1.0, float(values.max()))
        right.barh(range(len(order)), values, color=CALM_TO_LATE(np.clip(values / top, 0.12, 1)), height=0.72)
        for row, value in enumerate(values):
            said = "none flew" if np.isnan(mean.iloc[row]) else f"{value:.0f} min"
            right.text(max(value, 0) + longest * 0.02, row, said, va="center", fontsize=9, color=INK)
        right.set_xlim(min(0, values.min()), longest * 1.2)
        right.set_facecolor(PAPER)
        right.set_xticks([])
        right.tick_params(which="both", length=0)
        right.set_xlabel("over the whole day")

        for axes in (left, right):
            axes.spines[:].set_visible(False)
        total = int(hours["flights"].sum())
        figure.suptitle(
            f"The later the hour, the later the plane: {total:,} flights out of New York, 2013",
            fontsize=16,
            fontweight="bold",
            x=0.01,
            ha="left",
        )
        figure.savefig(path, dpi=130, facecolor=PAPER)
        plt.close(figure)
