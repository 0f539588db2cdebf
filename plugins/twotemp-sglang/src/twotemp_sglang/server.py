"""The SGLang algorithm `TwoTemp`, which runs every policy of twotemp: `--dllm-algorithm TwoTemp`.

SGLang computes the logits of a block, for SDAR and LLaDA-2 on any number of GPUs; `PolicyBatch` decides which tokens
are committed. A request chooses its policy in `custom_params`:

    {"policy": "tlc:t_pos=1", "seed": 5, "request": "q", "index": 3, "trace": true}

The answer's `meta_info` has for every token the step at which it was committed (`twotemp_steps`), the number of
forward passes up to the end of its block (`twotemp_forwards`) and, with a trace, its confidence and entropy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from twotemp.engine.rows import compact
from twotemp.engine.scheduler import refuse_groups
from twotemp.errors import UserError, unknown
from twotemp.policies import parse
from twotemp.policies.decision import Memory
from twotemp.policies.step import PolicyBatch
from twotemp.records import Policy
from twotemp.rng import Noise, row_key
from twotemp_sglang import NAME
from twotemp_sglang.replay import STEP_MAPS

VERSION = "0.5.23"  # of SGLang, whose internal interface changes with every release
POLICY = "tct"  # the default, unless the request or the server's --dllm-algorithm-config sets one
PARAMETERS = ("policy", "seed", "request", "index", "trace")
STEPS, FORWARDS, CONFIDENCE, ENTROPY = (
    f"twotemp_{name}" for name in ("steps", "forwards", "confidence", "entropy")
)
# SGLang's name of an architecture -> twotemp's name of the family, which determines the special tokens.
FAMILIES = {"LLaDA2MoeModelLM": "llada2_moe", "SDARForCausalLM": "sdar", "SDARMoeForCausalLM": "sdar_moe"}
# Parameters of autoregressive sampling that policies do not support, with the values that disable them.
UNSUPPORTED = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "min_p", "min_new_tokens"), 0),
    "repetition_penalty": 1,
    **dict.fromkeys(("logit_bias", "json_schema", "regex", "ebnf", "structural_tag")),
}


def register() -> None:
    """Register the algorithm; SGLang calls this in each of its processes (entry point `sglang.srt.plugins`)."""
    from sglang.srt.dllm import algorithm
    from sglang.srt.dllm.algorithm.base import DllmAlgorithm
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    algorithm.algo_name_to_cls[NAME] = type(NAME, (TwoTempAlgorithm, DllmAlgorithm), {})
    # SGLang does not pass the requests of a batch to the algorithm, so this hook attaches them to the batch.
    target = "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new"
    HookRegistry.register(target, _attach_requests, HookType.AFTER)


def _attach_requests(forward_batch: Any, cls: type, batch: Any, *args: object, **kwargs: object) -> None:
    """Attach the requests and the model's configuration of a scheduled batch to its forward batch."""
    forward_batch.twotemp_requests, forward_batch.twotemp_model = batch.reqs, batch.model_config


@dataclass(frozen=True)
class RequestOptions:
    """The options in a request's `custom_params`."""

    policy: Policy
    key: int  # addresses its noise
    trace: bool

    @classmethod
    def of(cls, req: Any) -> RequestOptions:
        """Read `custom_params`; the noise of a request without a name depends on SGLang's random request id."""
        params = req.sampling_params.custom_params or {}
        if not isinstance(params, Mapping):
            raise UserError(f"expected a mapping of names to values, not {params!r}")
        for name in params:
            if name not in PARAMETERS:
                raise unknown("custom parameter", str(name), PARAMETERS)
        spec = params.get("policy", req.dllm_config.algorithm_config.get("policy", POLICY))
        policy = Policy.from_dict(spec) if isinstance(spec, Mapping) else parse(str(spec))
        if policy.edit != "never":
            raise UserError(
                f"policy {policy.name} rewrites tokens, but in SGLang a committed token cannot change; use "
                "twotemp's own engine for it"
            )
        refuse_groups(policy, "SGLang")
        key = row_key(
            int(params.get("seed", 0)), str(params.get("request", req.rid)), int(params.get("index", 0))
        )
        return cls(policy, key, bool(params.get("trace", False)))


