"""Every policy of twotemp inside an SGLang server, chosen per request: `--dllm-algorithm TwoTemp`.

SGLang computes the logits of a block, for SDAR and LLaDA-2 on any number of GPUs; `PolicyBatch` decides what is
written and where. A request says how in its `custom_params`:

    {"policy": "tlc:t_pos=1", "seed": 5, "request": "q", "index": 3, "trace": true}

The answer's `meta_info` says, token by token, at which step each was written (`twotemp_steps`), how many forward
passes the answer up to its block took (`twotemp_forwards`), and with a trace its confidence and entropy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from twotemp.engine.rows import compact
from twotemp.errors import UserError, unknown
from twotemp.groups import refuse
from twotemp.policies import parse
from twotemp.policies.step import Memory, Noise, PolicyBatch
from twotemp.records import Policy
from twotemp.rng import row_key
from twotemp_sglang import NAME

VERSION = "0.5.23"  # of SGLang: its inner interface changes from one to the next
POLICY = "tct"  # where neither the request nor the server's --dllm-algorithm-config says
PARAMETERS = ("policy", "seed", "request", "index", "trace")
STEPS, FORWARDS, CONFIDENCE, ENTROPY = (
    f"twotemp_{name}" for name in ("steps", "forwards", "confidence", "entropy")
)
# SGLang's name of an architecture -> twotemp's name of the family, which knows the special tokens.
FAMILIES = {"LLaDA2MoeModelLM": "llada2_moe", "SDARForCausalLM": "sdar", "SDARMoeForCausalLM": "sdar_moe"}
# Parameters of autoregressive sampling that no policy reads, with the values that leave them off.
UNSUPPORTED = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "min_p", "min_new_tokens"), 0),
    "repetition_penalty": 1,
    **dict.fromkeys(("logit_bias", "json_schema", "regex", "ebnf", "structural_tag")),
}


def register() -> None:
    """Add the algorithm to SGLang, which calls this in each of its processes (entry point `sglang.srt.plugins`)."""
    from sglang.srt.dllm import algorithm
    from sglang.srt.dllm.algorithm.base import DllmAlgorithm
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    algorithm.algo_name_to_cls[NAME] = type(NAME, (Decisions, DllmAlgorithm), {})
    # SGLang does not hand an algorithm the requests behind its rows; the hook attaches them to the batch.
    target = "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new"
    HookRegistry.register(target, _attach_requests, HookType.AFTER)


def _attach_requests(made: Any, cls: type, batch: Any, *others: object, **more: object) -> None:
    made.twotemp_requests, made.twotemp_model = batch.reqs, batch.model_config


@dataclass(frozen=True)
class RequestOptions:
    """How a request is drawn."""

    policy: Policy
    key: int  # addresses its noise
    trace: bool

    @classmethod
    def of(cls, req: Any) -> RequestOptions:
        """Read `custom_params`; a request without a name draws by SGLang's id of it, which is random."""
        given = req.sampling_params.custom_params or {}
        if not isinstance(given, Mapping):
            raise UserError(f"a mapping of names to values is expected, not {given!r}")
        for name in given:
            if name not in PARAMETERS:
                raise unknown("custom parameter", str(name), PARAMETERS)
        spec = given.get("policy", req.dllm_config.algorithm_config.get("policy", POLICY))
        policy = Policy.from_dict(spec) if isinstance(spec, Mapping) else parse(str(spec))
        if policy.edit != "never":
            raise UserError(
                f"policy {policy.name} rewrites tokens, and here a token stays once it is written; "
                "draw it in twotemp's own engine"
            )
        refuse(policy, "SGLang")
        key = row_key(
            int(given.get("seed", 0)), str(given.get("request", req.rid)), int(given.get("index", 0))
        )
        return cls(policy, key, bool(given.get("trace", False)))


