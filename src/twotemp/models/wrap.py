"""Any torch module with logits as a `LanguageModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from twotemp.errors import UserError
from twotemp.models.base import LanguageModel
from twotemp.models.token_ids import Facts, LoadOverrides, resolve_token_ids
from twotemp.models.transformer import positions_of

_PROBED, _PADDED = 4, 12  # columns of the row that is tried, and of the padding after it


def wrap(
    module: nn.Module,
    *,
    mask_id: int | None,
    eos_ids: Sequence[int] = (),
    tokenizer: Any | None = None,
    shift: bool = False,
    forbidden_ids: Sequence[int] = (),
) -> LanguageModel:
    """Return a diffusion LM made of a module whose `forward(input_ids)` returns logits [B, L, V].

    The module must attend in both directions and is put into evaluation mode. If it takes an `attention_mask`, this
    function tests once whether padding leaves the logits unchanged; if not, rows of different length are computed
    separately.

    Args:
        module: The network; its output may also be a tuple that begins with the logits, or have `.logits`.
        mask_id: The mask token; None for a network trained with uniform noise, whose open positions hold random
            tokens.
        eos_ids: End-of-text tokens.
        tokenizer: A `transformers` tokenizer, for text in and out.
        shift: Row i of the logits predicts position i + 1, as in Dream.
        forbidden_ids: Ids that must never be written, besides the mask and those without a token.

    >>> import torch, twotemp
    >>> class Uniform(torch.nn.Module):
    ...     def forward(self, input_ids):
    ...         return torch.zeros(*input_ids.shape, 6)
    >>> model = twotemp.wrap(Uniform(), mask_id=5)
    >>> len(twotemp.sample(model, [0, 1], "ar", length=4)[0].tokens)
    4
    """
    if not isinstance(module, nn.Module):
        raise UserError(
            f"wrap takes a torch.nn.Module, not {module!r}; twotemp.load takes a name or a folder"
        )
    return _Wrapped(module, mask_id, eos_ids, tokenizer, shift, forbidden_ids)


class _Wrapped(LanguageModel):
    tokenizer_fix = "pass twotemp.wrap(..., tokenizer=...)"

    def __init__(
        self,
        module: nn.Module,
        mask_id: int | None,
        eos_ids: Sequence[int],
        tokenizer: Any | None,
        shift: bool,
        forbidden_ids: Sequence[int],
    ) -> None:
        self.module: nn.Module = module.eval()
        self.name = type(module).__name__
        self.tokenizer = tokenizer
        self.lookback = int(shift)
        weight = next(module.parameters(), torch.empty(0))
        self.device, self._dtype = weight.device, weight.dtype
        native: Any = getattr(module, "config", None)
        self.config: Mapping[str, Any] = native.to_dict() if hasattr(native, "to_dict") else {}
        self.max_length = self.config.get("max_position_embeddings") or self.config.get("max_sequence_length")
        takes = signature(module.forward).parameters
        self._options: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
        with torch.inference_mode():
            self.vocab_size = self._forward(torch.zeros(1, 2, dtype=torch.int64, device=self.device)).shape[2]
            overrides = LoadOverrides(mask_id, eos_ids)
            token_ids = resolve_token_ids(
                Facts(self.name, end_tokens=(), masks=mask_id is not None),
                self.vocab_size,
                {},
                tokenizer,
                overrides=overrides,
            )
            self.mask_id, self.eos_ids = token_ids.mask_id, token_ids.eos_ids
            self.forbidden_ids = tuple(sorted({*token_ids.forbidden_ids, *forbidden_ids}))
            self._refuse_causal()
            self._respects_masks = "attention_mask" in takes and self._try_padding()

    def _refuse_causal(self) -> None:
        """Raise a UserError if a position sees what is before it but not what is after it."""
        row = torch.full((1, _PROBED), max(self.mask_id, 0), device=self.device)
        token = next((i for i in range(self.vocab_size) if i != max(self.mask_id, 0)), 0)
        plain, middle = self._forward(row).float(), slice(1, _PROBED - 1)
        moved = []
        for changed in (0, _PROBED - 1):
            other = row.clone()
            other[:, changed] = token
            moved.append(float((self._forward(other).float() - plain)[:, middle].abs().max()))
        before, after = moved
        rounding = torch.finfo(self._dtype).eps ** 0.75 * float(plain.abs().max())
        if after <= rounding < before:
            raise UserError(
                f"{self.name} is causal: a position does not see what comes after it, so it cannot fill masks in any "
                "order; wrap a network that attends in both directions (in transformers, config.is_causal = False "
                "where the class honors it)"
            )

    def _try_padding(self) -> bool:
        """Return whether the logits of a row are the same with and without padding after it, up to rounding."""
        ids = torch.arange(_PROBED + _PADDED, device=self.device)[None] % self.vocab_size
        ids[:, 1:_PROBED] = max(self.mask_id, 0)
        real = torch.arange(ids.shape[1], device=self.device)[None] < _PROBED
        alone = self._forward(ids[:, :_PROBED]).float()
        try:
            padded = self._forward(ids, real)[:, :_PROBED].float()
        except (RuntimeError, ValueError, TypeError):
            return False
        rounding = torch.finfo(self._dtype).eps ** 0.75
        return bool((alone - padded).abs().max() <= rounding * alone.abs().max())

    def tensors(self) -> Mapping[str, Tensor]:
        return self.module.state_dict()

    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        """See `Denoiser.logits`. The module computes all positions, of which the wanted ones are returned."""
        index = want.flatten().nonzero()[:, 0] if want.dtype == torch.bool else want
        row, column = index // ids.shape[1], index % ids.shape[1]
        if attention_mask is not None:
            # Pack rows to the left, so that they are padded on the right only and positions count from 0.
            real = attention_mask.bool()
            lengths, column = real.sum(1), positions_of(real)[row, column]
            inside = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
            ids = torch.full_like(ids, max(self.mask_id, 0)).masked_scatter(inside, ids[real])
        if self.lookback and want.dtype == torch.bool and bool((column == 0).any()):
            raise UserError(
                f"{self.name} predicts a token from the one before it; start rows with a given token"
            )
        source = column - self.lookback
        if attention_mask is None:
            return self._forward(ids)[row, source].float()
        if self._respects_masks:
            return self._forward(ids, inside)[row, source].float()
        logits = torch.empty(len(index), self.vocab_size, device=ids.device)
        for length in sorted(set(lengths[row].tolist())):
            rows, selected = (lengths == length).nonzero()[:, 0], lengths[row] == length
            part = self._forward(ids[rows, :length])
            logits[selected] = part[torch.searchsorted(rows, row[selected]), source[selected]].float()
        return logits

    def _forward(self, ids: Tensor, real: Tensor | None = None) -> Tensor:
        output = self.module(
            ids, **self._options, **({} if real is None else {"attention_mask": real.long()})
        )
        if not isinstance(output, Tensor):
            output = output[0] if isinstance(output, tuple) else output.logits
        if not isinstance(output, Tensor) or output.shape[:2] != ids.shape:
            raise UserError(
                f"{self.name}.forward must return logits [rows, columns, vocabulary] for ids [rows, columns]"
            )
        return output