@dataclass(eq=False)
class BlockState:
    """The current block of a request.

    SGLang may abandon a block and restart it with the same noise, so its steps count for the request only when the
    block is finished.
    """

    req: Any
    options: RequestOptions
    begun: int  # steps before this block
    masked: list[int]  # the columns to commit
    # column -> step, confidence, entropy
    written: dict[int, tuple[int, float, float]] = field(default_factory=dict)
    since: int = 0  # steps in this block
    memory: Memory | None = None  # [W] each, not [B, W]
    finished: bool = False

    def write(self, commit: Sequence[bool], confidence: Sequence[float], entropy: Sequence[float]) -> None:
        """Record the commits of one step."""
        step = self.begun + self.since
        self.written |= {
            column: (step, confidence[column], entropy[column])
            for column, committed in enumerate(commit)
            if committed
        }
        self.since += 1

    def finish(self) -> None:
        """Report a finished block to its request.

        This happens only once, although SGLang's synchronous mode keeps stepping until all rows have finished.
        """
        if self.finished or not self.masked:
            return
        self.finished, self.req.twotemp_steps = True, self.begun + self.since
        self.req.twotemp_forwards += self.since + 1
        info = self.req.customized_info = self.req.customized_info or {}
        steps, confidence, entropy = zip(*(self.written[column] for column in self.masked))
        columns = {STEPS: steps, FORWARDS: [self.req.twotemp_forwards] * len(steps)}
        columns[STEP_MAPS] = [step + 1 for step in steps]
        if self.options.trace:
            columns |= {CONFIDENCE: confidence, ENTROPY: entropy}
        for name, values in columns.items():
            info.setdefault(name, []).extend(values)


class TwoTempAlgorithm:
    """The methods of SGLang's `DllmAlgorithm`; `register` adds that base class, which needs SGLang."""

    block_size: int
    mask_id: int

    @classmethod
    def configure_server_args(cls, server_args: Any) -> None:
        """Refuse any other version of SGLang; called once, when a server starts with this algorithm."""
        if (installed := version("sglang")) != VERSION:
            raise UserError(
                f"twotemp-sglang needs SGLang {VERSION}, and this is {installed}; install it with: "
                f"pip install sglang=={VERSION}"
            )

    @classmethod
    def validate_request(cls, req: Any) -> str | None:
        """Return the error in a request, or None; SGLang calls this before it computes anything."""
        try:
            RequestOptions.of(req)
        except (ValueError, TypeError, OverflowError) as error:  # a UserError is a ValueError
            return f"custom_params: {error}"
        if req.dllm_config.mask_id in req.origin_input_ids:
            return "the prompt contains the mask token; with SGLang, twotemp continues prompts and does not infill"
        unsupported = [
            name
            for name, off in UNSUPPORTED.items()
            if (getattr(req.sampling_params, name, off) or off) != off
        ]
        unsupported += ["return_logprob"] * bool(req.return_logprob)
        if unsupported:
            return (
                f"{', '.join(unsupported)}: not supported by {NAME}; choose a policy in custom_params instead"
            )
        return None

    def init_step_state(self, forward_batch: Any) -> list[BlockState]:
        """Return a new state for every row; SGLang keeps the states of unfinished blocks itself."""
        masked = (forward_batch.input_ids.view(-1, self.block_size) == self.mask_id).tolist()
        return [
            BlockState(
                req, _options(req), req.twotemp_steps, [column for column, flag in enumerate(row) if flag]
            )
            for req, row in zip(forward_batch.twotemp_requests, masked)
        ]

    def step(self, forward_batch: Any, full_logits: Tensor, states: Sequence[BlockState]) -> list[bool]:
        """Commit tokens into `input_ids` in place, as the policies decide.

        Returns:
            True for rows that were complete before this step, so that the keys and values of this pass are final.
        """
        ids = forward_batch.input_ids.view(-1, self.block_size)
        masked = ids == self.mask_id
        count = masked.sum(1).cpu()  # the only synchronization with the device
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
        blocks: list[BlockState],
    ) -> None:
        """Commit tokens in rows whose policies share a structure.

        Args:
            forward_batch: SGLang's batch.
            full_logits: The logits of all rows, flattened.
            ids: The blocks' token ids, [B, W], changed in place.
            masked: The masked positions, [B, W].
            count: The number of masked positions per row.
            rows: The rows to decide.
            blocks: The states of these rows.
        """
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
        drawn = policies.draw(noise, full_logits[where], open_, index, entropy=traced, block_step=since)
        memory = _stack_memories([b.memory for b in blocks]) if policies.remembers else None
        made, memory = policies.choose(noise, drawn, open_, memory=memory, block_step=since)
        finite = torch.ones(open_.numel(), dtype=torch.bool, device=device)
        sound = (
            finite.index_copy_(0, index, torch.isfinite(made.log_norm)).view_as(open_).all(1, keepdim=True)
        )
        # A row with NaN or infinite logits is filled with an arbitrary token, so that it ends; `_abort` discards it.
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
                block.memory = memory.each(itemgetter(row))
            if not planes[3, row, 0]:
                _abort(block.req)