@dataclass(eq=False)
class Block:
    """The block a request is writing. SGLang may abandon it and begin it again with the same noise: its steps count
    for the request only when it is finished."""

    req: Any
    options: RequestOptions
    begun: int  # steps taken before this block
    masked: list[int]  # the columns to write
    # column -> step, confidence, entropy
    written: dict[int, tuple[int, float, float]] = field(default_factory=dict)
    since: int = 0  # steps taken in it
    memory: Memory | None = None  # [W] each, not [B, W]
    finished: bool = False

    def write(self, commit: Sequence[bool], confidence: Sequence[float], entropy: Sequence[float]) -> None:
        step = self.begun + self.since
        self.written |= {
            at: (step, confidence[at], entropy[at]) for at, chosen in enumerate(commit) if chosen
        }
        self.since += 1

    def finish(self) -> None:
        """Report a written block to its request, once: SGLang's synchronous mode steps on until all rows end."""
        if self.finished or not self.masked:
            return
        self.finished, self.req.twotemp_steps = True, self.begun + self.since
        self.req.twotemp_forwards += self.since + 1
        info = self.req.customized_info = self.req.customized_info or {}
        steps, confidence, entropy = zip(*(self.written[at] for at in self.masked))
        columns = {STEPS: steps, FORWARDS: [self.req.twotemp_forwards] * len(steps)}
        if self.options.trace:
            columns |= {CONFIDENCE: confidence, ENTROPY: entropy}
        for name, values in columns.items():
            info.setdefault(name, []).extend(values)


class Decisions:
    """The methods of SGLang's `DllmAlgorithm`; `register` adds that base class where SGLang is installed."""

    block_size: int
    mask_id: int

    @classmethod
    def configure_server_args(cls, server_args: Any) -> None:
        """Refuse any other version of SGLang; called once, when a server starts with this algorithm."""
        if (found := version("sglang")) != VERSION:
            raise UserError(
                f"twotemp-sglang is made for SGLang {VERSION}, and this is {found}; install it with: "
                f"pip install sglang=={VERSION}"
            )

    @classmethod
    def validate_request(cls, req: Any) -> str | None:
        """Return what is wrong with a request, before anything is computed; None: nothing."""
        try:
            RequestOptions.of(req)
        except (ValueError, TypeError, OverflowError) as error:  # a UserError is a ValueError
            return f"custom_params: {error}"
        if req.dllm_config.mask_id in req.origin_input_ids:
            return "the prompt contains the mask token; in SGLang twotemp continues a text and does not fill gaps"
        unsupported = [
            name
            for name, off in UNSUPPORTED.items()
            if (getattr(req.sampling_params, name, off) or off) != off
        ]
        unsupported += ["return_logprob"] * bool(req.return_logprob)
        if unsupported:
            return f"{', '.join(unsupported)}: not with {NAME}; the policy in custom_params decides alone"
        return None

    def init_step_state(self, forward_batch: Any) -> list[Block]:
        """Return a new block for every row; SGLang keeps the states of blocks that are under way."""
        masked = (forward_batch.input_ids.view(-1, self.block_size) == self.mask_id).tolist()
        return [
            Block(req, _options(req), req.twotemp_steps, [at for at, it in enumerate(row) if it])
            for req, row in zip(forward_batch.twotemp_requests, masked)
        ]

    def step(self, forward_batch: Any, full_logits: Tensor, states: Sequence[Block]) -> list[bool]:
        """Write what the policies decide into `input_ids`, in place. True for rows that had nothing left to write:
        the keys and values of this pass are those of their final tokens."""
        ids = forward_batch.input_ids.view(-1, self.block_size)
        masked = ids == self.mask_id
        count = masked.sum(1).cpu()  # the round trip
        structures: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for row, block in enumerate(states):
            if count[row]:
                structures[block.options.policy.structure].append(row)
            else:
                block.finish()
        for rows in structures.values():
            self._decide(forward_batch, full_logits, ids, masked, count, rows, [states[row] for row in rows])
        done: list[bool] = (count == 0).tolist()
        return done

    def _decide(
        self,
        forward_batch: Any,
        full_logits: Tensor,
        ids: Tensor,
        masked: Tensor,
        count: Tensor,
        rows: list[int],
        blocks: list[Block],
    ) -> None:
        """Write the decisions of rows whose policies share a structure."""
        device, width = ids.device, self.block_size
        at = torch.tensor(rows, device=device)
        eos_ids, forbidden_ids = _special(forward_batch.twotemp_model, self.mask_id, width)
        policies = _stacked(tuple(b.options.policy for b in blocks), device, eos_ids, forbidden_ids)
        open_, number = policies.candidates(masked[at], count[rows])
        index = compact(open_, int(number.sum()))
        where = (at[:, None] * width + torch.arange(width, device=device)).flatten()[index]
        keys, steps, since = torch.tensor(
            [[b.options.key, b.begun + b.since, b.since] for b in blocks], device=device
        ).unbind(1)
        noise = Noise(keys, steps, forward_batch.positions.view(-1, width)[at].long())
        traced = any(b.options.trace for b in blocks)
        drawn = policies.draw(noise, full_logits[where], open_, index, entropy=traced)
        memory = _stack_memories([b.memory for b in blocks]) if policies.remembers else None
        made, memory = policies.choose(noise, drawn, open_, memory=memory, since=since)
        finite = torch.ones(open_.numel(), dtype=torch.bool, device=device)
        sound = (
            finite.index_copy_(0, index, torch.isfinite(made.log_norm)).view_as(open_).all(1, keepdim=True)
        )
        # A row with NaN or infinite logits is filled with any token and ends at once; `_abort` discards it.
        commit = torch.where(sound, made.commit, masked[at])
        tokens = torch.where(sound, made.tokens, int(self.mask_id == 0))
        ids[at] = torch.where(commit, tokens.to(ids.dtype), ids[at])

        entropy = torch.zeros_like(made.confidence) if made.entropy is None else made.entropy
        planes = torch.stack(
            [commit.float(), made.confidence, entropy, sound.expand_as(commit).float()]
        ).cpu()
        for row, block in enumerate(blocks):
            block.write(*(plane[row].tolist() for plane in planes[:3]))
            if memory is not None:
                block.memory = Memory(memory.positions[row], memory.weights[row], memory.stable[row])
            if not planes[3, row, 0]:
                _abort(block.req)


