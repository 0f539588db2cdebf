"""What `sample` returns: a list that says what is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from html import escape
from typing import Any, SupportsIndex, overload

from twotemp.records import Sample

SHOWN = 8  # distinct answers of a prompt that are written out
REPLAYED = 4  # samples on the trace page in a notebook


class Samples(list[Sample]):
    """A list of samples with a short repr and, in a notebook, a table of the distinct answers per prompt.

    Where the samples have traces, the table is followed by their replay.
    """

    def __init__(self, samples: Iterable[Sample] = (), tokenizer: Any | None = None) -> None:
        super().__init__(samples)
        self._tokenizer = tokenizer

    @overload
    def __getitem__(self, place: SupportsIndex) -> Sample: ...
    @overload
    def __getitem__(self, place: slice) -> Samples: ...
    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return Samples(found, self._tokenizer) if isinstance(place, slice) else found

    def answers(self) -> dict[str, Counter[str]]:
        """By prompt (request id): how often each answer came."""
        counts: dict[str, Counter[str]] = {}
        for one in self:
            counts.setdefault(one.request, Counter())[one.text] += 1
        return counts

    def __repr__(self) -> str:
        lines = [f"Samples: {len(self)}"]
        for request, counts in self.answers().items():
            best = ", ".join(f"{text[:40]!r} x {count}" for text, count in counts.most_common(3))
            more = ", ..." if len(counts) > 3 else ""
            lines.append(f"  {request}: {len(counts)} distinct of {counts.total()}: {best}{more}")
        return "\n".join(lines[: SHOWN + 1] + ["  ..."] * (len(lines) > SHOWN + 1))

    def _repr_html_(self) -> str:
        parts = []
        for request, counts in self.answers().items():
            rows = "".join(
                f"<tr><td>{count}</td><td style='text-align:left'><pre>{escape(text)}</pre></td></tr>"
                for text, count in counts.most_common(SHOWN)
            )
            title = f"{escape(request)}: {len(counts)} distinct of {counts.total()}"
            parts.append(
                f"<table><caption>{title}</caption><tr><th>times</th><th>answer</th></tr>{rows}</table>"
            )
        if traced := [one for one in self if one.trace is not None][:REPLAYED]:
            from twotemp.report.trace_page import page

            inside = escape(page(traced, self._tokenizer), quote=True)
            parts.append(f'<iframe srcdoc="{inside}" style="width:100%;height:32em;border:0"></iframe>')
        return "\n".join(parts)
