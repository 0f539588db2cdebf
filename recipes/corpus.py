"""The training examples as token ids, and the batch of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from recipes.tokenizer import BOS, END_OF_TURN, EOS
from twotemp.tasks import SOURCES
from twotemp.tasks.generated import Example


@dataclass(frozen=True)
class Examples:
    """Of one task, with prompts that are equally long (so without padding): all there are, or the batch of a step."""

    task: str
    prompt: int  # tokens of the prompt, chat template included
    ids: Tensor  # [examples, prompt + answer length]


class Corpus:
    """Examples on shelves; the batch of a step is a function of (seed, step), so a resumed run sees the same."""

    def __init__(self, shelves: Iterable[Examples], batch_tokens: int) -> None:
        self.shelves = list(shelves)
        self.batch_tokens = batch_tokens
        # A shelf is chosen in proportion to its tokens, so that every example is drawn equally often.
        self._weights = torch.tensor([shelf.ids.numel() for shelf in self.shelves], dtype=torch.float64)

    def batch(self, generator: torch.Generator) -> Examples:
        shelf = self.shelves[int(torch.multinomial(self._weights, 1, generator=generator))]
        rows = max(1, self.batch_tokens // shelf.ids.shape[1])
        chosen = torch.randint(len(shelf.ids), (rows,), generator=generator)
        return Examples(shelf.task, shelf.prompt, shelf.ids[chosen].long())


def generate(examples: Mapping[str, int], seed: int, vocabulary: Mapping[str, int]) -> list[Examples]:
    """Draw and encode training examples. Words are tokens, so encoding is a look-up (a test says it is the same
    as the tokenizer with its chat template, at a tenth of the time)."""
    shelves = []
    for task, count in examples.items():
        source = SOURCES[task]
        by_prompt: dict[int, list[list[int]]] = {}
        for example in islice(source.examples(seed, "train"), count):
            prompt, answer = encode(example, source.length, vocabulary)
            by_prompt.setdefault(len(prompt), []).append(prompt + answer)
        for prompt_length, rows in sorted(by_prompt.items()):
            shelves.append(Examples(task, prompt_length, torch.tensor(rows, dtype=torch.int16)))
    return shelves


def encode(example: Example, length: int, vocabulary: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """The ids of the prompt in the chat template, and of the answer filled up with EOS."""
    prompt = [vocabulary[word] for word in (BOS, *example.prompt.split(), END_OF_TURN)]
    answer = [vocabulary[word] for word in example.answer.split()]
    return prompt, answer + [vocabulary[EOS]] * (length - len(answer))
