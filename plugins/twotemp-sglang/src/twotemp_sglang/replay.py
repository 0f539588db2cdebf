"""What trainers that replay trajectories read of an answer (DARE's CJ-GRPO), from what the server returns.

SGLang passes per-token lists through, and no other fields, so these are put together by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from twotemp.errors import UserError
from twotemp.records import first_eos

STEP_MAPS = "step_maps"  # per-token steps, counted from 1
CONTRACT = 1  # of the fields below


def replay_fields(answer: Mapping[str, Any], eos_ids: Collection[int]) -> dict[str, Any]:
    """Return the `dllm_replay_*` fields of an answer that was drawn with `"ignore_eos": true`.

    Such an answer has the whole of its last block, which the replay needs, also after the end of the text.

    >>> answer = {"output_ids": [7, 2, 9, 9], "meta_info": {"step_maps": [2, 1, 3, 3]}}
    >>> replay_fields(answer, eos_ids={2})["dllm_stop_length"]
    2

    Args:
        answer: SGLang's answer to `/generate`.
        eos_ids: The model's end tokens.
    """
    tokens, steps = list(answer["output_ids"]), answer["meta_info"].get(STEP_MAPS)
    if steps is None or len(steps) != len(tokens):
        raise UserError(
            f"the answer has {len(tokens)} tokens and {len(steps or ())} {STEP_MAPS}: start the server with "
            "--dllm-algorithm TwoTemp, and ask with ignore_eos=true"
        )
    return {
        "dllm_replay_token_ids": tokens,
        "dllm_replay_step_maps": list(steps),
        "dllm_stop_length": min(first_eos(tokens, eos_ids) + 1, len(tokens)),
        "dllm_replay_contract_version": CONTRACT,
    }
