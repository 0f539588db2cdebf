"""A model for lm-evaluation-harness: `--model twotemp`.

Releases that read the entry points `lm_eval.models` find it by themselves. For releases that do not (0.4.13),
`twotemp lm-eval ...` runs lm-eval's command line with this module imported.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, hash_string, make_disjoint_window
from tqdm import tqdm

from twotemp.backends.local import LocalBackend
from twotemp.engine.scheduler import check_request
from twotemp.errors import UserError, unknown
from twotemp.integrations.arguments import (
    answer_length,
    batch_size_of,
    device_of,
    import_settings,
    load_model,
    policy_of,
)
from twotemp.likelihood.score import Likelihood, score
from twotemp.models.base import LanguageModel, Message
from twotemp.records import NOT_STORED, Policy, Request, Sample
from twotemp.sampling.requests import prompt_requests

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

log = logging.getLogger("twotemp")

# Names of the length limit in lm-eval; the first that is set applies.
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
# Left to the policy: almost all tasks ask for greedy decoding.
IGNORED = ("do_sample", "temperature", "top_p", "top_k")
SCORING_BATCH = 32  # rows, unless a batch size is given

Tokens = tuple[int, ...]


@register_model("twotemp")
class TwoTemp(TemplateLM):  # type: ignore[misc]  # lm-eval need not be installed where types are checked
    """A twotemp model for lm-eval.

    The noise of a sample is a function of (seed, task/document/request, number of the repeat), so repeats differ
    from each other and are the same in every run.

    Args:
        pretrained: A name or folder for `twotemp.load`, or a loaded model.
        policy: See `twotemp.sample`; semicolons separate the parameters.
        length: Tokens to generate; None for the task's `max_gen_toks` or else `twotemp.sample`'s default.
        block, seed, cache: See `twotemp.sample`.
        draws: Masked copies of each text in an estimate of its likelihood, an even number.
        greedy: Whether to decode each continuation greedily, to tell lm-eval if it is the greedy one.
        batch_size, max_batch_size: See `batch_size_of`.
        device: See `twotemp.load`.
        loading: Other arguments of `twotemp.load`, with `eos_id` instead of `eos_ids`.
    """

    def __init__(
        self,
        pretrained: str | LanguageModel = "tiny",
        policy: str = "tct",
        length: int | None = None,
        block: int | None = None,
        seed: int = 0,
        cache: str | None = None,
        draws: int = 128,
        greedy: bool = True,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **loading: Any,
    ) -> None:
        super().__init__()
        self.policy = policy_of(policy)
        self.length, self.block, self.seed, self.cache = length, block, seed, cache
        self.draws, self.greedy = draws, greedy
        self.rows = batch_size_of(batch_size, max_batch_size)
        if isinstance(pretrained, str):
            self.model = load_model(pretrained, device=device_of(device), **loading)
        elif loading:
            raise UserError(f"{pretrained.name!r} is loaded already; leave {', '.join(loading)} out")
        else:
            self.model = pretrained
        self.compile = bool(loading.get("compile"))
        self.tokenizer = self.model.tokenizer
        self._device = self.model.device
        self._openings = _openings(self.model)
        self._cached = False
        self._prompts: dict[str, dict[str, Any]] = {}  # by request, with the hash in lm-eval's sample log
        self._samples: list[Sample] = []
        self._likelihoods: list[dict[str, Any]] = []

    # Text.

    @property
    def eot_token_id(self) -> int:
        if not self.model.eos_ids:
            raise UserError(f"{self.model.name!r} has no end-of-text token; set it with eos_id=…")
        return self.model.eos_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context."""
        first = getattr(self.tokenizer, "bos_token_id", None)
        return self.eot_token_id if first is None else int(first)

    @property
    def max_length(self) -> int | None:
        return self.model.max_length

    @property
    def tokenizer_name(self) -> str:
        """Part of the file name of lm-eval's prompt cache."""
        return self.model.name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **unused: Any) -> list[int]:
        """Return token ids; a text in the chat format contains its special tokens, so none are added."""
        if add_special_tokens is False or string.startswith(self._openings):
            return self.model.tokens(string)
        return self.model.encode(string, chat=False)

    def apply_chat_template(self, chat_history: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """Return the conversation in the model's chat format.

        A final assistant message is the beginning of the answer, so `add_generation_prompt` is not needed.
        """
        return self.model.conversation(chat_history)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the chat template, which lm-eval stores with its results; there is only one per model."""
        if not self.model.has_chat:
            raise UserError(f"{self.model.name!r} has no chat format; leave --apply_chat_template out")
        return str(getattr(self.tokenizer, "chat_template", None) or "")

    # Samples.

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        super().set_cache_hook(cache_hook)
        self._cached = cache_hook.dbdict is not None

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return a text for each instance; lm-eval passes the same instance again for every repeat."""
        templates: dict[str, Request] = {}
        repeats: Counter[str] = Counter()
        rows = []
        for instance in requests:
            name = _name(instance)
            if name not in templates:
                context, options = instance.args
                self._check(options)
                templates[name] = self._template(name, context, options)
                self._prompts[name] = {"hash": hash_string(context), "tokens": templates[name].prompt}
            index = repeats[name]
            rows.append(replace(templates[name], index=index, policy=self.policy.for_sample(index)))
            repeats[name] += 1
        samples = self._backend().sample(rows)
        bar = tqdm(samples, total=len(rows), disable=disable_tqdm, desc="twotemp samples")
        by_key = {sample.key: sample for sample in bar}
        ordered = [by_key[row.key] for row in rows]
        self._samples += ordered
        return [sample.text for sample in ordered]

    def _backend(self) -> LocalBackend:
        return LocalBackend(self.model, batch_size=self.rows, cache=self.cache)

    def _check(self, options: Mapping[str, Any]) -> None:
        known = ("until", *LENGTHS, *IGNORED)
        for key in options:
            if key not in known:
                raise unknown("generation argument", key, known)
        if self._cached and any(map(_varies, self.policy.components)) and not options.get("do_sample"):
            raise UserError(
                "--use_cache stores one text per prompt and would return it for every repeat; add "
                "--gen_kwargs do_sample=True, which makes lm-eval ignore the stored text, or leave --use_cache out"
            )

    def _template(self, name: str, context: str, options: Mapping[str, Any]) -> Request:
        """Return the request of a document's first repeat."""
        row = self.tok_encode(context)
        limit = next((int(options[key]) for key in LENGTHS if options.get(key) is not None), None)
        length = self.length or answer_length(self.model, row, limit, name)
        (template,) = prompt_requests(
            self.model,
            [row],
            self.policy,
            1,
            length,
            self.block,
            self.seed,
            ids=[name],
            stop=_stops(options),
        )
        return template

    # Likelihoods.

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        before = len(self._likelihoods)
        results: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        for instance, record in zip(requests, self._likelihoods[before:], strict=True):
            record["request"] = _name(instance)
        return results

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        pairs = [(tuple(context), tuple(target)) for _, context, target in requests]
        scores = self._score(pairs)
        self._likelihoods += [score._asdict() for score in scores]
        greedy = self._greedy(pairs)
        return [
            (score.log_p, target == greedy.get((context, len(target))))
            for score, (context, target) in zip(scores, pairs)
        ]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return log p of whole texts; a long one is cut into windows, each conditioned on the token before it."""
        windows: list[tuple[Tokens, Tokens]] = []
        owner: list[int] = []
        for number, instance in enumerate(requests):
            tokens = self.tok_encode(instance.args[0], add_special_tokens=False)
            # A row holds the token before the window as well.
            width = len(tokens) if self.model.max_length is None else self.model.max_length - 1
            for pair in get_rolling_token_windows(tokens, self.prefix_token_id, max(1, width), 1):
                context, target = make_disjoint_window(pair)
                windows.append((tuple(context), tuple(target)))
                owner.append(number)
        totals = [Likelihood(0.0, 0.0, 0)] * len(requests)
        for number, part in zip(owner, self._score(windows)):
            total = totals[number]
            totals[number] = Likelihood(
                total.log_p + part.log_p, math.hypot(total.error, part.error), total.tokens + part.tokens
            )
        names = map(_name, requests)
        self._likelihoods += [{**total._asdict(), "request": name} for name, total in zip(names, totals)]
        return [total.log_p for total in totals]

    def _score(self, pairs: Sequence[tuple[Tokens, Tokens]]) -> list[Likelihood]:
        longest = self.model.max_length
        for context, target in pairs:
            if longest is not None and len(context) + len(target) > longest:
                raise UserError(
                    f"{len(context)} tokens of context and {len(target)} to score do not fit into the {longest} of "
                    f"{self.model.name!r}; use fewer examples (--num_fewshot)"
                )
        if not pairs:
            return []
        contexts, targets = zip(*pairs)
        size = self.rows or SCORING_BATCH
        return score(self.model, contexts, targets, draws=self.draws, seed=self.seed, batch_size=size)

    def _greedy(self, pairs: Sequence[tuple[Tokens, Tokens]]) -> dict[tuple[Tokens, int], Tokens]:
        """Return (context, length) -> the tokens that the (first) policy writes without noise."""
        if not self.greedy:
            return {}
        first = self.policy.for_sample(0)
        contexts = list(dict.fromkeys((context, len(target)) for context, target in pairs))
        requests = [
            Request(
                id=str(number),
                prompt=row,
                policy=replace(_greedy(first), k=min(first.k, length)),
                length=length,
                block=self.block,
            )
            for number, (row, length) in enumerate(contexts)
        ]
        for request in requests:
            check_request(request, self.model)
        samples = self._backend().sample(requests)
        return {contexts[int(sample.request)]: sample.tokens for sample in samples}

    def get_model_info(self) -> dict[str, Any]:
        """Return what lm-eval stores with its results: what `twotemp import` needs, and errors of likelihoods."""
        omitted = {"policy", "prompt", "positions", "text", "trace", *NOT_STORED}
        rows = [
            {key: value for key, value in vars(sample).items() if key not in omitted}
            for sample in self._samples
        ]
        return {
            "twotemp": {
                **import_settings(self.model, self.policy, self.block, self.seed, self.cache, self.compile),
                "draws": self.draws,
                "prompts": self._prompts,
                "samples": rows,
                "likelihoods": self._likelihoods,
            }
        }


def _name(instance: Instance) -> str:
    return f"{instance.task_name}/{instance.doc_id}/{instance.idx}"


def _greedy(policy: Policy) -> Policy:
    """Return the policy with all its temperatures at 0."""
    return replace(policy, t_token=0.0, first_t_token=0.0, t_pos=0.0)


def _varies(policy: Policy) -> bool:
    """Return whether samples of one prompt can differ: by a temperature that is in use, or because they repel."""
    first_step = policy.first_t_token if policy.first_score != "same" else 0.0
    return any(value > 0 for value in (policy.t_token, first_step, policy.t_pos, policy.repel))


def _stops(options: Mapping[str, Any]) -> tuple[str, ...]:
    until = options.get("until") or ()
    return tuple(string for string in ([until] if isinstance(until, str) else until) if string)


def _openings(model: LanguageModel) -> tuple[str, ...]:
    """Return how texts in the model's chat format begin, with and without a system message.

    Prompts arrive as text, perhaps from lm-eval's cache, so the beginning is the only sign of their format.
    """
    if not model.has_chat:
        return ()
    mark = "twotemp"
    user = {"role": "user", "content": mark}
    openings = [model.conversation([user]).partition(mark)[0]]
    try:
        openings.append(model.conversation([{"role": "system", "content": mark}, user]).partition(mark)[0])
    except Exception as error:  # a template may raise any error to refuse system messages
        log.debug("%s has no system messages: %s", model.name, error)
    return tuple(filter(None, openings))
