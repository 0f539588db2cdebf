"""twotemp as a model of lm-evaluation-harness: `--model twotemp`.

Releases that look for models in the entry points `lm_eval.models` find it there; for those that do not (0.4.13),
`twotemp lm-eval ...` is their command line with this module imported first.
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
from twotemp.engine.rows import check
from twotemp.errors import UserError, unknown
from twotemp.integrations.arguments import answer_length, device_of, load_model, origin, policy_of, rows_of
from twotemp.likelihood.score import Likelihood, score
from twotemp.models.base import LanguageModel, Message
from twotemp.records import NOT_STORED, Policy, Request, Sample
from twotemp.sampling.prompts import prompt_requests

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

log = logging.getLogger("twotemp")

# lm-eval's names for it; the first that is given counts.
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
# What tasks say to autoregressive models. Here the policy decides: tasks ask for greedy decoding almost always.
IGNORED = ("do_sample", "temperature", "top_p", "top_k")
SCORED_TOGETHER = 32  # rows, unless a batch size is given

Row = tuple[int, ...]


@register_model("twotemp")
class TwoTemp(TemplateLM):  # type: ignore[misc]  # lm-eval need not be installed where types are checked
    """pretrained: a name or folder as `twotemp.load` takes it, or a model that is loaded already; with a name or
    folder, the other arguments of `twotemp.load` as well (`eos_id` for `eos_ids`).

    policy, length, block, seed, cache: as in `twotemp.sample`; a policy's parameters are separated by semicolons.
    length: tokens of an answer; unset, the task's `max_gen_toks`, else `twotemp.sample`'s default.
    draws: masked copies of each text in an estimate of its likelihood, an even number.
    greedy: also find out whether a continuation is what greedy decoding would write (one more decoding of each).

    The noise of a sample is addressed by (seed, task/document/request, which of the repeats), so that repeats are
    different samples, and the same ones in every run.
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
        self.rows = rows_of(batch_size, max_batch_size)
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
        self._prompts: dict[str, dict[str, Any]] = {}  # by request, with the hash that lm-eval notes
        self._samples: list[Sample] = []
        self._likelihoods: list[dict[str, Any]] = []

    # Text.

    @property
    def eot_token_id(self) -> int:
        if not self.model.eos_ids:
            raise UserError(f"{self.model.name!r} has no end-of-text token; name it with eos_id=…")
        return self.model.eos_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text without context."""
        first = getattr(self.tokenizer, "bos_token_id", None)
        return self.eot_token_id if first is None else int(first)

    @property
    def max_length(self) -> int | None:
        return self.model.max_length

    @property
    def tokenizer_name(self) -> str:
        """Part of the file name under which lm-eval keeps finished prompts."""
        return self.model.name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **unused: Any) -> list[int]:
        """A text that is in the chat format holds its special tokens already."""
        if add_special_tokens is False or string.startswith(self._openings):
            return self.model.tokens(string)
        return self.model.encode(string, chat=False)

    def apply_chat_template(self, chat_history: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The model's own format. A last turn of the assistant is what the answer begins with, so that
        `add_generation_prompt` says nothing new."""
        return self.model.conversation(chat_history)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """What lm-eval notes beside its results; it has one name for it, so we have one format."""
        if not self.model.has_chat:
            raise UserError(f"{self.model.name!r} has no chat format; leave --apply_chat_template out")
        return str(getattr(self.tokenizer, "chat_template", None) or "")

    # Samples.

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        super().set_cache_hook(cache_hook)
        self._cached = cache_hook.dbdict is not None

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """One text for each. lm-eval gives the same instance again for every repeat."""
        templates: dict[str, Request] = {}
        times: Counter[str] = Counter()
        asked = []
        for instance in requests:
            name = _name(instance)
            if name not in templates:
                context, options = instance.args
                self._check(options)
                templates[name] = self._template(name, context, options)
                self._prompts[name] = {"hash": hash_string(context), "tokens": templates[name].prompt}
            asked.append(replace(templates[name], index=times[name]))
            times[name] += 1
        samples = self._backend().sample(asked)
        bar = tqdm(samples, total=len(asked), disable=disable_tqdm, desc="twotemp samples")
        drawn = {sample.key: sample for sample in bar}
        ordered = [drawn[request.key] for request in asked]
        self._samples += ordered
        return [sample.text for sample in ordered]

    def _backend(self) -> LocalBackend:
        return LocalBackend(self.model, batch_size=self.rows, cache=self.cache)

    def _check(self, options: Mapping[str, Any]) -> None:
        known = ("until", *LENGTHS, *IGNORED)
        for key in options:
            if key not in known:
                raise unknown("generation argument", key, known)
        if self._cached and self.policy != _greedy(self.policy) and not options.get("do_sample"):
            raise UserError(
                "--use_cache keeps one text for each prompt and would hand it out for every repeat; add "
                "--gen_kwargs do_sample=True, with which lm-eval draws anew, or leave --use_cache out"
            )

    def _template(self, name: str, context: str, options: Mapping[str, Any]) -> Request:
        """The first of a document's requests."""
        row = self.tok_encode(context)
        allowed = next((int(options[key]) for key in LENGTHS if options.get(key) is not None), None)
        length = self.length or answer_length(self.model, row, allowed, name)
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
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        for instance, one in zip(requests, self._likelihoods[before:], strict=True):
            one["request"] = _name(instance)
        return found

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        pairs = [(tuple(context), tuple(said)) for _, context, said in requests]
        found = self._score(pairs)
        self._likelihoods += [one._asdict() for one in found]
        greedy = self._greedy(pairs)
        return [(one.log_p, said == greedy.get((row, len(said)))) for one, (row, said) in zip(found, pairs)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts; one that is longer than the context in several windows, each given one token before it."""
        windows: list[tuple[Row, Row]] = []
        owner: list[int] = []
        for number, instance in enumerate(requests):
            tokens = self.tok_encode(instance.args[0], add_special_tokens=False)
            # A row holds what is given as well as what is scored.
            width = len(tokens) if self.model.max_length is None else self.model.max_length - 1
            for pair in get_rolling_token_windows(tokens, self.prefix_token_id, max(1, width), 1):
                context, said = make_disjoint_window(pair)
                windows.append((tuple(context), tuple(said)))
                owner.append(number)
        total = [Likelihood(0.0, 0.0, 0)] * len(requests)
        for number, one in zip(owner, self._score(windows)):
            old = total[number]
            total[number] = Likelihood(
                old.log_p + one.log_p, math.hypot(old.error, one.error), old.tokens + one.tokens
            )
        names = map(_name, requests)
        self._likelihoods += [{**one._asdict(), "request": name} for name, one in zip(names, total)]
        return [one.log_p for one in total]

    def _score(self, pairs: Sequence[tuple[Row, Row]]) -> list[Likelihood]:
        most = self.model.max_length
        for row, said in pairs:
            if most is not None and len(row) + len(said) > most:
                raise UserError(
                    f"a context of {len(row)} tokens with {len(said)} to score does not fit into "
                    f"{self.model.name!r}'s {most}; take fewer examples (--num_fewshot)"
                )
        if not pairs:
            return []
        rows, texts = zip(*pairs)
        return score(
            self.model, rows, texts, draws=self.draws, seed=self.seed, batch_size=self.rows or SCORED_TOGETHER
        )

    def _greedy(self, pairs: Sequence[tuple[Row, Row]]) -> dict[tuple[Row, int], Row]:
        """(context, length) -> what the policy writes there without any noise."""
        if not self.greedy:
            return {}
        wanted = list(dict.fromkeys((row, len(said)) for row, said in pairs))
        requests = [
            Request(
                id=str(number),
                prompt=row,
                policy=replace(_greedy(self.policy), k=min(self.policy.k, length)),
                length=length,
                block=self.block,
            )
            for number, (row, length) in enumerate(wanted)
        ]
        for request in requests:
            check(request, self.model)
        samples = self._backend().sample(requests)
        return {wanted[int(sample.request)]: sample.tokens for sample in samples}

    # What is kept.

    def get_model_info(self) -> dict[str, Any]:
        """lm-eval writes it into its results: who wrote the texts, what each cost (for `twotemp import`), and the
        standard errors of likelihoods."""
        left_out = {"policy", "prompt", "positions", "text", "trace", *NOT_STORED}
        rows = [
            {key: value for key, value in vars(one).items() if key not in left_out} for one in self._samples
        ]
        return {
            "twotemp": {
                **origin(self.model, self.policy, self.block, self.seed, self.cache, self.compile),
                "draws": self.draws,
                "prompts": self._prompts,
                "samples": rows,
                "likelihoods": self._likelihoods,
            }
        }


def _name(instance: Instance) -> str:
    return f"{instance.task_name}/{instance.doc_id}/{instance.idx}"


def _greedy(policy: Policy) -> Policy:
    """The policy without any noise, whatever the scores of its first step are."""
    return replace(policy, t_token=0.0, first_t_token=0.0, t_pos=0.0)


def _stops(options: Mapping[str, Any]) -> tuple[str, ...]:
    until = options.get("until") or ()
    return tuple(string for string in ([until] if isinstance(until, str) else until) if string)


def _openings(model: LanguageModel) -> tuple[str, ...]:
    """How a text in the model's chat format begins, with a system message and without.

    Prompts come as text, and lm-eval may have kept them from an earlier run: nothing else says what they are.
    """
    if not model.has_chat:
        return ()
    mark = "twotemp"
    user = {"role": "user", "content": mark}
    found = [model.conversation([user]).partition(mark)[0]]
    try:
        found.append(model.conversation([{"role": "system", "content": mark}, user]).partition(mark)[0])
    except Exception as error:  # a template may refuse system messages, in an error of its own
        log.debug("%s has no system messages: %s", model.name, error)
    return tuple(filter(None, found))
