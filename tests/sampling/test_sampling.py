"""The front door: what a prompt may be, what keys its noise, what comes back, and what is refused."""

from __future__ import annotations

import html
from dataclasses import replace

import numpy as np
import pytest
import torch

import twotemp
from tests.helpers.tiny_checkpoints import MASK, random_model, word_tokenizer
from tests.helpers.toy import ToyModel
from theory.table import TableModel
from twotemp.backends import local
from twotemp.engine import states
from twotemp.errors import UserError
from twotemp.models.base import language_model
from twotemp.records import Request
from twotemp.sampling import requests as sampling_requests
from twotemp.sampling.api import Samples

TCT = twotemp.policy("tct", threshold=0.3, t_pos=0.2)


@pytest.fixture(scope="module")
def model() -> ToyModel:
    return ToyModel()


@pytest.fixture(scope="module")
def chatty():
    return random_model("llada", word_tokenizer())


def tokens(samples):
    return [one.tokens for one in samples]


# --- noise ----------------------------------------------------------------------------------------------------


def test_a_sample_does_not_depend_on_the_other_prompts(model):
    a, b, c = [5, 6], [7, 8, 9], [10]
    both = twotemp.sample(model, [a, b, c], TCT, n=2, length=6)
    assert tokens(both[2:4]) == tokens(twotemp.sample(model, [b], TCT, n=2, length=6))
    assert tokens(both[4:]) + tokens(both[:2]) == tokens(twotemp.sample(model, [c, a], TCT, n=2, length=6))


def test_a_prompt_given_twice_gets_other_samples_the_second_time(model):
    twice = twotemp.sample(model, [[5, 6], [5, 6]], TCT, n=3, length=12)
    assert tokens(twice[:3]) != tokens(twice[3:])
    assert tokens(twice[:3]) == tokens(twotemp.sample(model, [5, 6], TCT, n=3, length=12))
    assert len({one.request for one in twice}) == 2


def test_requests_may_be_named_and_the_name_is_what_keys_the_noise(model):
    named = twotemp.sample(model, [[5, 6], [7, 8]], TCT, length=12, ids=["x", "y"])
    assert [one.request for one in named] == ["x", "y"]
    assert tokens(named[1:]) == tokens(twotemp.sample(model, [7, 8], TCT, length=12, ids=["y"]))
    assert tokens(named[1:]) != tokens(twotemp.sample(model, [7, 8], TCT, length=12))


def test_more_samples_extend_fewer_and_another_seed_changes_them(model):
    few, many = (twotemp.sample(model, [5, 6], TCT, n=n, length=12) for n in (2, 5))
    assert tokens(few) == tokens(many[:2])
    assert tokens(few) != tokens(twotemp.sample(model, [5, 6], TCT, n=2, length=12, seed=1))


# --- prompts --------------------------------------------------------------------------------------------------


def test_a_prompt_is_ids_in_any_container(model):
    expected = tokens(twotemp.sample(model, [[5, 6, 7]], TCT, length=6))
    row = [5, 6, 7]
    for prompt in (row, tuple(row), np.array(row), torch.tensor(row), [np.int64(i) for i in row]):
        assert tokens(twotemp.sample(model, prompt, TCT, length=6)) == expected
        assert tokens(twotemp.sample(model, [prompt], TCT, length=6)) == expected
    for rows in (np.array([row, row]), torch.tensor([row, row])):
        assert tokens(twotemp.sample(model, rows, TCT, length=6))[:1] == expected


def test_a_prompt_is_text_or_messages(chatty):
    chat = [{"role": "user", "content": "a b"}]
    text, messages, several = (
        twotemp.sample(chatty, prompt, "lc", length=4) for prompt in ("a b", chat, [chat, "c"])
    )
    assert text[0].prompt == messages[0].prompt == several[0].prompt == (0, 1, 4)
    assert several[1].prompt == (2, 4)
    assert twotemp.sample(chatty, "a b", "lc", length=4, chat=False)[0].prompt == (0, 1)


