"""The server: OpenAI's API by its real client, the same samples as `sample`, and only 4xx for nonsense."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

import twotemp
from tests.helpers.serving_clients import CHAT, PROMPT, client_of, listening
from tests.helpers.tiny_checkpoints import byte_tokenizer, random_model
from twotemp.serving import Server
from twotemp.serving.replies import MASK


@pytest.fixture(scope="module")
def model():
    return twotemp.load("tiny")


@pytest.fixture(scope="module")
def openai_client(model):
    openai = pytest.importorskip("openai", reason="needs the real client")
    with listening(Server(model, slots=8)) as (_, port):
        yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0)


def test_the_example_of_the_page_about_serving(openai_client, capsys):
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    assert "http://127.0.0.1:8000/v1" in example
    exec(example.replace("http://127.0.0.1:8000/v1", str(openai_client.base_url)), {})
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_models(openai_client):
    assert [one.id for one in openai_client.models.list()] == ["tiny"]
    assert openai_client.models.retrieve("tiny").owned_by == "twotemp"


def test_completions_are_the_samples_of_the_same_seed(openai_client, model):
    found = openai_client.completions.create(
        model="tiny",
        prompt=[PROMPT, "3 7 12 -> 33"],
        n=5,
        seed=7,
        temperature=0.9,
        top_p=0.95,
        max_tokens=12,
        extra_body={"policy": "tlc", "t_pos": 1.5, "block": 6},
    )
    chosen = twotemp.policy("tlc", t_pos=1.5, t_token=0.9, top_p=0.95)
    prompts = [PROMPT, "3 7 12 -> 33"]
    expected = twotemp.sample(model, prompts, chosen, n=5, length=12, block=6, seed=7, chat=False)
    assert [c.text for c in found.choices] == [s.text for s in expected]
    assert [c.index for c in found.choices] == list(range(10))
    assert [c.twotemp["nfe"] for c in found.choices] == [s.nfe for s in expected]
    assert found.twotemp["seed"] == 7
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens


def test_chats_are_the_samples_of_the_same_seed(openai_client, model):
    for messages in (CHAT, [*CHAT, {"role": "assistant", "content": "10 + 15"}]):
        found = openai_client.chat.completions.create(
            model="tiny",
            messages=messages,
            n=4,
            seed=1,
            max_completion_tokens=12,
            extra_body={"t_pos": "inf", "threshold": 0.9},
        )
        expected = twotemp.sample(model, messages, "tct:t_pos=inf,threshold=0.9", n=4, length=12, seed=1)
        assert [c.message.content for c in found.choices] == [s.text for s in expected]
        assert {c.finish_reason for c in found.choices} <= {"stop", "length"}


def test_a_conversation_of_several_turns(openai_client, model):
    """Every turn is in the prompt: what the client said, and what it was answered."""
    turns = [{"role": "system", "content": "3 7"}, *CHAT]
    ask = {"model": "tiny", "seed": 5, "max_tokens": 8, "extra_body": {"policy": "tlc"}}
    prompts = []
    for follow_up in ("3 7 12 -> 33", "12 4 -> 16"):
        found = openai_client.chat.completions.create(messages=turns, **ask)
        (expected,) = twotemp.sample(model, turns, "tlc", length=8, seed=5)
        assert found.choices[0].message.content == expected.text
        assert found.usage.prompt_tokens == len(model.encode(turns))
        prompts.append(model.encode(turns))
        turns = [*turns, found.choices[0].message.model_dump(include={"role", "content"})]
        turns.append({"role": "user", "content": follow_up})
    said = model.tokens(" " + turns[2]["content"] + " ")
    assert any(prompts[1][n : n + len(said)] == said for n in range(len(prompts[0]), len(prompts[1])))


def test_streams_add_up_to_the_samples(openai_client, model):
    for stop in ([], [","]):
        stream = openai_client.chat.completions.create(
            model="tiny",
            messages=CHAT,
            n=6,
            seed=2,
            max_tokens=12,
            stop=stop,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"policy": "tlc"},
        )
        texts, usage = [""] * 6, None
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        expected = twotemp.sample(model, CHAT, "tlc", n=6, length=12, seed=2, stop=stop)
        assert texts == [s.text for s in expected]
        assert usage.completion_tokens > 0


def test_diffusing_streams_replace_the_text(openai_client, model):
    stream = openai_client.completions.create(
        model="tiny",
        prompt=PROMPT,
        max_tokens=12,
        seed=2,
        stream=True,
        extra_body={"diffusing": True, "policy": "tlc"},
    )
    texts, commits = [], {}
    for chunk in stream:
        texts.append(chunk.choices[0].text)
        commits |= {index: text for index, text, _ in chunk.choices[0].twotemp.get("commits", [])}
    (expected,) = twotemp.sample(model, PROMPT, "tlc", length=12, seed=2, chat=False)
    assert texts[-1] == expected.text
    masks = [text.count(MASK) for text in texts[:-1]]
    assert masks[0] == 11
    assert masks == sorted(masks, reverse=True)
    assert sorted(commits) == list(range(12))


def test_stop_suffix_logprobs_trace_and_eos_stop(openai_client, model):
    ask = {"model": "tiny", "prompt": PROMPT, "n": 6, "seed": 4, "max_tokens": 12}
    whole = twotemp.sample(model, PROMPT, "tct", n=6, length=12, seed=4, chat=False)
    # Words that the model writes, in the middle of what it writes.
    stops = sorted({one.text.split()[len(one.text.split()) // 2] for one in whole if one.text.strip()})[:2]
    stopped = openai_client.completions.create(**ask, stop=stops, logprobs=1)
    expected = twotemp.sample(
        model, PROMPT, "tct", n=6, length=12, seed=4, chat=False, stop=stops, trace=True
    )
    assert [c.text for c in stopped.choices] == [s.text for s in expected]
    has_stop = [any(stop in one.text for stop in stops) for one in whole]
    assert any(has_stop)
    assert all(c.finish_reason == "stop" for c, has in zip(stopped.choices, has_stop) if has)
    for choice, one in zip(stopped.choices, expected):
        # The token in which the stop string begins is the last one.
        assert "".join(choice.logprobs.tokens).strip().startswith(choice.text.strip())
        count = len(choice.logprobs.tokens)
        assert choice.logprobs.token_logprobs == pytest.approx(
            [math.log(c) for c in one.trace.confidence[:count]]
        )
    freed = openai_client.completions.create(**ask, stop=stops)
    assert [c.text for c in freed.choices] == [s.text for s in expected]

    traced = openai_client.completions.create(**ask, extra_body={"trace": True, "eos_stop": True})
    expected = twotemp.sample(
        model, PROMPT, "tct", n=6, length=12, seed=4, chat=False, eos_stop=True, trace=True
    )
    assert [tuple(c.twotemp["trace"]["steps"]) for c in traced.choices] == [s.trace.steps for s in expected]

    filled = openai_client.completions.create(**ask, suffix="= 45")
    row = [*model.encode(PROMPT, chat=False), *[model.mask_id] * 12, *model.tokens("= 45")]
    expected = twotemp.infill(model, row, "tct", n=6, seed=4)
    assert [c.text for c in filled.choices] == [model.decode(s.tokens) for s in expected]


def test_chat_logprobs_are_those_at_commit(openai_client, model):
    found = openai_client.chat.completions.create(
        model="tiny", messages=CHAT, seed=4, max_tokens=12, logprobs=True
    )
    (one,) = twotemp.sample(model, CHAT, "tct", length=12, seed=4, trace=True)
    entries = found.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries).strip() == one.text
    assert entries[0].logprob == pytest.approx(math.log(one.trace.confidence[0]))


def test_errors_are_openai_s_and_name_the_nearest(openai_client):
    import openai

    ask = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12}
    for extra, name, near in [
        ({"policy": "tctt"}, "policy", "'tct'"),
        ({"t_poss": 1}, "t_poss", "'t_pos'"),
        ({"policy": "lc", "t_pos": 1}, "policy", "parameter of policy 'lc'"),
        ({"policy": "lc", "repel": 2}, "policy", "whole groups, which a server cannot do"),
    ]:
        with pytest.raises(openai.BadRequestError) as caught:
            openai_client.completions.create(**ask, extra_body=extra)
        assert caught.value.param == name
        assert near in str(caught.value)
    with pytest.raises(openai.NotFoundError, match="did you mean 'tiny'"):
        openai_client.completions.create(**ask | {"model": "tinny"})


def test_fields_without_effect_are_accepted_and_reported(model):
    body = {"messages": [{"role": "user", "content": PROMPT, "name": "ann"}], "max_tokens": 8, "seed": 1}
    extra = {"metadata": {"a": "b"}, "reasoning_effort": "low", "user": "ann"}
    extra |= {"parallel_tool_calls": True, "prediction": {"type": "content", "content": "45"}}
    neutral = {"tool_choice": "none", "service_tier": "auto", "store": False, "modalities": ["text"]}
    with client_of(model) as client:
        plain = client.post("/v1/chat/completions", json={**body, "messages": CHAT}).json()
        answer = client.post("/v1/chat/completions", json={**body, **extra, **neutral})
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"] == plain["choices"][0]["message"]
        assert answer.json()["twotemp"]["ignored"] == [*extra, "messages.name"]
        assert "ignored" not in plain["twotemp"]
        for asked in ({"tool_choice": "required"}, {"store": True}, {"echo": 0}, {"audio": {}}):
            refused = client.post("/v1/chat/completions", json={**body, **asked})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == next(iter(asked))


def test_the_responses_api_is_refused_with_the_endpoint_to_use(openai_client):
    import openai

    with pytest.raises(openai.NotFoundError, match="/v1/chat/completions"):
        openai_client.responses.create(model="tiny", input=PROMPT)


def test_a_response_format_is_refused_with_what_to_do_instead(openai_client):
    """The instructor library sends these in Mode.JSON and Mode.JSON_SCHEMA; Mode.MD_JSON sends messages only."""
    import openai

    for kind in (
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
    ):
        with pytest.raises(openai.BadRequestError, match="ask for JSON in the prompt") as caught:
            openai_client.chat.completions.create(model="tiny", messages=CHAT, response_format=kind)
        assert caught.value.param == "response_format"


def test_instructor_works_in_the_mode_that_asks_for_json_in_the_prompt(monkeypatch):
    """With a model that writes JSON (here by its `decode`); the other modes are refused, as docs/serve.md says."""
    instructor = pytest.importorskip("instructor", reason="needs the library")
    openai = pytest.importorskip("openai", reason="needs the real client")
    import pydantic  # which instructor depends on

    tokenizer = byte_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}")
    size = dict.fromkeys(("vocab_size", "embedding_size"), len(tokenizer))
    ids = {"mask_token_id": tokenizer.mask_token_id, "max_sequence_length": 4096}
    model = random_model("llada", tokenizer, {**size, **ids})
    monkeypatch.setattr(type(model), "decode", lambda *_: '```json\n{"total": 45}\n```END')
    answer = pydantic.create_model("Answer", total=(int, ...))
    with listening(Server(model, slots=2)) as (_, port):
        plain = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0)

        def ask(mode):
            client = instructor.from_openai(plain, mode=instructor.Mode[mode])
            fields = {"model": "llada", "messages": CHAT, "max_tokens": 16, "stop": ["END"]}
            return client.chat.completions.create(**fields, response_model=answer, max_retries=1)

        assert ask("MD_JSON").total == 45
        for mode, field in (
            ("JSON", "response_format"),
            ("JSON_SCHEMA", "response_format"),
            ("TOOLS", "tool"),
        ):
            with pytest.raises(Exception, match=f"400 - {field}.* not supported"):
                ask(mode)


@pytest.mark.parametrize(
    "host",
    ["[::1].evil.com", "[::1]evil.com:80", "[::1", "evil.com", "", "localhost:80:80", "localhost:a.evil.com"],
)
def test_a_host_that_only_looks_like_loopback_is_refused(model, host):
    with client_of(model, hosts=["localhost", "::1"]) as client:
        assert client.get("/health", headers={"host": "[::1]:8000"}).status_code == 200
        assert client.get("/health", headers={"host": host}).status_code == 403
