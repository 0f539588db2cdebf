"""How different texts are in meaning, by a sentence-embedding model in a folder (extra `[embeddings]`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twotemp.errors import UserError

Encode = Callable[[Sequence[str]], NDArray[np.floating]]  # texts -> vectors of length 1, [texts, dimensions]


def load_encoder(folder: Path) -> Encode:
    """Return the function that embeds texts with the model in a folder; nothing is downloaded."""
    if not folder.is_dir():
        raise UserError(
            f"--embeddings {folder}: give the folder of a sentence-embedding model on this machine"
        )
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise UserError("--embeddings needs an extra: pip install 'twotemp[embeddings]'") from None
    try:
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"--embeddings {folder}: not a sentence-embedding model ({error})") from None

    def encode(texts: Sequence[str]) -> NDArray[np.floating]:
        vectors: NDArray[np.floating] = model.encode(
            list(texts), normalize_embeddings=True, show_progress_bar=False
        )
        return vectors

    return encode


def embedding_distance(encode: Encode, texts: Sequence[str]) -> float:
    """Return the mean over pairs of texts of 1 - the cosine of their embeddings; NaN without a pair."""
    count = len(texts)
    if count < 2:
        return float("nan")
    vectors = encode(texts)
    # All pairs at once: |sum v|^2 = n + 2 sum of the cosines of the pairs, as each v has length 1.
    total = float(np.square(vectors.sum(0, dtype=np.float64)).sum())
    return 1 - (total - count) / (count * (count - 1))