def test_a_policy_may_be_spelled(model):
    assert tokens(twotemp.sample(model, [5], "tct:threshold=0.3,t_pos=0.2", length=6)) == tokens(
        twotemp.sample(model, [5], TCT, length=6)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": [1.5, 2.0]}, "token id must be an integer >= 0, not 1.5"),
        ({"prompts": np.array([1.5])}, "token id must be"),
        ({"prompts": [[1], [2.5]]}, "token id must be"),
        ({"prompts": [True]}, "token id must be"),
        ({"prompts": []}, "no prompt given"),
        ({"prompts": None}, "a prompt is text"),
        ({"prompts": 7}, "a prompt is text"),
        ({"prompts": {"role": "user", "content": "5"}}, "a prompt is text"),
        ({"prompts": {5, 6}}, "a prompt is text"),
        ({"prompts": b"\5\6"}, "a prompt is text"),
        ({"prompts": [b"\5\6"]}, "a prompt is text"),
        ({"prompts": [[]]}, "prompt is empty"),
        ({"prompts": [99]}, "outside the vocabulary"),
        ({"prompts": "text"}, "no tokenizer"),
        ({"prompts": [[5]] * 2, "ids": ["x"]}, "2 different strings"),
        ({"ids": ["x", "x"], "prompts": [[5], [6]]}, "2 different strings"),
        ({"ids": [3]}, "1 different strings"),
        ({"policy": None}, "a policy is a Policy, a Portfolio or a spelling"),
        ({"policy": "tcd"}, "unknown policy 'tcd'"),
        ({"policy": "tct:t_pos=x"}, "t_pos"),
        ({"n": "4"}, "n must be an integer >= 1, not '4'"),
        ({"n": 0}, "n must be"),
        ({"n": True}, "n must be"),
        ({"n": 1.0}, "n must be"),
        ({"length": 1.5}, "length must be an integer"),
        ({"length": "8"}, "length must be"),
        ({"length": -1}, "length must be"),
        ({"length": 1000}, "exceed the context"),
        ({"block": 0}, "block must be"),
        ({"block": 2.0}, "block must be"),
        ({"seed": None}, "seed must be an integer, not None"),
        ({"seed": "x"}, "seed must be an integer, not 'x'"),
        ({"stop": ["", "a"]}, "stop must be"),
        ({"stop": [3]}, "stop must be"),
        ({"stop": 3}, "stop must be"),
        ({"batch_size": "2"}, "batch_size must be an integer >= 1, not '2'"),
        ({"batch_size": 1.5}, "batch_size must be"),
        ({"batch_size": 2, "columns": "x"}, "columns must be"),
        ({"model": 7}, "or twotemp.wrap returns, not 7"),
    ],
)
@pytest.mark.parametrize("front", [twotemp.sample, twotemp.stream])
def test_wrong_types_give_one_clear_error_before_anything_runs(model, front, change, message):
    before = model.calls
    arguments = {"model": model, "prompts": [5, 6], "policy": TCT, "length": 4, **change}
    with pytest.raises(UserError, match=message):
        front(**arguments)
    assert model.calls == before


def test_every_prompt_is_checked_before_the_first_is_drawn(model):
    before = model.calls
    with pytest.raises(UserError, match="outside the vocabulary"):
        twotemp.sample(model, [[5], [99]], TCT, n=10**9, length=4)
    assert model.calls == before


# --- lengths and stops ----------------------------------------------------------------------------------------


def test_the_default_length_fits_the_context(chatty):
    tiny = twotemp.load("tiny")
    assert len(twotemp.sample(tiny, "3 7 12 -> 33", "ct:t_token=0")[0].tokens) == 32
    table = TableModel([((0, 1, 2, 0), 1.0)], vocab_size=4, mask_id=3)
    assert twotemp.sample(table, [0], "lc")[0].tokens == (1, 2, 0), "all that the context leaves"
    wide = ToyModel()
    wide.max_length = 4096
    assert sampling_requests._length(language_model(wide), [1], None, False) == 256
    with pytest.raises(UserError, match="leave no room"):
        twotemp.sample(table, [0, 1, 2, 0], "lc")


def test_stop_strings_cut_the_text(chatty):
    (whole,) = twotemp.sample(chatty, "a", "tct:eos=never", length=24)
    words = whole.text.split()
    (cut,) = twotemp.sample(chatty, "a", "tct:eos=never", length=24, stop=[f" {words[1]}"])
    assert cut.tokens == whole.tokens
    assert cut.text == whole.text[: whole.text.index(f" {words[1]}")]
    assert (whole.finish, cut.finish) == ("length", "stop")
    assert twotemp.sample(chatty, "a", "tct:eos=never", length=24, stop=words[0])[0].text == ""


# --- streams --------------------------------------------------------------------------------------------------


