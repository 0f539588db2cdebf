"""The interfaces of a model: what the engine needs (`Denoiser`), and what users get (`LanguageModel`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jinja2 import TemplateError
from torch import Tensor, device, nn

from twotemp.errors import UserError, unknown
from twotemp.models.chat_template import render
from twotemp.models.checkpoint import fingerprint, is_panic
from twotemp.models.token_ids import TokenIds
from twotemp.records import NO_MASK, first_eos

Message = Mapping[str, str]  # one turn of a chat: {"role": "user", "content": "..."}
ROLES = ("system", "user", "assistant")


@runtime_checkable
class Denoiser(Protocol):
    """A diffusion LM q(x_0^k | x_t): for every open position (a mask, or a random token) a distribution over tokens.

    Logits are *aligned to the position they predict*: a family whose network is trained with a shift
    (Dream) undoes it in its own file. Rows are token ids; text is handled outside, by the `tokenizer`.
    """

    name: str
    vocab_size: int  # width of the logits
    mask_id: int  # `records.NO_MASK`: there is none, open positions hold random tokens
    eos_ids: tuple[int, ...]  # end of text, end of turn: text is cut at the first of them
    forbidden_ids: tuple[int, ...]  # never to be written: the mask token, vocabulary rows without a token
    block_size: int | None  # None: fully bidirectional; else block-causal with blocks of this many positions
    max_length: int | None  # context length in tokens; None: no limit
    tokenizer: Any | None
    device: device

    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        """Return logits [N, vocab_size] (float32) at the N wanted positions, in row-major order.

        Padding never changes the logits of a real position.

        Args:
            ids: [B, L] int64.
            attention_mask: [B, L] bool, False on padding (on either side); None if nothing is padded.
            want: [B, L] bool, or the same as indices [N] of `ids.flatten()`, which saves a wait for the device. Both
                index alike: `[want.flatten()]`.
        """


@runtime_checkable
class CachedDenoiser(Denoiser, Protocol):
    """A denoiser that can also compute a window of each row against cached keys and values.

    Exact for block-causal models if every column is computed once more after its last change; for
    bidirectional ones exact only if the window covers the row, and the base of approximate caches.
    """

    lookback: int  # how many positions before a wanted one the window must also hold (Dream: 1)

    def new_cache(self, rows: int, columns: int) -> Any:
        """Return an empty cache with one column per position; `cache.keep(rows)` selects rows (a LongTensor)."""

    def window_logits(
        self,
        ids: Tensor,
        positions: Tensor,
        visible: Tensor,
        cache: Any,
        want: Tensor,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return logits [N, vocab_size] (float32) of a window of each row, row-major; write its K, V to the cache.

        Args:
            ids: [B, W] tokens.
            positions: [B, W]; may differ from row to row. An entry >= cache.columns is padding and never wanted.
            visible: [B, cache.columns] bool, the columns to attend to.
            cache: What `new_cache` returned.
            want: As in `logits`.
            rows: Which rows of the cache these are; None for all of them, in order.
        """


@runtime_checkable
class CanvasDenoiser(Denoiser, Protocol):
    """A denoiser that reads final text once and writes canvases after it, conditioned on its own predictions."""

    canvases: bool

    def new_cache(self, rows: int, columns: int) -> Any:
        """See `CachedDenoiser.new_cache`."""

    def read(self, ids: Tensor, positions: Tensor, cache: Any, rows: Tensor | None = None) -> None:
        """Store keys and values of final text in the cache, which holds those of all positions before it.

        Args:
            ids: [B, W] tokens.
            positions: [B, W]. An entry >= cache.columns is padding.
            cache: What `new_cache` returned.
            rows: Which rows of the cache these are; None for all of them, in order.
        """

    def canvas_logits(
        self, ids: Tensor, start: Tensor, length: Tensor, soft: Tensor | None, cache: Any, want: Tensor
    ) -> Tensor:
        """Return logits [N, vocab_size] (float32) of canvases, row-major; the cache is not modified.

        Args:
            ids: [B, W] tokens of the canvases.
            start: [B], the position of their first token; the cache holds everything before it.
            length: [B], how many of the W positions belong to the canvas.
            soft: [B, W, D], what `soft_embeddings` returned at the step before, zeros for a first step; None: of all.
            cache: What `new_cache` returned; its rows are those of `ids`.
            want: As in `logits`.
        """

    def soft_embeddings(self, probabilities: Tensor) -> Tensor:
        """Return what the next step is conditioned on, [N, D], of predictions [N, V]."""


