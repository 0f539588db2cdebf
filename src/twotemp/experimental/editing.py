"""Editing: a token that was written may be rewritten while its block is active (LLaDA-2.1, T2M).

An edit rule says which written tokens are in doubt, and how much (`EDITS`). A step rewrites at most the share
`edit_share` of a block's written tokens (or one), the most doubtful first, and each position at most `edits` times,
so that rows end. A block is final after a step that rewrites nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from twotemp.records import Edit

if TYPE_CHECKING:
    from twotemp.policies.positions import DrawnTokens, StackedParameters


@dataclass(frozen=True)
class BlockText:
    """The tokens of the active block of each row, [B, W], for policies that edit."""

    tokens: Tensor  # int64; the mask where nothing is written
    predicted: Tensor  # bool: masks, and tokens that may be edited
    edits: Tensor  # int64: how often each was rewritten so far


class EditRule(NamedTuple):
    """Which tokens are in doubt at the threshold tau [B], and how much: [B, W] bool and float64."""

    doubt: Callable[[DrawnTokens, BlockText, Tensor], tuple[Tensor, Tensor]]
    remasks: bool  # whether a token in doubt becomes a mask again, instead of the token just drawn
    needs_own: bool = False  # reads `DrawnTokens.log_own`


def outdone(drawn: DrawnTokens, text: BlockText, tau: Tensor) -> tuple[Tensor, Tensor]:
    """T2T (LLaDA-2.1): doubt a token where another one was drawn with c > tau."""
    c = drawn.confidence.double()
    return (drawn.tokens != text.tokens) & (c > tau[:, None]), c


def unlikely(drawn: DrawnTokens, text: BlockText, tau: Tensor) -> tuple[Tensor, Tensor]:
    """T2M: doubt a token whose own probability is q(token) < tau."""
    assert drawn.log_own is not None
    own = drawn.log_own.double().exp()
    return own < tau[:, None], -own


EDITS: dict[Edit, EditRule] = {
    "overwrite": EditRule(outdone, remasks=False),
    "remask": EditRule(unlikely, remasks=True, needs_own=True),
}


def choose_edits(
    rule: EditRule, drawn: DrawnTokens, masked: Tensor, text: BlockText, parameters: StackedParameters
) -> Tensor:
    """Return [B, W] bool: the written tokens to rewrite now.

    Args:
        rule: Which tokens are in doubt.
        drawn: What was drawn at every predicted position.
        masked: [B, W] bool, positions without a token.
        text: What is written in the block.
        parameters: The policies' numbers.
    """
    written = text.predicted & ~masked
    wrong, doubt = rule.doubt(drawn, text, parameters.edit_threshold)
    wrong = wrong & written & (text.edits < parameters.edits[:, None])
    most = (parameters.edit_share * written.sum(1)).long().clamp_min(1)
    order = doubt.masked_fill(~wrong, -torch.inf).argsort(dim=1, descending=True, stable=True)
    taken = torch.arange(wrong.shape[1], device=wrong.device) < most[:, None]
    return wrong & torch.zeros_like(wrong).scatter(1, order, taken)