def test_a_stream_yields_text_while_it_is_written(chatty):
    options = {"n": 3, "length": 24, "seed": 5}
    expected = twotemp.sample(chatty, ["a", "b c"], "ar", **options)
    events = list(twotemp.stream(chatty, ["a", "b c"], "ar", **options))
    for sample in expected:
        own = [event for event in events if (event.request, event.index) == (sample.request, sample.index)]
        assert "".join(event.piece for event in own) == sample.text
        assert [event.text for event in own] == [
            "".join(event.piece for event in own[: n + 1]) for n in range(len(own))
        ]
        assert [event.sample is None for event in own] == [True] * (len(own) - 1) + [False]
        assert own[-1].sample == replace(sample, seconds=own[-1].sample.seconds)
    assert sum(event.sample is None for event in events) > 20, "in pieces"
    first = next(n for n, event in enumerate(events) if event.sample is not None)
    assert len({event.index for event in events[:first]}) == 3, "rows are written side by side"


@pytest.mark.parametrize("policy", ["tlc", "tct", "t2m"])
def test_a_stream_ends_with_the_text_of_sample_whatever_the_order(chatty, policy):
    (expected,) = twotemp.sample(chatty, "a", policy, length=24, stop=["c", " b a"])
    events = list(twotemp.stream(chatty, "a", policy, length=24, stop=["c", " b a"]))
    assert "".join(event.piece for event in events) == expected.text == events[-1].text
    assert events[-1].sample.finish == expected.finish


def test_every_text_is_a_string(model, chatty):
    """For users who type-check their programs."""
    texts: list[str] = [sample.text for sample in twotemp.sample(chatty, "a", "lc", n=2, length=4)]
    texts += [sample.text for sample in twotemp.sample(model, [5], "lc", length=3)]
    assert all(isinstance(text, str) for text in texts)
    assert texts[2] == " ".join(map(str, twotemp.sample(model, [5], "lc", length=3)[0].tokens))


def test_infill_fills_the_masks_of_a_text_in_chat_format(chatty):
    row = [*chatty.encode("a c"), MASK, MASK]
    (found,) = twotemp.infill(chatty, row, "lc")
    assert found.text.startswith("a c")
    assert found.text == chatty.decode([*row[:-2], *found.tokens], cut=False)


# --- laziness -------------------------------------------------------------------------------------------------


def test_a_huge_n_starts_at_once(model, monkeypatch):
    made = []

    def counted(record, **changes):
        made.extend([1] if isinstance(record, Request) else [])
        return original(record, **changes)

    original = sampling_requests.replace
    monkeypatch.setattr(sampling_requests, "replace", counted)
    endless = twotemp.stream(model, [5, 6], TCT, n=100_000_000, length=4, batch_size=4)
    assert len(made) == 1, "the first request is checked, the others do not exist yet"
    made.clear()
    first = [next(endless) for _ in range(3)]
    assert len(made) <= local.LARGEST_CHUNK + 1
    assert {one.index for one in first} <= set(range(8))


def test_chunks_change_nothing(model, monkeypatch):
    expected = twotemp.sample(model, [[5], [6, 7]], TCT, n=9, length=4)
    for name in ("CHUNK", "LARGEST_CHUNK"):
        monkeypatch.setattr(local, name, 4)
    found = twotemp.sample(model, [[5], [6, 7]], TCT, n=9, length=4)
    assert [replace(one, seconds=0) for one in found] == [replace(one, seconds=0) for one in expected]


def test_callbacks_see_every_sample_and_step(model):
    heard, steps = [], []
    twotemp.sample(model, [5], TCT, n=3, length=4, on_sample=heard.append, on_step=steps.append)
    assert sorted(one.index for one in heard) == [0, 1, 2]
    assert steps


# --- what comes back ------------------------------------------------------------------------------------------


def test_samples_print_briefly(chatty):
    found = twotemp.sample(chatty, ["a", "b"], "tct", n=40, length=24)
    assert isinstance(found, list)
    lines = repr(found).splitlines()
    assert lines[0] == "Samples: 80"
    assert len(lines) == 3
    assert "distinct of 40" in lines[1]
    assert all(len(line) < 250 for line in lines)
    assert isinstance(found[:3], Samples)
    assert "\n" not in repr(found[0])
    assert len(repr(found[0])) < 150
    assert found[0].text[:20] in repr(found[0])
    many = twotemp.sample(chatty, ["a"] * 20, "tct", length=4)
    assert len(repr(many).splitlines()) == 10