def _options(req: Any) -> RequestOptions:
    """Return the options of a request, which are kept with it, as are its counters."""
    if not hasattr(req, "twotemp_options"):
        req.twotemp_options, req.twotemp_steps, req.twotemp_forwards = RequestOptions.of(req), 0, 0
    options: RequestOptions = req.twotemp_options
    return options


def _stack_memories(memories: Sequence[Memory | None]) -> Memory | None:
    """Stack memories of [W] to one of [B, W]; positions are -1 in blocks that begin. None where all begin."""
    known = next((memory for memory in memories if memory is not None), None)
    if known is None:
        return None
    blank = Memory(
        torch.full_like(known.positions, -1), torch.zeros_like(known.weights), torch.zeros_like(known.stable)
    )
    rows = [memory or blank for memory in memories]
    return Memory(*(torch.stack([getattr(row, name) for row in rows]) for name in vars(blank)))


@lru_cache(maxsize=64)
def _stacked(
    policies: tuple[Policy, ...],
    device: torch.device,
    eos_ids: tuple[int, ...],
    forbidden_ids: tuple[int, ...],
) -> PolicyBatch:
    """Return the policies as one batch, cached: it is the same from step to step while the rows are."""
    return PolicyBatch(policies, device, eos_ids=eos_ids, forbidden_ids=forbidden_ids)


def _special(model: Any, mask_id: int, block_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that end a text and the ids that must not be written, from SGLang's `ModelConfig`."""
    return _special_ids(
        model.model_path, model.revision, model.hf_config.architectures[0], mask_id, block_size
    )


@lru_cache(maxsize=1)
def _special_ids(
    path: str, revision: str | None, architecture: str, mask_id: int, block_size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return them as twotemp's engine reads them from this checkpoint."""
    from twotemp.models.checkpoint import read_json
    from twotemp.models.families import FAMILIES as OURS
    from twotemp.models.load import locate
    from twotemp.models.special import Given, read_special

    folder = locate(path, revision, check=lambda config: None, weights=False)
    config = read_json(folder / "config.json")
    facts, given = OURS[FAMILIES[architecture]].facts, Given(mask_id=mask_id, block_size=block_size)
    _, special = read_special(folder, facts, config["vocab_size"], config, given)
    return special.eos_ids, special.forbidden_ids


def _abort(req: Any) -> None:
    """End the request with an error at the end of its block; the others go on."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    req.to_finish = FINISH_ABORT("the model returned NaN or infinite logits; check the weights and the dtype")
