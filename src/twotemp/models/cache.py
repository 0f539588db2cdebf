"""Keys and values by column: the mechanism behind every cache, exact or approximate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import Cache


class KVCache(Cache):
    """Per layer K and V [rows, kv_heads, columns, head_dim], on the layer's device; *column = position in the row*.

    Keys are stored after RoPE, so a column is valid wherever it is read from. A forward pass overwrites
    the columns of the tokens it computes and reads all of them back; the caller's visibility mask says
    which of them count. Hence no crop and no commit: a block is committed by computing it once more
    when it is clean.
    """

    def __init__(
        self,
        *,
        rows: int,
        columns: int,
        layers: Sequence[tuple[int, int, torch.device]],
        dtype: torch.dtype,
    ) -> None:
        """Create an empty cache.

        Args:
            rows: Rows of the batch.
            columns: Positions of a row, at most.
            layers: Heads of keys and values, their width, and the device of each layer.
            dtype: Of keys and values.
        """
        super().__init__(layers=[])  # `update` below replaces transformers' own layers
        self.columns = columns
        # One column more than is ever read: padding entries of a window are written there.
        # Zeros, not empty: a masked column still enters the product 0 * value and must be finite.
        shapes = [((rows, heads, columns + 1, width), device) for heads, width, device in layers]
        self._keys = [torch.zeros(shape, dtype=dtype, device=device) for shape, device in shapes]
        self._values = [torch.zeros(shape, dtype=dtype, device=device) for shape, device in shapes]
        self._targets: Tensor | None = None
        self._subset: Tensor | None = None

    @property
    def rows(self) -> int:
        return self._keys[0].shape[0]

    def set_window(self, positions: Tensor, rows: Tensor | None = None) -> None:
        """Set the columns that the next forward pass writes (>= `columns`: none) and its rows (None: all)."""
        self._targets = positions.clamp(max=self.columns)
        self._subset = rows

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store K, V [rows, kv_heads, W, head_dim] of the window and return all columns; every layer calls this."""
        assert self._targets is not None, "call set_window() before the forward pass"
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        targets = self._targets.to(keys.device)
        subset = None if self._subset is None else self._subset.to(keys.device)
        row = (torch.arange(keys.shape[0], device=keys.device) if subset is None else subset)[:, None]
        keys[row, :, targets] = key_states.transpose(1, 2)
        values[row, :, targets] = value_states.transpose(1, 2)
        if subset is not None:
            keys, values = keys[subset], values[subset]
        return keys[:, :, : self.columns], values[:, :, : self.columns]

    def read_only(self) -> Any:
        """Return the cache as a decoder of `transformers` reads it, which adds nothing to it."""
        parts = zip(self._keys, self._values)
        layers = [
            SimpleNamespace(keys=keys[:, :, : self.columns], values=values[:, :, : self.columns])
            for keys, values in parts
        ]
        return SimpleNamespace(layers=layers, is_compileable=False)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy the source rows to the target rows."""
        for layer in (*self._keys, *self._values):
            layer[target.to(layer.device)] = layer[source.to(layer.device)]

    def keep(self, rows: Tensor) -> None:
        """Keep these rows, in this order (an index may repeat), one layer at a time to save memory."""
        self._replace(lambda layer: layer[rows.to(layer.device)])

    def grow(self, rows: int, columns: int) -> None:
        """Add empty rows and columns; the column for padding stays the last."""
        before, self.columns = self.columns, columns

        def larger(layer: Tensor) -> Tensor:
            grown = layer.new_zeros(rows, layer.shape[1], columns + 1, layer.shape[3])
            grown[: len(layer), :, :before] = layer[:, :, :before]
            return grown

        self._replace(larger)

    def _replace(self, change: Callable[[Tensor], Tensor]) -> None:
        for layers in (self._keys, self._values):
            for number, layer in enumerate(layers):
                layers[number] = change(layer)
