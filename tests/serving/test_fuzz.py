"""Bodies that no client should send: 4xx for all but the valid ones, and nothing left behind."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")
pytest.importorskip("httpx", reason="needs httpx, Starlette's test client")

import twotemp
from tests.helpers.serving_clients import CHAT, PROMPT, client_of


@pytest.fixture(scope="module")
def client():
    with client_of(twotemp.load("tiny"), hosts=["localhost"]) as made:
        yield made


VALUES = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        12,
        3.5,
        -0.5,
        1e308,
        10**30,
        -(10**400),
        "",
        "inf",
        "-inf",
        "nan",
        "lc",
    ),
    *(
        "tct:t_pos=2",
        f"lc:top_k={10**30}",
        "tct:",
        ":",
        "=,",
        PROMPT,
        "\x00",
        "\ud800",
        "é" * 40,
        "§",
        [],
        {},
        [[]],
        [{}],
        [1, 2],
        [[1], [2]],
    ),
    *(
        [10**30],
        [True],
        [PROMPT, 3],
        {"role": "user"},
        CHAT,
        [{"role": "user", "content": None}],
        [None],
        ["a", ""],
    ),
    *(
        [{"role": "system", "content": []}],
        [{"role": "x", "content": "1"}],
        [{"role": "user", "content": "", "z": 1}],
    ),
]
NAMES = (
    "model prompt messages n seed temperature top_p stop max_tokens stream stream_options logprobs top_logprobs "
    "suffix user policy block trace eos_stop diffusing t_pos threshold k steps top_k eos kl_steps kl_bound inclusive "
    "entropy_bound schedule max_completion_tokens best_of echo logit_bias tools name wat"
).split()

PLAUSIBLE = {
    "n": [1, 2],
    "temperature": [0, 0.7],
    "top_p": [0.5, 1],
    "stop": ["=", [","]],
    "stream": [True],
    "logprobs": [True],
    "policy": ["tlc", "tct:t_pos=2", "soft-ar"],
    "t_pos": [0, 1, "inf"],
    "block": [2],
    "trace": [True],
    "eos_stop": [True],
    "user": ["ann"],
}


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_fuzzed_bodies_are_answered_with_4xx_unless_they_are_valid(client, count):
    noise = random.Random(0)
    statuses = []
    for number in range(count):
        path, base = noise.choice(
            [("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", {"messages": CHAT})]
        )
        body = base | {"max_tokens": 3, "seed": number}
        for name in noise.sample(NAMES, noise.randint(0, 2)):
            body[name] = noise.choice(PLAUSIBLE.get(name, VALUES) if noise.random() < 0.5 else VALUES)
        text = json.dumps(body)
        if noise.random() < 0.15:  # not even JSON
            at = noise.randrange(len(text))
            text = noise.choice(
                [text[:at], text[:at] + noise.choice('{}[],:"\\') + text[at:], "[" * 5000, "NaN"]
            )
        answer = client.post(path, content=text.encode(), headers={"content-type": "application/json"})
        statuses.append(answer.status_code)
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, (path, text, answer.text)
        if answer.status_code != 200:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    print(dict(Counter(statuses)))
    assert 0.05 < statuses.count(200) / count < 0.95
    assert client.service.load == 0


@pytest.mark.parametrize(
    "more",
    [
        {"policy": f"lc:top_k={10**30}"},
        {"policy": f"lc:steps={10**30}"},
        {"policy": f"lc:k={10**30}", "suffix": "1"},
        {"block": 2**63 - 1},
    ],
)
def test_a_number_too_large_for_a_tensor_is_refused_and_affects_no_other_request(client, more):
    """It would fail in a step, and with it everything else in the batch."""
    answer = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 3, **more})
    assert answer.status_code == 400, answer.text
    assert "must be at most 2147483647" in answer.json()["error"]["message"]
