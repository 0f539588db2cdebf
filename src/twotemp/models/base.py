"""The contract between models and the engine: everything a sampler may ask of a masked diffusion LM."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor, device


@runtime_checkable
class Denoiser(Protocol):
    """A masked diffusion LM q(x_0^k | x_t): for every masked position a distribution over tokens.

    Logits are *aligned to the position they predict*: a family whose network is trained with a shift
    (Dream) undoes it in its own file. Rows are token ids; text stays at the edges (`tokenizer`).
    """

    name: str
    vocab_size: int  # width of the logits
    mask_id: int
    eos_ids: tuple[int, ...]  # end of text, end of turn: text is cut at the first of them
    forbidden_ids: tuple[int, ...]  # never to be written: the mask token, vocabulary rows without a token
    block_size: int | None  # None: fully bidirectional; else block-causal with blocks of this many positions
    max_length: int | None  # context length in tokens; None: no limit
    tokenizer: Any | None
    device: device

    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        """Logits [N, vocab_size] (float32) at the N positions asked for, in row-major order.

        ids: [B, L] int64; attention_mask: [B, L] bool, False on padding (either side), None if nothing is
        padded; want: [B, L] bool, or the same as indices [N] of `ids.flatten()`, which spares the device a round
        trip. Both index alike: `[want.flatten()]`. Padding never changes the logits of a real position.
        """
        ...


@runtime_checkable
class CachedDenoiser(Denoiser, Protocol):
    """A denoiser that can also compute a window of each row against cached keys and values.

    Exact for block-causal models if every column is computed once more after its last change; for
    bidirectional ones exact only if the window covers the row, and the base of approximate caches.
    """

    lookback: int  # how many positions before a wanted one the window must also hold (Dream: 1)

    def new_cache(self, rows: int, columns: int) -> Any:
        """An empty cache, where *column = position in the row*; `cache.keep(rows)` selects rows (a LongTensor)."""
        ...

    def window_logits(
        self,
        ids: Tensor,
        positions: Tensor,
        visible: Tensor,
        cache: Any,
        want: Tensor,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Logits [N, vocab_size] (float32) of windows, row-major; writes the windows' K, V.

        ids, positions: [B, W]; want: as above; visible: [B, cache.columns] bool, the columns that count. Positions
        may differ from row to row; an entry with position >= cache.columns is padding, never wanted.
        rows: which rows of the cache these are; None for all of them, in order.
        """
        ...
