"""How policies, tasks and models appear in sentences, tables and figures: their names, colors and markers.

The colors are Okabe and Ito's, which color-blind readers can distinguish; markers carry the same information in
print.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from twotemp.policies import PRESETS, AnyPolicy, Portfolio
from twotemp.records import Policy

_PAPER = {  # display name, color, marker
    "ar": ("Autoregressive", "#0072B2", "o"),
    "lc": ("Low confidence", "#E69F00", "s"),
    "random": ("Random", "#7F7F7F", "^"),
    "tlc": ("TLC", "#D55E00", "D"),
    "ct": ("Fast-dLLM (CT)", "#CC79A7", "s"),
    "tct": ("TCT", "#009E73", "D"),
}
NAMES = {policy: name for policy, (name, _, _) in _PAPER.items()}
TASKS = {"gsm8k": "GSM8K", "math500": "MATH-500", "humaneval": "HumanEval", "mbpp": "MBPP"}
_SYMBOLS = {"t_pos": r"T_\mathrm{pos}", "t_token": r"T_\mathrm{token}", "threshold": r"\lambda", "k": "K"}
VARIES = "varies"


def task_name(task: str) -> str:
    """Return the display name of a task."""
    return TASKS.get(task, task)


def model_name(model: str) -> str:
    """Return the last part of a hub id or a path: `GSAI-ML/LLaDA-8B-Instruct` -> `LLaDA-8B-Instruct`.

    All models that `twotemp grpo` and `python -m recipes` save are called `model`: RUN/model is RUN's.
    """
    return model.rstrip("/").removesuffix("/model").rsplit("/", 1)[-1]


def dataset(model: str, task: str, models: Collection[str]) -> str:
    """Return the display name of the task, with the model if there are several."""
    return f"{task_name(task)}, {model_name(model)}" if len(set(models)) > 1 else task_name(task)


def parameters(policy: AnyPolicy, hide: Collection[str] = ()) -> dict[str, Any]:
    """Return the parameters that a label shows: T_pos of a tempered policy, and all that differ from the preset."""
    if isinstance(policy, Portfolio) or policy.name not in PRESETS:
        return {}
    preset = PRESETS[policy.name]
    return {
        key: getattr(policy, key)
        for key in preset.settable
        if key not in hide
        and (getattr(policy, key) != getattr(preset.policy, key) or (key == "t_pos" and policy.t_pos))
    }


def label(policy: AnyPolicy, *, plain: bool = False, hide: Collection[str] = ()) -> str:
    """Return `TCT ($T_pos=0.1$)` for figures and LaTeX; plain: `TCT (t_pos=0.1)`, for terminals and Markdown."""
    if isinstance(policy, Portfolio):
        return policy.join_names(lambda component: label(component, plain=plain, hide=hide))
    return _labelled(policy.name, parameters(policy, hide), plain)


def family_label(policies: Sequence[Policy], *, plain: bool = False) -> str:
    """Return one label for policies of one name with parameters per task: `TCT (t_pos varies, k=2)`."""
    keys = dict.fromkeys(key for policy in policies for key in parameters(policy))
    values = {key: {getattr(policy, key) for policy in policies} for key in keys}
    common = {key: options.pop() if len(options) == 1 else VARIES for key, options in values.items()}
    return _labelled(policies[0].name, common, plain)


def family_labels(policies: Iterable[Policy]) -> dict[str, str]:
    """Return the family label of each policy name."""
    named: dict[str, list[Policy]] = {}
    for policy in policies:
        named.setdefault(policy.name, []).append(policy)
    return {name: family_label(family) for name, family in named.items()}


def _labelled(name: str, shown: Mapping[str, Any], plain: bool) -> str:
    write = _plain if plain else _mathematical
    inside = ", ".join(write(key, value) for key, value in shown.items())
    return NAMES.get(name, name) + (f" ({inside})" if inside else "")


def _plain(key: str, value: Any) -> str:
    if value is VARIES:
        return f"{key} {VARIES}"
    return f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"


def _mathematical(key: str, value: Any) -> str:
    if key not in _SYMBOLS:
        return _plain(key, value).replace("_", " ")
    if value is VARIES:
        return f"${_SYMBOLS[key]}$ {VARIES}"
    number = r"\infty" if math.isinf(value) else f"{value:g}"
    return f"${_SYMBOLS[key]}={number}$"


def signed(value: float, digits: int = 1) -> str:
    """Return `+0.5` or `-0.5`; a negative value that rounds to zero is `+0.0`."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


INK = "#262626"
GRID = "#e4e4e4"

# Other published heuristics are dashed. With 8 colors and 7 markers no two look the same.
_OTHER = ("#56B4E9", "#332288", "#882255", "#117733", "#AA4499", "#999933", "#44AA99", "#661100")

# The paper's two families are drawn last and heavier.
TEMPERED = ("tlc", "tct")


def line(policy: AnyPolicy) -> dict[str, Any]:
    """Return the matplotlib line properties of a policy."""
    if policy.name in _PAPER:
        (_, color, marker), dashes = _PAPER[policy.name], "-"
    else:
        others = [name for name in PRESETS if name not in _PAPER]
        # A plug-in's policy is not listed; its style follows from its name.
        number = others.index(policy.name) if policy.name in others else sum(policy.name.encode())
        color, marker, dashes = _OTHER[number % len(_OTHER)], "vPX*<>p"[number % 7], "--"
    heavy = policy.name in TEMPERED
    return {
        "color": color,
        "marker": marker,
        "linestyle": dashes,
        "linewidth": 2.0 if heavy else 1.5,
        "zorder": 4 if heavy else 3,
    }


def ramp(policy: AnyPolicy, index: int, count: int) -> dict[str, Any]:
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
