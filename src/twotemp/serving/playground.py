"""The page at `/` and its routes beyond the API: the available policies and tasks, and grades of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from twotemp import graders
from twotemp.errors import UserError, unknown
from twotemp.graders.base import Grader
from twotemp.models.base import LanguageModel
from twotemp.policies import PRESETS
from twotemp.records import NO_MASK, PARAMETERS, Problem
from twotemp.report.pages import compose, content_security_policy
from twotemp.sampling.requests import assistant_turn
from twotemp.serialization import json_text
from twotemp.tasks import SOURCES

SHOWN = 24  # problems of each task
MOST_TEXTS = 1024
# Tasks with answers that are programs are excluded: anyone who can reach the page could run code.
TASKS = {name: source for name, source in SOURCES.items() if source.grader != "programs"}


class Playground:
    """The page of one model."""

    def __init__(self, model: LanguageModel, name: str) -> None:
        self._model, self._name = model, name
        # A separate thread: a grader serves one caller at a time, and waiting for it must not block other requests.
        self._thread = ThreadPoolExecutor(1, "twotemp-grader")
        self._graders: dict[str, Grader] = {}

    async def html(self, request: Request) -> Response:
        page, policy = self._page
        # Only the server sees where a link comes from. Without the header it may come from another site.
        if request.headers.get("sec-fetch-site") not in ("same-origin", "none"):
            page = page.replace("<body>", "<body data-foreign>", 1)
        headers = {"content-security-policy": policy, "x-content-type-options": "nosniff"}
        return HTMLResponse(page, headers=headers | {"cache-control": "no-store"})

    @cached_property
    def _page(self) -> tuple[str, str]:
        """Return the page and its content security policy: its own style and script, and this server."""
        connect = "connect-src 'self'"
        page = compose("playground", rules=(connect,), source="playground_server.js")
        return page, content_security_policy(page, connect, "frame-ancestors 'none'")

    async def about(self, _request: Request) -> Response:
        return Response(json_text(self._about), media_type="application/json")

    @cached_property
    def _about(self) -> dict[str, Any]:
        return {
            "model": self._name,
            "chat": self._model.has_chat,
            "policies": described_policies(masks=self._model.mask_id != NO_MASK),
            "tasks": described_tasks(TASKS),
        }

    async def grades(self, data: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._graded, data)

    def _graded(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return grades of texts as answers to a problem of an embedded task."""
        task, texts = data.get("task"), data.get("texts")
        if not isinstance(task, str) or task not in TASKS:
            raise unknown("task", str(task), TASKS)
        problem = next((p for p in _problems(task) if p.id == data.get("problem")), None)
        if problem is None:
            raise UserError(f"no problem {data.get('problem')!r} in {task}")
        if (
            not isinstance(texts, list)
            or len(texts) > MOST_TEXTS
            or not all(isinstance(t, str) for t in texts)
        ):
            raise UserError(f"texts must be a list of at most {MOST_TEXTS} strings")
        kind = TASKS[task].grader
        if kind not in self._graders:
            self._graders[kind] = graders.get(kind, workers=1)
        grades = self._graders[kind].grade([(problem, assistant_turn(problem, text)) for text in texts])
        return {"grades": [{"outcome": g.outcome, "answer": g.answer, "detail": g.detail} for g in grades]}

    def close(self) -> None:
        """End the graders' worker processes."""
        self._thread.shutdown(cancel_futures=True)
        for grader in self._graders.values():
            grader.close()


def described_policies(masks: bool = True) -> dict[str, Any]:
    """Return the adjustable numbers of each policy, their defaults and its formula; without masks none edits."""
    return {
        name: {
            "parameters": [p for p in preset.parameters if PARAMETERS[p].kind in (int, float)],
            "defaults": preset.policy.to_dict(),
            "formula": preset.formula,
        }
        for name, preset in PRESETS.items()
        # Samples that repel each other are drawn in whole groups, which a server refuses; only a mask can be edited.
        if not preset.policy.repel and (masks or preset.policy.edit == "never")
    }


def described_tasks(names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the length of an answer and the first problems of each task."""
    return [
        {"name": name, "length": TASKS[name].length, "problems": [_shown(p) for p in _problems(name)]}
        for name in names
    ]


@cache
def _problems(task: str) -> tuple[Problem, ...]:
    return TASKS[task].task().problems().problems[:SHOWN]


def _shown(problem: Problem) -> dict[str, str]:
    return {"id": problem.id, "prompt": problem.prompt, "prefill": problem.prefill}