class LanguageModel(ABC):
    """What `twotemp.load` and `twotemp.wrap` return: a `Denoiser` that also knows its text, config and weights.

    >>> import twotemp
    >>> model = twotemp.load("tiny")
    >>> ids = model.encode("3 7 12 -> 33")
    >>> ids == model.encode([{"role": "user", "content": "3 7 12 -> 33"}])
    True
    >>> model.decode(model.encode("3 7 12 -> 33", chat=False))
    '3 7 12 -> 33'
    >>> model.config["model_type"], model.has_chat, len(model.fingerprint)
    ('llada', True, 64)
    """

    # As in `Denoiser`.
    name: str
    vocab_size: int
    mask_id: int
    eos_ids: tuple[int, ...]
    forbidden_ids: tuple[int, ...]
    block_size: int | None = None
    max_length: int | None = None
    tokenizer: Any | None = None
    device: device
    config: Mapping[str, Any]  # config.json as it was read
    # Optional; the defaults mean that nothing is known.
    lookback: int = 0  # how far before a position the network predicts it (Dream: 1)
    first_id: int | None = None  # the token that every row starts with; `encode` adds it
    extends: bool = False  # was trained on rows that end with the block being written
    canvases: bool = False  # writes canvases of `block_size` one after another, from the end of the prompt
    completes_blocks: bool = True  # if block-causal: also writes what a last, partial block lacks
    module: nn.Module | None = None  # the network, if there is one to train
    tokenizer_fix: str = "put the tokenizer files into its folder"  # what to do about a missing one
    # Variables of its chat template, as its authors' code sets them.
    template_options: Mapping[str, bool] = {}

    @property
    def body_and_head(self) -> tuple[nn.Module, nn.Module] | None:
        """The two parts of the network, if they can be timed separately."""
        return None

    @property
    def activation_bytes(self) -> int:
        """Bytes per position that the network holds at most at once in a forward pass, without a cache."""
        return 0

    @property
    def cached_bytes(self) -> int:
        """Bytes of the keys and values of one position in a cache."""
        return 0

    @abstractmethod
    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        """See `Denoiser.logits`."""

    @abstractmethod
    def tensors(self) -> Mapping[str, Tensor]:
        """Return the weights by name."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines the logits; computed on each access, as weights may be trained."""
        return fingerprint(self)

    def __repr__(self) -> str:
        kind = "canvases" if self.canvases else "blocks"
        blocks = f"{kind} of {self.block_size}" if self.block_size else "bidirectional"
        family = self.config.get("model_type", type(self).__name__)
        return f"<{self.name}: {family}, {blocks}, {self.vocab_size} tokens, on {self.device}>"

    # Text in and out.

    @property
    def has_chat(self) -> bool:
        """Whether there is a chat format."""
        return getattr(self.tokenizer, "chat_template", None) is not None

    def encode(
        self, prompt: str | Sequence[Message], *, prefill: str = "", chat: bool | None = None
    ) -> list[int]:
        """Return the token ids of a prompt.

        Args:
            prompt: A user's turn as text, or the messages of a chat.
            prefill: Text that the answer starts with; a last message of the assistant is also a prefill.
            chat: None uses the chat format if there is one. Without it the text is encoded as it is, with the special
                tokens that the tokenizer adds by default.
        """
        if isinstance(prompt, str):
            messages: Sequence[Message] = [{"role": "user", "content": prompt}]
        else:
            messages = prompt
            if chat is False or not messages:
                raise UserError("messages are for the chat format; give plain text, or leave chat=False out")
            chat = True
        if chat or (chat is None and self.has_chat):
            ids = self.tokens(self.conversation(messages) + prefill)
        else:
            ids = self._ids(messages[0]["content"] + prefill)
        return ids if self.first_id is None or ids[:1] == [self.first_id] else [self.first_id, *ids]

    def conversation(self, messages: Sequence[Message]) -> str:
        """Return the text of a chat up to the assistant's next word, by the tokenizer's template.

        A last turn of the assistant is a prefill.
        """
        turns = [_checked(message) for message in messages]
        if not self.has_chat:
            raise UserError(f"{self.name!r} has no chat format; give plain text (chat=False)")
        prefill = turns.pop()["content"] if turns[-1]["role"] == "assistant" else ""
        tokenizer = self._tokenizer("render a chat")
        try:
            text = render(tokenizer, turns, **self.template_options)
        except (TemplateError, ValueError) as error:  # templates refuse what their model was not trained on
            raise UserError(
                f"the chat template of {self.name!r} refuses these messages ({error}); give turns it knows "
                "(many take no system turn, or require user and assistant to alternate)"
            ) from error
        except (
            TypeError,
            ArithmeticError,
            LookupError,
            AttributeError,
            RuntimeError,  # too deep, or a generator that ends early
            MemoryError,
            SyntaxError,  # Jinja accepts what the Python made of it does not: {% break %} outside a loop
        ) as error:
            raise UserError(
                f"the chat template of {self.name!r} does not work ({type(error).__name__}: {error}); repair it, or "
                "give plain text (chat=False)"
            ) from error
        return text + prefill

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of text as it is: no chat format, no special tokens added."""
        return self._ids(text, add_special_tokens=False)

    def _ids(self, text: str, **options: bool) -> list[int]:
        tokenizer = self._tokenizer("encode text")
        try:
            ids = list(tokenizer(text, **options)["input_ids"])
        except BaseException as error:
            if isinstance(error, (UnicodeError, TypeError)):  # half of a surrogate pair is not text
                raise UserError(
                    f"the prompt {text!a:.60} is not text that can be encoded as UTF-8; remove lone surrogates"
                ) from error
            if is_panic(error):
                raise UserError(
                    f"the tokenizer of {self.name!r} fails on this text ({error}); repair tokenizer.json, or give "
                    "token ids"
                ) from error
            raise
        self._refuse_unknown(ids, text)
        return ids

    def decode(self, ids: Sequence[int], *, cut: bool = True) -> str:
        """Return the text up to the first end-of-text or end-of-turn token; with cut=False all of it."""
        tokenizer = self._tokenizer("decode ids")
        end = first_eos(ids, self.eos_ids) if cut else len(ids)
        text = tokenizer.decode(list(ids[:end]), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return cast(str, text)

    def _tokenizer(self, purpose: str) -> Any:
        if self.tokenizer is None:
            raise UserError(
                f"{self.name!r} has no tokenizer, so it cannot {purpose}; give token ids, or "
                f"{self.tokenizer_fix}"
            )
        return self.tokenizer

    def _refuse_unknown(self, ids: Sequence[int], text: str) -> None:
        tokenizer = self._tokenizer("encode text")
        unknown = tokenizer.unk_token_id
        if unknown in ids and tokenizer.unk_token not in text:
            words = [w for w in text.split() if unknown in tokenizer(w)["input_ids"]]
            shown = [repr(word if len(word) <= 40 else word[:37] + "...") for word in words[:5]]
            raise UserError(
                f"{self.name!r} has no token for {', '.join(shown) or 'a part of the prompt'}; its "
                "vocabulary is small: write the prompt as its tasks do (`20 10 15 -> 45`), with spaces between words"
            )


class LoadedModel(LanguageModel):
    """A model on a native `transformers` class, loaded from a checkpoint."""

    def __init__(
        self, module: Any, config: Mapping[str, Any], token_ids: TokenIds, tokenizer: Any, name: str
    ) -> None:
        self.module = module
        self.config = dict(config)  # config.json as it was read, in the family's own names
        self.tokenizer, self.name = tokenizer, name
        self.mask_id, self.eos_ids = token_ids.mask_id, token_ids.eos_ids
        self.forbidden_ids, self.block_size = token_ids.forbidden_ids, token_ids.block_size
        self.first_id = token_ids.first_id
        self.vocab_size, self.device = int(module.config.vocab_size), module.device

    @torch.no_grad()
    def assign(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite parameters of the network, by name; each keeps its number format."""
        assert self.module is not None
        parameters = dict(self.module.named_parameters())
        if unexpected := sorted(weights.keys() - parameters.keys()):
            raise UserError(f"the network of {self.name!r} has no parameter {unexpected[0]}")
        for name, tensor in weights.items():
            parameters[name].copy_(tensor)


