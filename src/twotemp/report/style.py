"""The style of all figures: one colour and one marker per policy.

The colours are Okabe and Ito's, which colour-blind readers can distinguish; markers carry the same information in
print.
"""

from __future__ import annotations

from typing import Any

from twotemp.policies import PRESETS
from twotemp.records import Policy

INK = "#262626"
GRID = "#e4e4e4"

_MARKS = {  # colour, marker
    "ar": ("#0072B2", "o"),
    "lc": ("#E69F00", "s"),
    "random": ("#7F7F7F", "^"),
    "tlc": ("#D55E00", "D"),
    "ct": ("#CC79A7", "s"),
    "tct": ("#009E73", "D"),
}
# Other published heuristics are dashed. With 8 colours and 7 markers no two look the same.
_OTHER = ("#56B4E9", "#332288", "#882255", "#117733", "#AA4499", "#999933", "#44AA99", "#661100")

# The paper's two families are drawn last and heavier.
TEMPERED = ("tlc", "tct")


def line(policy: Policy) -> dict[str, Any]:
    """Return the matplotlib line properties of a policy."""
    if policy.name in _MARKS:
        colour, marker = _MARKS[policy.name]
        dashes = "-"
    else:
        others = [name for name in PRESETS if name not in _MARKS]
        # A plug-in's policy is not listed; its style follows from its name.
        number = others.index(policy.name) if policy.name in others else sum(policy.name.encode())
        colour, marker, dashes = _OTHER[number % len(_OTHER)], "vPX*<>p"[number % 7], "--"
    heavy = policy.name in TEMPERED
    return {
        "color": colour,
        "marker": marker,
        "linestyle": dashes,
        "linewidth": 2.0 if heavy else 1.5,
        "zorder": 4 if heavy else 3,
    }


def ramp(policy: Policy, index: int, count: int) -> dict[str, Any]:
    """Return the policy's line in shade `index` of `count`, from pale to dark."""
    base = line(policy)
    red, green, blue = (int(base["color"][i : i + 2], 16) for i in (1, 3, 5))
    white = 0.62 * (1 - index / max(count - 1, 1))
    dark = 1.0 if count == 1 else 1.0 - 0.35 * index / (count - 1)
    mixed = [round((c + (255 - c) * white) * dark) for c in (red, green, blue)]
    return {**base, "color": "#{:02x}{:02x}{:02x}".format(*mixed), "marker": "oDsvP^X"[index % 7]}


RC: Any = {
    "font.family": "DejaVu Sans",
    "mathtext.fontset": "dejavusans",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.labelsize": 8,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.markersize": 3.6,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    "svg.hashsalt": "twotemp",  # equal figures are equal files
}
