"""One look for all figures: a colour, a marker and a name for each policy, the same everywhere.

Colours are Okabe and Ito's, which stay apart for colour-blind readers; markers carry the same information in print.
"""

from __future__ import annotations

from typing import Any

from twotemp.analysis.names import NAMES, label, model_name, task_name
from twotemp.policies import PRESETS
from twotemp.records import Policy

__all__ = ["NAMES", "RC", "TEMPERED", "label", "line", "model_name", "ramp", "task_name"]

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
# For the field's other heuristics: dashed. With 8 colours and 7 markers no two look the same.
_OTHER = ("#56B4E9", "#332288", "#882255", "#117733", "#AA4499", "#999933", "#44AA99", "#661100")

# What the two families of the paper are about: drawn last and heavier, with the tempered parameter in the name.
TEMPERED = ("tlc", "tct")


def line(policy: Policy) -> dict[str, Any]:
    """How matplotlib draws a policy."""
    if policy.name in _MARKS:
        colour, marker = _MARKS[policy.name]
        dashes = "-"
    else:
        others = [name for name in PRESETS if name not in _MARKS]
        # A policy from outside has no place of its own: its name gives it one.
        place = others.index(policy.name) if policy.name in others else sum(policy.name.encode())
        colour, marker, dashes = _OTHER[place % len(_OTHER)], "vPX*<>p"[place % 7], "--"
    heavy = policy.name in TEMPERED
    return {
        "color": colour,
        "marker": marker,
        "linestyle": dashes,
        "linewidth": 2.0 if heavy else 1.5,
        "zorder": 4 if heavy else 3,
    }


def ramp(policy: Policy, place: int, count: int) -> dict[str, Any]:
    """The policy's own colour from pale to full, for curves that differ in one number."""
    look = line(policy)
    red, green, blue = (int(look["color"][i : i + 2], 16) for i in (1, 3, 5))
    share = 0.62 * (1 - place / max(count - 1, 1))  # of white; the last is the full colour, darkened a little
    dark = 1.0 if count == 1 else 1.0 - 0.35 * place / (count - 1)
    mixed = [round((c + (255 - c) * share) * dark) for c in (red, green, blue)]
    return {**look, "color": "#{:02x}{:02x}{:02x}".format(*mixed), "marker": "oDsvP^X"[place % 7]}


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
    "svg.hashsalt": "twotemp",  # the same figure is the same file
}
