"""Every policy of ours inside an SGLang server, each request with its own: `--dllm-algorithm TwoTemp`.

SGLang computes the logits of a block, for SDAR and LLaDA-2 on as many GPUs as it likes; what is written and where
is for `PolicyBatch` to decide. A request says how in its `custom_params`:

    {"policy": "tlc:t_pos=1", "seed": 5, "request": "q", "index": 3, "trace": true}

and finds in the answer's `meta_info`, token by token, at which step each was written (`twotemp_steps`), how many
forward passes the answer up to its block took (`twotemp_forwards`), and with a trace confidence and entropy.
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

VERSION = "0.5.23"  # of SGLang: its inner interface changes from one to the next
NAME = "TwoTemp"
POLICY = "tct"  # where neither the request nor the server's --dllm-algorithm-config says
PARAMETERS = ("policy", "seed", "request", "index", "trace")
STEPS, FORWARDS, CONFIDENCE, ENTROPY = (
    f"twotemp_{name}" for name in ("steps", "forwards", "confidence", "entropy")
)
# By SGLang's names, our name of the family: whose special tokens are whose.
FAMILIES = {"LLaDA2MoeModelLM": "llada2_moe", "SDARForCausalLM": "sdar", "SDARMoeForCausalLM": "sdar_moe"}
# What a request may ask of an autoregressive model, and no policy of ours listens to.
UNHEARD = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "min_p", "min_new_tokens"), 0),
    "repetition_penalty": 1,
    **dict.fromkeys(("logit_bias", "json_schema", "regex", "ebnf", "structural_tag")),
}


def register() -> None:
    """What SGLang calls in each of its processes (the entry point in `sglang.srt.plugins`)."""
    from sglang.srt.dllm import algorithm
    from sglang.srt.dllm.algorithm.base import DllmAlgorithm
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    algorithm.algo_name_to_cls[NAME] = type(NAME, (Decisions, DllmAlgorithm), {})
    # SGLang tells an algorithm nothing of the requests behind its rows.
    target = "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new"
    HookRegistry.register(target, _introduce, HookType.AFTER)


def _introduce(made: Any, cls: type, batch: Any, *others: object, **more: object) -> None:
    made.twotemp_requests, made.twotemp_model = batch.reqs, batch.model_config


@dataclass(frozen=True)
class Wish:
    """How a request wants to be drawn."""

    policy: Policy
    key: int  # of its noise
    trace: bool

    @classmethod
    def of(cls, req: Any) -> Wish:
        """What its `custom_params` say; whoever gives no name draws by SGLang's own, which is random."""
        given = req.sampling_params.custom_params or {}
        if not isinstance(given, Mapping):
            raise UserError(f"they are names and values, not {given!r}")
        for name in given:
            if name not in PARAMETERS:
                raise unknown("custom parameter", str(name), PARAMETERS)
        said = given.get("policy", req.dllm_config.algorithm_config.get("policy", POLICY))
        policy = Policy.from_dict(said) if isinstance(said, Mapping) else parse(str(said))
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
    """The block that a request is at. SGLang may give it up and begin it anew: its noise is the same again, as steps
    count for the request only when it is finished."""

    req: Any
    wish: Wish
    begun: int  # steps taken before this block
    masked: list[int]  # its columns that are to be written
    written: dict[int, tuple[int, float, float]] = field(
        default_factory=dict
    )  # column: step, confidence, entropy
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
        """Nothing is masked any more: tell the request. SGLang's synchronous mode asks again until all rows end."""
        if self.finished or not self.masked:
            return
        self.finished, self.req.twotemp_steps = True, self.begun + self.since
        self.req.twotemp_forwards += self.since + 1
        told = self.req.customized_info = self.req.customized_info or {}
        steps, confidence, entropy = zip(*(self.written[at] for at in self.masked))
        columns = {STEPS: steps, FORWARDS: [self.req.twotemp_forwards] * len(steps)}
        if self.wish.trace:
            columns |= {CONFIDENCE: confidence, ENTROPY: entropy}
        for name, values in columns.items():
            told.setdefault(name, []).extend(values)