def activations_per_position(hidden: int, intermediate: int, experts: int = 0) -> int:
    """Return how many numbers per position a layer holds at most at once, a little more than measured.

    Beside a few hidden states these are gate, up and their product in the feed-forward part. A mixture of experts has
    the inputs and outputs of each expert that a token is given to, the outputs also in float32.
    """
    return 5 * hidden + max(3 * intermediate, 6 * experts * hidden)


def _checked(message: Message) -> dict[str, str]:
    if set(message) != {"role", "content"} or not isinstance(message["content"], str):
        raise UserError(f'a message is {{"role": ..., "content": text}}, not {dict(message)!r}')
    if message["role"] not in ROLES:
        raise unknown("role of a message", message["role"], ROLES)
    return dict(message)


def language_model(model: Denoiser) -> LanguageModel:
    """Return the model itself, or a plain `Denoiser` with text in and out by its tokenizer."""
    if not hasattr(model, "logits"):
        raise UserError(f"a model is what twotemp.load or twotemp.wrap returns, not {model!r}")
    return model if isinstance(model, LanguageModel) else _DenoiserWithText(model)


def refuse_without_mask(model: Denoiser, purpose: str) -> None:
    """Raise a UserError if a model has no mask, which the purpose (the subject of a sentence) needs."""
    if model.mask_id == NO_MASK:
        raise UserError(
            f"{purpose} needs a mask token, and {model.name!r} has none: its open positions hold random tokens"
        )


class _DenoiserWithText(LanguageModel):
    """A user's `Denoiser`. Its weights are unknown, so that its logits on a probe represent them."""

    PROBE = 8  # positions

    def __init__(self, model: Denoiser) -> None:
        for field in Denoiser.__annotations__:
            setattr(self, field, getattr(model, field))
        self._model = model
        self.config = {"model_type": type(model).__name__}

    def logits(self, ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        return self._model.logits(ids, attention_mask, want)

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the logits of one row of masks after some token."""
        token = next(i for i in range(self.vocab_size) if i not in self.forbidden_ids)
        ids = torch.full(
            (1, min(self.PROBE, self.max_length or self.PROBE)), self.mask_id, device=self.device
        )
        ids[0, 0] = token
        with torch.inference_mode():
            return {"logits": self.logits(ids, None, ids == self.mask_id)}
