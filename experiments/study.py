"""The fork study of the embedded model: `twotemp forks`, and its table."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from experiments.blocks import signed, table
from experiments.command import twotemp
from twotemp.tasks import SOURCES


def run(out: Path, questions: int) -> dict[str, Any]:
    said = io.StringIO()
    with redirect_stdout(said):
        size = ["--tasks", ",".join(SOURCES), "--questions", str(questions)]
        twotemp("forks", *size, "--out", str(out), "--json")
    rows = [json.loads(line) for line in said.getvalue().splitlines() if line.startswith("{")]
    return {"questions": questions, "studies": rows}


def shown(found: dict[str, Any]) -> str:
    def percent(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.0f} %"

    def number(value: float | None, sign: bool = False) -> str:
        return "–" if value is None else signed(value, 2) if sign else f"{value:.2f}"

    rows = [
        [
            one["task"],
            str(one["forks"]),
            number(one["threshold"]),
            number(one["median_slope"], sign=True),
            percent(one["falling"]),
            number(one["median_r2"]),
            percent(one["two_or_more"]),
        ]
        for one in found["studies"]
    ]
    rows.append(["*paper, 8B models*", "", "", "", "almost all", "about 0.7", "44 % to 79 %"])
    heads = ["task", "forks", "above (nats)", "median slope", "falling", "median R²", "2 or more outcomes"]
    return f"{found['questions']} prompts per task, otherwise the defaults.\n\n{table(heads, rows)}"
