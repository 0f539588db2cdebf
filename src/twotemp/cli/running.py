"""Running an evaluation with live progress, shared by `eval`, `run` and `demo`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from twotemp.cli.console import progress, say, show_log
from twotemp.cli.loading import LoadingOptions
from twotemp.cli.workers import WorkerOptions, Workload
from twotemp.evaluation import Evaluation, Plan, Progress


def run_plan(
    plan: Plan,
    out: Path,
    model: str,
    loading: LoadingOptions,
    working: WorkerOptions,
    *,
    shard: tuple[int, int] = (1, 1),
    batch_size: int | None = None,
    profile: bool = False,
) -> dict[str, str]:
    """Draw and grade what a plan asks for and its run folder lacks, showing progress.

    Args:
        plan: tasks, policies and counts.
        out: the run's folder.
        model: the model's name, folder or hub id.
        loading: how to load it.
        working: which processes draw.
        shard: the part of the questions to draw, and the number of parts.
        batch_size: rows decoded together; None: as many as fit.
        profile: print where the time went.

    Returns:
        The name of the grader of each task.
    """
    show_log()
    with Evaluation(replace(plan, compile=loading.compile), out, shard=shard) as evaluation:
        workload = Workload(model, loading, evaluation.samples, batch_size, plan.cache, profile=profile)
        with working.backend(workload) as (backend, ledger), progress(backend.name) as bar:

            def watch(state: Progress) -> None:
                bar.update(state.samples, state.all_samples, _note(state))

            evaluation.run_with(backend, watch=watch)
    if ledger is not None:
        say(ledger.report())
    return evaluation.grader_names


def _note(state: Progress) -> str:
    """Return the number of finished questions and the running pass@1 of each policy."""
    rates = [
        f"{name} {100 * right / graded:.0f} %" for name, (right, graded) in state.passed.items() if graded
    ]
    pass1 = f"; pass@1 {', '.join(rates)}" if rates else ""
    return f"{state.questions}/{state.all_questions} questions{pass1}"
