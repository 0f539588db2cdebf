"""Generate training examples as token ids, and draw the batch of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from recipes.tokenizer import BOS, END_OF_TURN, EOS
from twotemp.tasks import SOURCES
from twotemp.tasks.base import Example


@dataclass(frozen=True)
class Examples:
    """Examples of one task whose prompts have the same length, so that they need no padding."""

    task: str
    prompt: int  # tokens of the prompt, chat template included
    ids: Tensor  # [examples, prompt + answer length]


class Corpus:
    """Examples grouped by task and prompt length; a batch is drawn from one group."""

    def __init__(self, groups: Iterable[Examples], batch_tokens: int) -> None:
        self.groups = list(groups)
        self.batch_tokens = batch_tokens
        # Groups are weighted by their tokens, so that every example is drawn equally often.
        self._weights = torch.tensor([group.ids.numel() for group in self.groups], dtype=torch.float64)

    def batch(self, generator: torch.Generator) -> Examples:
        """Draw the batch of a step; seed the generator by the step, so that a resumed run gets the same batches."""
        group = self.groups[int(torch.multinomial(self._weights, 1, generator=generator))]
        rows = max(1, self.batch_tokens // group.ids.shape[1])
        indices = torch.randint(len(group.ids), (rows,), generator=generator)
        return Examples(group.task, group.prompt, group.ids[indices].long())


def generate(examples: Mapping[str, int], seed: int, vocabulary: Mapping[str, int]) -> list[Examples]:
    """Draw and encode training examples, and return them grouped by task and prompt length.

    A word is a token, so encoding is a look-up. A test compares it with the tokenizer and its chat template, which
    take ten times as long.
    """
    groups = []
    for task, count in examples.items():
        source = SOURCES[task]
        by_prompt: dict[int, list[list[int]]] = {}
        for example in islice(source.examples(seed, "train"), count):
            prompt, answer = encode(example, source.length, vocabulary)
            by_prompt.setdefault(len(prompt), []).append(prompt + answer)
        for prompt_length, rows in sorted(by_prompt.items()):
            groups.append(Examples(task, prompt_length, torch.tensor(rows, dtype=torch.int16)))
    return groups


def encode(example: Example, length: int, vocabulary: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Return the ids of the prompt in the chat template, and of the answer padded with EOS."""
    prompt = [vocabulary[word] for word in (BOS, *example.prompt.split(), END_OF_TURN)]
    answer = [vocabulary[word] for word in example.answer.split()]
    return prompt, answer + [vocabulary[EOS]] * (length - len(answer))
