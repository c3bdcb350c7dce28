"""Draw what `losses.py logits` printed: the time of each provider over its floor, a panel a size.

    python benchmarks/losses.py logits --others --plain | tee losses.txt
    python benchmarks/plot_losses.py losses.txt docs/images/losses.png

Needs matplotlib, which nothing else here does.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

TITLE = re.compile(r"^(V=\d+) N=(\d+): copy ([\d.]+) TB/s")
LINE = re.compile(r"^  (\S.*?) +([\d.]+) ms \[.*\] +([\d.]+)$")
COLORS = {"ours": "#2f6fbb", "liger": "#d0803a", "compiled": "#8a8f98", "eager": "#c4c8ce"}
GOAL = 1.11


def read(text: str) -> dict[str, dict[str, float]]:
    """The ratios of each provider, by size."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if title := TITLE.match(line):
            found[title[1]] = {}
        elif (row := LINE.match(line)) and not row[1].startswith("copy"):
            found[list(found)[-1]][row[1]] = float(row[3])
    return found


def draw(found: dict[str, dict[str, float]], path: Path) -> None:
    """One panel a size, bars on a logarithmic axis that begins at the floor."""
    mpl.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = plt.subplots(1, len(found), figsize=(9, 3.6), sharey=True)
    for panel, (size, ratios) in zip(panels, found.items(), strict=True):
        names = list(ratios)[::-1]
        widths = [ratios[name] - 1 for name in names]
        colors = [COLORS[name.split()[0]] for name in names]
        panel.barh(names, widths, left=1, color=colors)
        panel.axvline(GOAL, color="black", linewidth=0.6, linestyle=":")
        panel.set(xscale="log", xlim=(1, 25), title=f"{size.replace('=', ' = ')}, N = 8192")
        panel.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
        panel.minorticks_off()
        for at, name in enumerate(names):
            panel.text(ratios[name] * 1.06, at, f"{ratios[name]:.2f}", va="center", fontsize=6.5)
    figure.supxlabel(
        f"time over a copy of the same bytes, H200, bf16 (logarithmic; dotted: {GOAL})"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    draw(read(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