class Decisions:
    """SGLang's `DllmAlgorithm`, less the class itself, which is known only where SGLang is installed."""

    block_size: int
    mask_id: int

    @classmethod
    def configure_server_args(cls, server_args: Any) -> None:
        """Called once, when a server starts that wants us."""
        if (found := version("sglang")) != VERSION:
            raise UserError(
                f"twotemp decides inside SGLang {VERSION}, and this is {found}; install it with: "
                f"pip install sglang=={VERSION}"
            )

    @classmethod
    def validate_request(cls, req: Any) -> str | None:
        """What is wrong with a request, before anything is computed."""
        try:
            Wish.of(req)
        except (ValueError, TypeError, OverflowError) as error:  # a UserError is a ValueError
            return f"custom_params: {error}"
        if req.dllm_config.mask_id in req.origin_input_ids:
            return "the prompt contains the mask token; twotemp's policies continue a text here, and fill no gaps"
        asked = [
            name for name, off in UNHEARD.items() if (getattr(req.sampling_params, name, off) or off) != off
        ]
        asked += ["return_logprob"] * bool(req.return_logprob)
        if asked:
            return f"{', '.join(asked)}: not with {NAME}; a policy decides alone (custom_params)"
        return None

    def init_step_state(self, forward_batch: Any) -> list[Block]:
        """The blocks of all rows, begun. Of those that are under way SGLang keeps its own."""
        masked = (forward_batch.input_ids.view(-1, self.block_size) == self.mask_id).tolist()
        return [
            Block(req, _wish(req), req.twotemp_steps, [at for at, it in enumerate(row) if it])
            for req, row in zip(forward_batch.twotemp_requests, masked)
        ]

    def step(self, forward_batch: Any, full_logits: Tensor, states: Sequence[Block]) -> list[bool]:
        """Write what the policies decide into `input_ids`, in place. True for rows that had nothing left to write:
        the keys and values of this pass are those of their final tokens."""
        ids = forward_batch.input_ids.view(-1, self.block_size)
        masked = ids == self.mask_id
        count = masked.sum(1).cpu()  # the round trip
        lanes: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for row, block in enumerate(states):
            if count[row]:
                lanes[block.wish.policy.structure].append(row)
            else:
                block.finish()
        for rows in lanes.values():
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
        """For rows whose policies share a structure."""
        device, width = ids.device, self.block_size
        at = torch.tensor(rows, device=device)
        eos_ids, forbidden_ids = _special(forward_batch.twotemp_model, self.mask_id, width)
        policies = _stacked(tuple(b.wish.policy for b in blocks), device, eos_ids, forbidden_ids)
        open_, number = policies.candidates(masked[at], count[rows])
        index = compact(open_, int(number.sum()))
        where = (at[:, None] * width + torch.arange(width, device=device)).flatten()[index]
        keys, steps, since = torch.tensor(
            [[b.wish.key, b.begun + b.since, b.since] for b in blocks], device=device
        ).unbind(1)
        noise = Noise(keys, steps, forward_batch.positions.view(-1, width)[at].long())
        traced = any(b.wish.trace for b in blocks)
        drawn = policies.draw(noise, full_logits[where], open_, index, entropy=traced)
        memory = _together([b.memory for b in blocks]) if policies.remembers else None
        made, memory = policies.choose(noise, drawn, open_, memory=memory, block_step=since)
        finite = torch.ones(open_.numel(), dtype=torch.bool, device=device)
        sound = (
            finite.index_copy_(0, index, torch.isfinite(made.log_norm)).view_as(open_).all(1, keepdim=True)
        )
        # A row that the model has nothing to say about ends at once: what it writes, nobody will read.
        commit = torch.where(sound, made.commit, masked[at])
        tokens = torch.where(sound, made.tokens, int(self.mask_id == 0))
        ids[at] = torch.where(commit, tokens.to(ids.dtype), ids[at])

        entropy = torch.zeros_like(made.confidence) if made.entropy is None else made.entropy
        told = torch.stack([commit.float(), made.confidence, entropy, sound.expand_as(commit).float()]).cpu()
        for row, block in enumerate(blocks):
            block.write(*(plane[row].tolist() for plane in told[:3]))
            if memory is not None:
                block.memory = Memory(memory.positions[row], memory.weights[row], memory.stable[row])
            if not told[3, row, 0]:
                _give_up(block.req)


def _wish(req: Any) -> Wish:
    """Kept with the request, as are its counters."""
    if not hasattr(req, "twotemp_wish"):
        req.twotemp_wish, req.twotemp_steps, req.twotemp_forwards = Wish.of(req), 0, 0
    wish: Wish = req.twotemp_wish
    return wish


def _together(memories: Sequence[Memory | None]) -> Memory | None:
    """[B, W], where nothing is known (positions -1) of blocks that begin."""
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
    """The same from step to step, while the rows are."""
    return PolicyBatch(policies, device, eos_ids=eos_ids, forbidden_ids=forbidden_ids)


def _special(model: Any, mask_id: int, block_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that end a text, and those that nobody may write, of SGLang's `ModelConfig`."""
    return _special_ids(
        model.model_path, model.revision, model.hf_config.architectures[0], mask_id, block_size
    )


@lru_cache(maxsize=1)
def _special_ids(
    path: str, revision: str | None, architecture: str, mask_id: int, block_size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """As our own engine has them for this checkpoint."""
    from twotemp.models.checkpoint import read_json
    from twotemp.models.families import FAMILIES as OURS
    from twotemp.models.load import locate
    from twotemp.models.token_ids import LoadOverrides, read_token_ids

    folder = locate(path, revision, check=lambda config: None, weights=False)
    config = read_json(folder / "config.json")
    facts, given = OURS[FAMILIES[architecture]].facts, LoadOverrides(mask_id=mask_id, block_size=block_size)
    _, token_ids = read_token_ids(folder, facts, config["vocab_size"], config, given)
    return token_ids.eos_ids, token_ids.forbidden_ids


def _give_up(req: Any) -> None:
    """The request ends with an error at the end of its block; the others go on."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    req.to_finish = FINISH_ABORT("the model returned NaN or infinite logits; check the weights and the dtype")