def test_a_notebook_shows_the_distinct_answers_and_the_trace(chatty):
    plain = twotemp.sample(chatty, "a", "lc:t_token=0", n=3, length=8)
    page = plain._repr_html_()
    assert "<td>3</td>" in page
    assert "iframe" not in page
    traced = twotemp.sample(chatty, "a", "lc:t_token=0", n=3, length=8, trace=True)._repr_html_()
    assert traced.count("<iframe") == 1
    inside = traced.split('srcdoc="')[1].split('" style=')[0]
    assert '"' not in inside
    assert html.unescape(inside).lstrip().lower().startswith("<!doctype html>")
    dangerous = Samples([replace(plain[0], text="<script>alert(1)</script>")])
    assert "<script>" not in dangerous._repr_html_()


@pytest.mark.parametrize(
    ("keyword", "advice"),
    [
        ("temperature", "t_token in the policy's spelling"),
        ("max_new_tokens", "use length"),
        ("num_return_sequences", "use n"),
        ("t_pos", "tct:t_pos="),
        ("do_sample", "use t_token in the policy's spelling"),
        ("remasking", "use policy, such as"),
    ],
)
@pytest.mark.parametrize("function", [twotemp.sample, twotemp.stream, twotemp.infill])
def test_keywords_of_other_libraries_name_ours(function, keyword, advice):
    if function is twotemp.infill and keyword == "max_new_tokens":
        advice = "leave it out"  # the masks say what is written
    with pytest.raises(UserError, match=advice):
        function(twotemp.load("tiny"), "a", "tct", **{keyword: 1})


@pytest.mark.parametrize(
    ("prompts", "ids", "named"),
    [
        ("3 7 12 -> 33", None, "the prompt '3 7 12 -> 33': "),
        ([{"role": "user", "content": "3 7 -> 10"}], None, "the prompt '3 7 -> 10': "),
        ([["3", "4"], [4] * 40], None, "a token id must be an integer"),
        ([[3], [4] * 40], None, "prompt 1 of 2, token ids [3]: "),
        (["3 7 -> 10", "3 7 12 -> 33"], ["a", "b"], "request 'a': "),
    ],
)
def test_an_error_names_the_prompt_rather_than_a_hash(prompts, ids, named):
    with pytest.raises(UserError) as error:
        twotemp.sample(twotemp.load("tiny"), prompts, "lc", length=500, ids=ids)
    assert str(error.value).startswith(named)


def test_an_error_is_short_whatever_the_prompt():
    with pytest.raises(UserError, match=r"no token for 'xxx[x]+\.\.\.'") as error:
        twotemp.sample(twotemp.load("tiny"), "x" * 100_000, "lc")
    assert len(str(error.value)) < 300


def test_a_sample_without_a_trace_is_named_by_its_text():
    (sample,) = twotemp.sample(twotemp.load("tiny"), "3 7 -> 10", "lc:t_token=0", length=8)
    with pytest.raises(UserError, match="has no trace") as error:
        next(states(sample, 1))
    assert sample.text in str(error.value)
    assert sample.request not in str(error.value)


def test_an_error_while_sampling_names_the_prompt():
    class Broken(torch.nn.Module):
        def forward(self, input_ids):
            return torch.full((*input_ids.shape, 6), torch.nan)

    model = twotemp.wrap(Broken(), mask_id=5)
    with pytest.raises(UserError, match=r"logits for prompt 2 of 2, token ids \[1, 2, 3\], sample 0"):
        twotemp.sample(model, [[0], [1, 2, 3]], "lc", length=4, batch_size=1)


def test_a_misspelled_keyword_is_refused():
    model = twotemp.load("tiny")
    for function in (twotemp.sample, twotemp.stream, twotemp.infill):
        with pytest.raises(TypeError, match="'cashe'; did you mean 'cache'"):
            function(model, "3 7 -> 10", "lc", cashe="dual")
    with pytest.raises(TypeError, match="'chat'"):
        twotemp.infill(model, "3 7 -> 10", "lc", chat=True)


def test_a_name_is_a_model_that_is_loaded_once(monkeypatch):
    model = twotemp.load("tiny")
    expected = twotemp.sample(model, "3 7 -> 10", TCT, n=2, length=8)
    assert [s.text for s in twotemp.sample("tiny", "3 7 -> 10", TCT, n=2, length=8)] == [
        s.text for s in expected
    ]
    assert twotemp.score("tiny", expected, estimator="ar") == twotemp.score(model, expected, estimator="ar")
    monkeypatch.setattr("twotemp.models.load.family", None)  # a second load would fail
    *_, last = twotemp.stream("tiny", "3 7 -> 10", TCT, length=8)
    assert last.sample.tokens == expected[0].tokens
    with pytest.raises(UserError, match="tinny"):
        twotemp.infill("tinny", "3 7 -> 10", TCT)
