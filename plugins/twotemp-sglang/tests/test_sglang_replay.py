"""The fields that trainers on SGLang replay, from an answer of the plug-in."""

from __future__ import annotations

import pytest

from twotemp.errors import UserError
from twotemp_sglang.replay import replay_fields

ANSWER = {"output_ids": [7, 8, 2, 9], "meta_info": {"step_maps": [2, 1, 3, 4], "twotemp_steps": [1, 0, 2, 3]}}


def test_the_last_block_stays_whole_and_the_text_ends_at_its_eos():
    assert replay_fields(ANSWER, {2}) == {
        "dllm_replay_token_ids": [7, 8, 2, 9],
        "dllm_replay_step_maps": [2, 1, 3, 4],
        "dllm_stop_length": 3,
        "dllm_replay_contract_version": 1,
    }
    assert replay_fields(ANSWER, {5})["dllm_stop_length"] == 4


@pytest.mark.parametrize("steps", [{}, {"step_maps": [1, 2]}])
def test_an_answer_without_all_steps_is_refused(steps):
    with pytest.raises(UserError, match="ignore_eos=true"):
        replay_fields({**ANSWER, "meta_info": steps}, {2})
