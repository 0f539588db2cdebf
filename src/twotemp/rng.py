"""Counter-based noise: every random number is a pure function of what it is for.

A number is addressed by (seed, request, sample) -> row key, then (step, position, stream). So a sample is the same
alone, in any batch, after a resume and on another worker; there is no generator state to carry and no global RNG. The
mixing function is SplitMix64's finalizer, applied once per coordinate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import torch
from torch import Tensor


class Stream(IntEnum):
    """The use of a number; two uses never share one."""

    TOKEN = 1
    POSITION = 2
    TRAIN = 3
    CANVAS = 4


_CHOICES = (Stream.TOKEN, Stream.POSITION)  # of every step


def row_key(seed: int, request: str, sample: int) -> int:
    """Return a signed 64-bit key of one sample. Hashing makes neighboring seeds unrelated."""
    text = f"{seed}\x1f{request}\x1f{sample}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


def _signed(value: int) -> int:
    """Return an integer modulo 2^64, as torch's int64 represents it."""
    value %= 1 << 64
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _mix(x: Tensor) -> Tensor:
    """Apply SplitMix64's finalizer to int64 (products wrap; masking the sign bits makes shifts logical)."""
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        x = (x >> shift).bitwise_and_((1 << 64 - shift) - 1).bitwise_xor_(x).mul_(factor)
    return (x >> 31).bitwise_and_((1 << 33) - 1).bitwise_xor_(x)


def uniform(keys: Tensor, step: Tensor, position: Tensor, stream: Stream) -> Tensor:
    """Return uniforms in the open interval (0, 1), [B, W] float64 with 52 random bits.

    Args:
        keys: [B] int64, from `row_key`.
        step: [B] int64.
        position: [B, W] int64.
        stream: What the numbers are used for.
    """
    return uniforms(keys, step, position, (stream,))[0]


def uniforms(keys: Tensor, step: Tensor, position: Tensor, streams: Sequence[Stream]) -> Tensor:
    """Return `uniform` of several streams, [S, B, W], by as many operations as of one."""
    h = _mix(keys + (step + 1) * _GOLDEN)
    h = _mix(torch.stack([h ^ _signed(stream * _MIX_1) for stream in streams]))
    h = _mix(h[:, :, None] + (position + 1) * _GOLDEN)
    # 52 bits and a half step: never 0 and never 1, so that log(u) and log(1 - u) are finite.
    return (((h >> 12) & ((1 << 52) - 1)).to(torch.float64) + 0.5) * 2.0**-52


@dataclass(frozen=True)
class Noise:
    """The noise of this step for each row: addressed, not drawn, so it does not depend on the batch."""

    keys: Tensor  # [B] int64
    step: Tensor  # [B] int64
    positions: Tensor  # [B, W] int64

    @cached_property
    def _uniforms(self) -> Tensor:
        """Uniforms of the two choices, [S, B, W]: one computation starts fewer kernels than one for each."""
        return uniforms(self.keys, self.step, self.positions, _CHOICES)

    def uniform(self, stream: Stream) -> Tensor:
        """Return uniforms in (0, 1), [B, W], of the choice of tokens or of positions."""
        return self._uniforms[_CHOICES.index(stream)]

    def tokens(self, vocab_size: int) -> Tensor:
        """Return random tokens, [B, W], each of the vocabulary with the same probability."""
        return (uniform(self.keys, self.step, self.positions, Stream.CANVAS) * vocab_size).long()


def row_hash(values: Tensor, length: Tensor) -> Tensor:
    """Return a 64-bit hash of each row, [B] int64: rows of equal values have equal hashes, others almost never.

    Args:
        values: [B, C] int64.
        length: [B], entries of the row; those behind do not count.
    """
    columns = torch.arange(values.shape[1], device=values.device)
    entries = _mix(_mix(values + _GOLDEN) + (columns + 1) * _GOLDEN)
    return entries.masked_fill_(columns >= length[:, None], 0).sum(1)


def gumbel(u: Tensor) -> Tensor:
    """Return standard Gumbel noise from uniforms: -log(-log u)."""
    return -torch.log(-torch.log(u))


def logistic(u: Tensor) -> Tensor:
    """Return standard Logistic noise from uniforms: log u - log(1 - u)."""
    return torch.log(u) - torch.log1p(-u)
