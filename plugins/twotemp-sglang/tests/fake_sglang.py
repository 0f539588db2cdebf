"""A fake of SGLang 0.5.23: the modules that the plug-in imports, and an engine with SGLang's two schedules.

The synchronous schedule steps until all rows of a batch have finished their block; FDFO lets every row continue
alone.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from twotemp.models.base import LanguageModel
from twotemp.policies import parse
from twotemp.records import Request

HOOKS: dict[str, Any] = {}
ALGORITHMS: dict[str, type] = {}
LENGTH = 10
PROMPTS = {"a": (1, 2), "b": (3, 4, 5, 6, 7)}  # 2 + 10 ends with a block, 5 + 10 in the middle of one


def wanted(*specs: str, n: int = 1) -> list[Request]:
    """Return requests of `n` samples of both prompts by each policy."""
    return [
        Request(name, prompt, parse(spec), LENGTH, seed=5, index=index, trace=True)
        for spec in specs
        for name, prompt in PROMPTS.items()
        for index in range(n)
    ]


class DllmAlgorithm:
    """SGLang's base class of algorithms."""

    def __init__(self, config: Any) -> None:
        self.block_size, self.mask_id, self.fdfo = config.block_size, config.mask_id, config.fdfo

    def max_steps(self, block_size: int) -> int:
        return block_size + 1

    def run(self, forward: Any, batch: Any, carried: list[Any]) -> tuple[list[bool], list[Any]]:
        fresh = self.init_step_state(batch)
        states = [new if old is None else old for old, new in zip(carried, fresh)]
        if self.fdfo:
            done = self.step(batch, forward(batch), states)
            return done, [None if ended else state for ended, state in zip(done, states)]
        for _ in range(self.max_steps(self.block_size)):
            if all(self.step(batch, forward(batch), states)):
                break
        return [True] * len(states), [None] * len(states)


class Abort:
    """SGLang's reason for an aborted request."""

    def __init__(self, message: str) -> None:
        self.message = message


def install(monkeypatch: Any) -> type:
    """Install the fake as `sglang`, register the plug-in with it, and return the algorithm."""
    from twotemp_sglang import NAME, server

    modules = {
        "sglang.srt.dllm.algorithm": {"algo_name_to_cls": ALGORITHMS},
        "sglang.srt.dllm.algorithm.base": {"DllmAlgorithm": DllmAlgorithm},
        "sglang.srt.plugins.hook_registry": {
            "HookRegistry": SimpleNamespace(register=lambda target, hook, kind: HOOKS.update({target: hook})),
            "HookType": SimpleNamespace(AFTER="after"),
        },
        "sglang.srt.managers.schedule_batch": {"FINISH_ABORT": Abort},
    }
    for path, names in modules.items():
        parts = path.split(".")
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            if name not in sys.modules or not hasattr(sys.modules[name], "fake"):
                monkeypatch.setitem(sys.modules, name, ModuleType(name))
                sys.modules[name].fake = True  # type: ignore[attr-defined]
            if depth > 1:
                setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], sys.modules[name])
        vars(sys.modules[path]).update(names)
    monkeypatch.setattr(server, "version", lambda name: server.VERSION)
    server.register()
    return ALGORITHMS[NAME]


def req(
    prompt: tuple[int, ...], length: int, config: Any, rid: str = "random", **custom: Any
) -> SimpleNamespace:
    """Return a request as SGLang's scheduler has it.

    Args:
        prompt: Token ids.
        length: New tokens.
        config: The algorithm's configuration.
        rid: SGLang's request id.
        **custom: The request's `custom_params`.
    """
    return SimpleNamespace(
        rid=rid,
        origin_input_ids=list(prompt),
        output_ids=[],
        block=None,
        state=None,
        customized_info=None,
        to_finish=None,
        dllm_config=config,
        return_logprob=False,
        sampling_params=SimpleNamespace(custom_params=custom, max_new_tokens=length),
    )


def asked(request: Request, config: Any) -> SimpleNamespace:
    """Return SGLang's form of what `twotemp_sglang.client` sends for a request."""
    custom = {"policy": request.policy.to_dict(), "seed": request.seed, "request": request.id}
    return req(request.prompt, request.length, config, **custom, index=request.index, trace=request.trace)


class Engine:
    """A fake engine that writes whole blocks and recomputes keys and values, so that no cache can be wrong."""

    def __init__(
        self, algorithm: type, model: LanguageModel, folder: Any, *, fdfo: bool, **config: Any
    ) -> None:
        self.model, self.width = model, model.block_size
        settings = SimpleNamespace(
            block_size=self.width, mask_id=model.mask_id, fdfo=fdfo, algorithm_config=config
        )
        self.config, self.algorithm = settings, algorithm(settings)
        self.about = SimpleNamespace(
            model_path=str(folder),
            revision=None,
            hf_config=SimpleNamespace(architectures=["SDARForCausalLM"]),
        )

    def generate(self, reqs: list[Any], rows: int = 4) -> list[Any]:
        """Run the requests to their end, at most `rows` at a time."""
        waiting, running = list(reqs), []
        while waiting or running:
            while waiting and len(running) < rows:
                running.append(waiting.pop(0))
            self._round(running)
            running = [row for row in running if not self._ended(row)]
        return reqs

    def _ended(self, row: Any) -> bool:
        return len(row.output_ids) >= row.sampling_params.max_new_tokens

    def _start(self, row: Any) -> int:
        done = len(row.origin_input_ids) + len(row.output_ids)
        return done // self.width * self.width

    def _round(self, running: list[Any]) -> None:
        for row in running:
            if row.block is None:
                known = (row.origin_input_ids + row.output_ids)[self._start(row) :]
                row.block = known + [self.model.mask_id] * (self.width - len(known))
        starts = [self._start(row) for row in running]
        batch = SimpleNamespace(
            batch_size=len(running),
            input_ids=torch.tensor([token for row in running for token in row.block]),
            positions=torch.tensor([s + i for s in starts for i in range(self.width)], dtype=torch.int32),
        )
        scheduled = SimpleNamespace(reqs=running, model_config=self.about)
        (hook,) = HOOKS.values()
        hook(batch, type(batch), scheduled, None)
        done, states = self.algorithm.run(self._forward, batch, [row.state for row in running])
        for row, ended, state, block in zip(
            running, done, states, batch.input_ids.view(-1, self.width).tolist()
        ):
            row.state, row.block = state, block
            if ended:
                known = len(row.origin_input_ids) + len(row.output_ids) - self._start(row)
                row.output_ids, row.block = row.output_ids + block[known:], None

    @torch.inference_mode()
    def _forward(self, batch: Any) -> torch.Tensor:
        logits = []
        for row, block in zip(batch.twotemp_requests, batch.input_ids.view(-1, self.width)):
            before = (row.origin_input_ids + row.output_ids)[: self._start(row)]
            ids = torch.cat([torch.tensor(before, dtype=torch.int64), block])[None]
            want = torch.arange(ids.shape[1])[None] >= len(before)
            logits.append(self.model.logits(ids, None, want))
        return torch.cat(logits)
