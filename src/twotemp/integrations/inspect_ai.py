"""A model provider for inspect_ai: `--model twotemp/tiny`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from twotemp.backends import Event
from twotemp.backends.local import LocalService
from twotemp.errors import UserError
from twotemp.integrations.arguments import answer_length, import_settings, load_model, policy_of
from twotemp.policies import AnyPolicy
from twotemp.records import Request, Sample
from twotemp.sampling.requests import Prompt, prompt_ids, prompt_names, prompt_requests

POLICY = {"temperature": "t_token", "top_p": "top_p", "top_k": "top_k"}  # inspect's name -> ours
REFUSED = (
    *("best_of", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs"),
    *("prompt_logprobs", "response_schema"),
)


class TwoTempAPI(ModelAPI):  # type: ignore[misc]  # inspect_ai need not be installed where types are checked
    """A twotemp model for inspect.

    Arguments (`-M`) are policy, length, block, seed, cache and chat of `twotemp.sample`, those of `twotemp.load`, and
    slots, the number of rows decoded together, which is also the default of --max-connections.

    inspect's own --seed, --temperature, --top-p, --top-k, --max-tokens, --stop-seqs and --num-choices apply; `length`
    overrides --max-tokens.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        *,
        policy: str = "tct",
        length: int | None = None,
        block: int | None = None,
        seed: int = 0,
        cache: str | None = None,
        chat: bool | None = None,
        slots: int = 32,
        **loading: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        self.policy = policy_of(policy)
        self.length, self.block, self.seed, self.chat, self.slots = length, block, seed, chat, slots
        self.model = load_model(model_name, **loading)
        self._settings = import_settings(
            self.model, self.policy, block, seed, cache, bool(loading.get("compile"))
        )
        self._service = LocalService(self.model, slots, cache).__enter__()
        self._draws: Counter[str] = Counter()
        self._calls: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def max_connections(self) -> int:
        return self.slots

    def close(self) -> None:
        self._service.close(drop=True)

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        _check(tools, config)
        policy = self._policy(config)
        row = prompt_ids(self.model, _prompt(input), self.chat)
        choices = config.num_choices or 1
        name, first = self._address(row, choices)
        length = self.length or answer_length(self.model, row, config.max_tokens, name)
        seed = self.seed if config.seed is None else config.seed
        stop = config.stop_seqs or ()
        (template,) = prompt_requests(
            self.model, [row], policy, 1, length, self.block, seed, ids=[name], stop=stop
        )
        requests = [
            replace(template, index=index, policy=policy.for_sample(index))
            for index in range(first, first + choices)
        ]
        samples = await asyncio.gather(*map(self._draw, requests))
        written = sum(len(sample.tokens) for sample in samples)
        return ModelOutput(
            model=self.model_name,
            choices=[self._choice(sample) for sample in samples],
            usage=ModelUsage(input_tokens=len(row), output_tokens=written, total_tokens=len(row) + written),
            metadata={"twotemp": self._metadata(samples)},
        )

    async def _draw(self, request: Request) -> Sample:
        """Return the sample of a request, which joins the batch that is running."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sample] = loop.create_future()

        def listen(event: Event) -> None:
            loop.call_soon_threadsafe(settle, event)

        def settle(event: Event) -> None:
            if future.done():  # canceled meanwhile
                return
            if isinstance(event, UserError):
                future.set_exception(event)
            else:
                assert isinstance(event, Sample)  # the row is not watched
                future.set_result(event)

        handle = self._service.submit(request, listen)
        try:
            return await future
        finally:
            self._service.cancel(handle)

    def _policy(self, config: GenerateConfig) -> AnyPolicy:
        options = {ours: getattr(config, name) for name, ours in POLICY.items()}
        given = {name: value for name, value in options.items() if value is not None}
        return self.policy.map(lambda policy: replace(policy, **given))

    def _address(self, row: Sequence[int], choices: int) -> tuple[str, int]:
        """Return the id of a request and its first index, which decide the noise of its samples.

        inspect does not pass its sample and epoch to a provider, so they are looked up in its state: samples then do
        not depend on the order of the calls. Later calls for a sample get a suffix. Without that state (outside an
        evaluation, or in a release that moves it) the id comes from the prompt and the index counts its samples.
        """
        active = _active_sample()
        if active is None:
            (name,) = prompt_names([row])
            first = self._draws[name]
            self._draws[name] += choices
            return name, first
        call = self._calls[active] = self._calls.get(active, 0) + 1
        name = f"{active.task}/{active.sample.id}"
        return (name if call == 1 else f"{name}-{call}"), (active.epoch - 1) * choices

    def _choice(self, sample: Sample) -> ChatCompletionChoice:
        return ChatCompletionChoice(
            message=ChatMessageAssistant(content=sample.text, model=self.model_name, source="generate"),
            stop_reason="max_tokens" if sample.finish == "length" else "stop",
        )

    def _metadata(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Return what `twotemp import inspect` needs: the complete samples and the settings they were drawn with."""
        first = samples[0]
        settings = {"policy": first.policy.to_dict(), "seed": first.seed}
        return {**self._settings, **settings, "samples": [sample.to_dict() for sample in samples]}


def _active_sample() -> Any:
    try:
        from inspect_ai.log._samples import sample_active
    except ImportError:
        return None
    return sample_active()


def _check(tools: Sequence[ToolInfo], config: GenerateConfig) -> None:
    if tools:
        raise UserError("twotemp models do not call tools; use a solver without tools")
    for name in REFUSED:
        if getattr(config, name) not in (None, False):
            raise UserError(f"twotemp models do not support {name}; leave it out")


def _prompt(messages: Sequence[ChatMessage]) -> Prompt:
    """Return a single user message as text, which needs no chat format; otherwise the conversation."""
    turns: list[Mapping[str, str]] = []
    for message in messages:
        parts = [] if isinstance(message.content, str) else message.content
        for part in parts:
            if part.type not in ("text", "reasoning"):
                raise UserError(f"twotemp models read text only, not {part.type}")
        turns.append({"role": message.role, "content": message.text})
    if len(turns) == 1 and turns[0]["role"] == "user":
        return turns[0]["content"]
    return turns
