"""Report how different the samples of a prompt are, with their cost and length, without grading them.

The columns follow CaRE's three rules for comparing decoders: the forward passes that were really made, several
metrics, and the temperatures and the seed that the randomness comes from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from twotemp import metrics
from twotemp.analysis import unique
from twotemp.errors import UserError, counted
from twotemp.folders import disk_errors
from twotemp.metrics import Estimate
from twotemp.metrics.embeddings import embedding_distance, load_encoder
from twotemp.records import Sample
from twotemp.report.style import label, model_name, task_name
from twotemp.report.tables import INTERVALS, rows_as_csv
from twotemp.store import Cell, Store

# What is measured on the texts of a prompt's samples, in [0, 1], and what it is called.
Measures = Mapping[str, Callable[[Sequence[str]], float]]
MEASURES: Measures = {
    "distinct-1": lambda texts: metrics.distinct(texts, 1),
    "distinct-2": metrics.distinct,
    "self-BLEU": metrics.self_bleu,
    "overlap distance": metrics.overlap_distance,
    "different": lambda texts: len(set(texts)) / len(texts),
}
EMBEDDING = "embedding distance"
FEWEST_SAMPLES = 2  # samples of a prompt


@dataclass(frozen=True)
class CellDiversity:
    """How different the first n samples of each prompt of a cell are, and what they cost."""

    cell: Cell
    n: int
    measures: tuple[str, ...]
    estimate: Estimate  # a column per measure
    nfe: float
    forwards: float
    words: float
    ended: float  # share of the samples that have an end of text
    perplexity: float  # of what was written, when it was written; NaN without traces

    @property
    def prompts(self) -> int:
        return int(self.estimate.questions[0])


def measure(runs: Sequence[Path], measures: Measures = MEASURES) -> list[CellDiversity]:
    """Return the diversity of every cell of the runs; cells of one task are compared with equally many samples."""
    cells = [cell for run in runs for cell in Store.open(run).cells()]
    drawn = {id(cell): _by_prompt(cell) for cell in cells}
    measured = []
    for task in unique(cell.config.task for cell in cells):
        group = [cell for cell in cells if cell.config.task == task]
        n = min((len(samples) for cell in group for samples in drawn[id(cell)].values()), default=0)
        if n < FEWEST_SAMPLES:
            raise UserError(
                f"a prompt of {task} has {counted(n, 'sample')}: diversity needs {FEWEST_SAMPLES} or more of "
                "each; finish the run, or draw more with -n"
            )
        measured += [_diversity(cell, list(drawn[id(cell)].values()), n, measures) for cell in group]
    if not measured:
        raise UserError("these runs have no samples; finish them first")
    return measured


def on_frontier(candidate: CellDiversity, measured: Sequence[CellDiversity]) -> bool:
    """Return whether no other policy's samples of the task are both more diverse and likelier.

    Diversity is the mean overlap distance; both are compared as means, without their intervals.
    """
    config, column = candidate.cell.config, candidate.measures.index("overlap distance")

    def coordinates(cell: CellDiversity) -> tuple[float, float]:
        return float(cell.estimate.mean[column]), -cell.perplexity

    rivals = [r for r in measured if (r.cell.config.model, r.cell.config.task) == (config.model, config.task)]
    own, others = coordinates(candidate), [coordinates(rival) for rival in rivals]
    return not any(other != own and all(x >= y for x, y in zip(other, own)) for other in others)


def _by_prompt(cell: Cell) -> dict[str, list[Sample]]:
    prompts: dict[str, list[Sample]] = defaultdict(list)
    for sample in cell.samples():
        prompts[sample.request].append(sample)
    return {name: sorted(prompts[name], key=lambda sample: sample.index) for name in sorted(prompts)}


def _diversity(cell: Cell, prompts: list[list[Sample]], n: int, measures: Measures) -> CellDiversity:
    firsts = [samples[:n] for samples in prompts]
    texts = [[sample.text for sample in samples] for samples in firsts]
    table = np.array([[measure(group) for measure in measures.values()] for group in texts])
    every = [sample for samples in firsts for sample in samples]
    return CellDiversity(
        cell=cell,
        n=n,
        measures=tuple(measures),
        estimate=metrics.bootstrap(table),
        nfe=_mean(sample.nfe for sample in every),
        forwards=_mean(sample.forwards for sample in every),
        words=_mean(len(metrics.words(sample.text)) for sample in every),
        ended=_mean(sample.finish != "length" for sample in every),
        perplexity=_perplexity(every),
    )


def _mean(values: Iterator[float]) -> float:
    return float(np.mean(list(values)))


def _perplexity(samples: Sequence[Sample]) -> float:
    """Return exp of the mean loss of a token when it was written; NaN without traces."""
    if any(sample.trace is None for sample in samples):
        return float("nan")
    losses = np.concatenate([metrics.token_losses(sample) for sample in samples])
    return float(np.exp(losses.mean())) if len(losses) else float("nan")


COLUMNS = ("model", "task", "policy", "t_token", "t_pos", "seed", "prompts", "n", "nfe", "forwards", "words", "ended",
           "perplexity", "measure", "mean", "low", "high")  # fmt: skip


def as_csv(measured: Sequence[CellDiversity]) -> str:
    """Return one line per cell and measure."""

    def rows() -> Iterator[list[object]]:
        for entry in measured:
            config, policy = entry.cell.config, entry.cell.config.policy
            shared = [
                config.model,
                config.task,
                label(policy, plain=True),
                policy.t_token,
                policy.t_pos,
                config.seed,
            ]
            shared += [getattr(entry, name) for name in COLUMNS[6:13]]
            estimate = entry.estimate
            for column, name in enumerate(entry.measures):
                yield [
                    *shared,
                    name,
                    *(float(x[column]) for x in (estimate.mean, estimate.low, estimate.high)),
                ]

    return rows_as_csv(COLUMNS, rows())


def markdown(measured: Sequence[CellDiversity]) -> str:
    """Return the table, a row per cell, and what a reader must know."""
    traced, measures = any(np.isfinite(entry.perplexity) for entry in measured), measured[0].measures
    costs = ["NFE", "forwards", "words", "ended", *["perplexity"] * traced]
    lines = [f"| {' | '.join(['Model, task', 'Policy', 'T_token', 'T_pos', *costs, *measures])} |"]
    lines.append("|---|---|" + "---:|" * (2 + len(costs) + len(measures)))
    for entry in measured:
        config, policy = entry.cell.config, entry.cell.config.policy
        numbers = [
            f"{policy.t_token:g}",
            f"{policy.t_pos:g}",
            f"{entry.nfe:.1f}",
            f"{entry.forwards:.1f}",
        ]
        numbers += [f"{entry.words:.1f}", f"{100 * entry.ended:.0f} %"]
        numbers += [f"{entry.perplexity:.2f}{' *' if on_frontier(entry, measured) else ''}"] * traced
        ends = zip(entry.estimate.mean, entry.estimate.low, entry.estimate.high)
        numbers += [
            f"{mean:.3f} ({low:.3f}–{high:.3f})" if low == low else f"{mean:.3f}" for mean, low, high in ends
        ]
        where = f"{model_name(config.model)}, {task_name(config.task)}"
        lines.append(f"| {' | '.join([where, label(policy, plain=True), *numbers])} |")
    sizes = unique(f"{task_name(entry.cell.config.task)}: {counted(entry.prompts, 'prompt')}, the first "
                   f"{entry.n} samples of each" for entry in measured)  # fmt: skip
    seeds = ", ".join(str(seed) for seed in unique(entry.cell.config.seed for entry in measured))
    notes = [
        f"{'; '.join(sizes)}. {INTERVALS}",
        "distinct-n: different n-grams of words / all; self-BLEU: BLEU-4 against the other samples (lower: more "
        "diverse); overlap distance: mean over pairs of 1 − shared / all bigrams; different: texts / samples.",
        *["embedding distance: mean over pairs of 1 − the cosine of two texts' embeddings (--embeddings)."]
        * (EMBEDDING in measures),
        "Longer texts repeat more words, so compare lengths first. `ended`: samples with an end of text or a stop.",
        *[
            "Perplexity: of each token when it was written, by the model itself, without padding (--trace). "
            "*: no other policy has a higher overlap distance and a lower perplexity."
        ]
        * traced,
        f"Seed {seeds}: the noise of a sample depends on seed, prompt, index, step and position aldiversity.",
    ]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]) + "\n"


def write(runs: Sequence[Path], folder: Path, embeddings: Path | None = None) -> Path:
    """Write diversity.md and diversity.csv into a folder; return the first.

    Args:
        runs: The folders of the runs.
        folder: Where to write.
        embeddings: The folder of a sentence-embedding model, for one more measure.
    """
    measures = dict(MEASURES)
    if embeddings is not None:
        measures[EMBEDDING] = partial(embedding_distance, load_encoder(embeddings))
    measured = measure(runs, measures)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "diversity.csv").write_text(as_csv(measured), "utf-8")
        page = folder / "diversity.md"
        page.write_text(f"# Diversity of the samples\n\n{markdown(measured)}", "utf-8")
    return page