def _options(req: Any) -> RequestOptions:
    """Return the options of a request; they and the request's counters are stored as its attributes."""
    if not hasattr(req, "twotemp_options"):
        req.twotemp_options, req.twotemp_steps, req.twotemp_forwards = RequestOptions.of(req), 0, 0
    options: RequestOptions = req.twotemp_options
    return options


def _stack_memories(memories: Sequence[Memory | None]) -> Memory | None:
    """Stack memories of [W] to one of [B, W], with positions -1 for new blocks; None if all blocks are new."""
    known = next((memory for memory in memories if memory is not None), None)
    if known is None:
        return None
    blank = replace(known.each(torch.zeros_like), positions=torch.full_like(known.positions, -1))
    rows = [memory or blank for memory in memories]
    names = [name for name, tensor in vars(blank).items() if tensor is not None]
    return Memory(**{name: torch.stack([getattr(row, name) for row in rows]) for name in names})


@lru_cache(maxsize=64)
def _stacked(
    policies: tuple[Policy, ...],
    device: torch.device,
    eos_ids: tuple[int, ...],
    forbidden_ids: tuple[int, ...],
) -> PolicyBatch:
    """Return the policies as one batch; it is cached, because rows rarely change from step to step."""
    return PolicyBatch(policies, device, eos_ids=eos_ids, forbidden_ids=forbidden_ids)


def _special(model: Any, mask_id: int, block_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the EOS ids and the forbidden ids of SGLang's model."""
    return _special_ids(
        model.model_path, model.revision, model.hf_config.architectures[0], mask_id, block_size
    )


@lru_cache(maxsize=1)
def _special_ids(
    path: str, revision: str | None, architecture: str, mask_id: int, block_size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the EOS ids and the forbidden ids that twotemp reads from a checkpoint.

    Args:
        path: The checkpoint's folder or hub id.
        revision: Its revision on the hub.
        architecture: SGLang's name of the architecture.
        mask_id: The id of the mask.
        block_size: Tokens of a block.
    """
    from twotemp.models.checkpoint import read_json
    from twotemp.models.families import FAMILIES as OURS
    from twotemp.models.load import locate
    from twotemp.models.token_ids import LoadOverrides, read_token_ids

    folder = locate(path, revision, check=lambda config: None, weights=False)
    config = read_json(folder / "config.json")
    facts, given = OURS[FAMILIES[architecture]].facts, LoadOverrides(mask_id=mask_id, block_size=block_size)
    _, token_ids = read_token_ids(folder, facts, config["vocab_size"], config, given)
    return token_ids.eos_ids, token_ids.forbidden_ids


def _abort(req: Any) -> None:
    """End a request with an error at the end of its block; other requests continue."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    req.to_finish = FINISH_ABORT("the model returned NaN or infinite logits; check the weights and the dtype")
