"""Find subscripts and superscripts in plain text, which `docs/conf.py` renders: T_pos, c_j^{1/T}, (1 − c)^m.

Formulas in a sentence are plain text in the Markdown, so that they can be read there and on GitHub as well.
"""

from __future__ import annotations

import re

_SYMBOL = (
    r"(?:(?<![\w/.])(?:arg)?(?:max|min)|(?<![\w/.\\])[A-Za-z0-9]\u0304?|(?<=[/.])[A-Za-z]\u0304?|[Α-Ωα-ω∫)])"
)
_SUB = r"_(?:\{(?P<sub_braced>[^}]*)\}|(?P<sub>[A-Za-z]+(?![A-Za-z_])|\d+|[−∞*]+))"
_SUP = r"\^(?:\{(?P<sup_braced>[^}]*)\}|(?P<sup>[−-]?\w+|∞))"
_INDEXED = re.compile(f"(?P<base>{_SYMBOL})(?=[_^])(?:{_SUB})?(?:{_SUP})?")


def split_indices(text: str) -> list[tuple[str, str]]:
    """Return the pieces of a text, each with its kind: "text", "sub" or "sup"."""
    pieces: list[tuple[str, str]] = []
    end = 0
    for match in _INDEXED.finditer(text):
        sub = match["sub_braced"] or match["sub"]
        sup = match["sup_braced"] or match["sup"]
        if not (sub or sup):
            continue
        pieces.append(("text", text[end : match.end("base")]))
        pieces += [(kind, index) for kind, index in (("sub", sub), ("sup", sup)) if index]
        end = match.end()
    return [*pieces, ("text", text[end:])] if end < len(text) or not pieces else pieces
