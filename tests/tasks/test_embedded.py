"""The generated tasks: disjoint splits, references that their graders accept, real ambiguity, exact digests."""

from __future__ import annotations

from itertools import combinations, islice, product
from random import Random

import pytest

from recipes import tokenizer
from recipes.corpus import encode
from twotemp import graders, tasks
from twotemp.errors import UserError
from twotemp.graders.puzzles import grade_chain
from twotemp.records import Problem
from twotemp.tasks import SOURCES, countdown, programs, words
from twotemp.tasks.base import PROBLEMS, held_out_problems, split_of

NAMES = sorted(SOURCES)


def draw(name: str, count: int, split: str = "train", seed: int = 5) -> list:
    return list(islice(SOURCES[name].examples(seed, split), count))


@pytest.mark.parametrize("name", NAMES)
def test_splits_share_no_problem_and_ignore_presentation(name: str) -> None:
    keys = {split: {e.key for e in draw(name, 150, split)} for split in ("train", "validation", "test")}
    for a, b in combinations(keys, 2):
        assert not keys[a] & keys[b]
    test = {f"{name} {key}" for key in keys["test"]}
    assert {split_of(key) for key in test} == {"test"}


def test_the_same_numbers_in_another_order_are_the_same_problem() -> None:
    seen: dict[str, set[str]] = {}
    for example in draw("countdown-3", 20_000):
        seen.setdefault(example.key, set()).add(example.prompt)
    assert max(map(len, seen.values())) > 1


@pytest.mark.parametrize("name", NAMES)
def test_problem_sets_are_fixed_distinct_and_named(name: str) -> None:
    task = tasks.get(name)
    first = task.problems()
    assert held_out_problems.__wrapped__(SOURCES[name], "test") == first
    assert len({p.prompt for p in first.problems}) == len({p.id for p in first.problems}) == PROBLEMS
    other = task.problems(subset="validation")
    assert other.digest != first.digest
    assert not {p.prompt for p in first.problems} & {p.prompt for p in other.problems}


def test_the_first_test_problems_are_those_the_shipped_weights_were_measured_on() -> None:
    """The digest is of all of them, so a change of a generator is noticed by every stored run, and here."""
    first = {name: tasks.get(name).problems().problems[0].prompt for name in NAMES}
    assert first == {
        "countdown-3": "22 26 31 -> 79",
        "countdown-4": "1 13 11 11 -> 14",
        "programs-1": "0 4 0 2 -> 2 0 4 0 ; 0 4 9 5 -> 5 9 4 0 ; 9 3 4 -> 4 3 9",
        "programs-2": "1 9 1 -> 12 ; 4 0 1 -> 7 ; 6 6 8 -> 11",
        "words-2": "pen 12 toy 9 map 6 bag 4 key 20 box 3 . "
        "Ann buys 2 for 32 . 2 of her cheapest and 3 of her dearest cost ?",
        "words-3": "box 19 hat 13 pen 11 map 4 cup 8 key 9 . "
        "Eve buys 3 for 21 . 2 of her cheapest and 3 of her dearest cost ?",
    }
    assert {name: tasks.get(name).problems().digest[:12] for name in NAMES} == {
        "countdown-3": "3781aa5664ec",
        "countdown-4": "bd55df703c65",
        "programs-1": "b5084cbefa6d",
        "programs-2": "0089e07171a8",
        "words-2": "8832f328fd9e",
        "words-3": "4937ca0ef1b5",
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_held_out_set_of_another_seed_has_other_problems_of_the_same_split(name: str) -> None:
    """So that a result can be tried again: at most one problem in ten is met twice among the first 500 of each."""
    ours, other = tasks.get(name).problems(), tasks.get(name).problems(subset="test:7")
    assert ours.digest != other.digest
    assert {p.id.rsplit("/", 1)[0] for p in other.problems} == {f"{name}/test:7"}
    keys = []
    for problems, seed in ((ours, 20), (other, 7)):
        distinct: dict[str, str] = {}
        for example in draw(name, 1000, "test", seed):
            distinct.setdefault(example.key, example.prompt)
        assert [*distinct.values()][:500] == [p.prompt for p in problems.problems[:500]]
        keys.append({*[*distinct][:500]})
    assert len(keys[0]) == len(keys[1]) == 500
    assert len(keys[0] & keys[1]) <= 50


def test_a_words_problem_is_the_same_with_other_multipliers_names_and_things() -> None:
    """What is held out must not be met in training as the same shop and price with another bill after it."""
    bills: dict[str, set[str]] = {}
    for example in draw("words-2", 30_000):
        bills.setdefault(example.key, set()).add(example.prompt.split(" . ")[2])
    assert max(map(len, bills.values())) > 1
    assert all(len(key.split("]")[1].split()) == 2 for key in bills)


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'countdown-3'"):
        tasks.get("countdown3")
    for subset in ("train", "train:7", "test:", "test:x", "test:-1"):
        with pytest.raises(UserError, match=r"unknown subset of words-2.*known: test, test:7, validation"):
            tasks.get("words-2").problems(subset=subset)
    with pytest.raises(UserError, match="one prompt"):
        tasks.get("words-2").problems(prompt="zero-shot")


@pytest.mark.parametrize("name", NAMES)
def test_text_survives_the_tokenizer_and_its_chat_template(name: str) -> None:
    source, words_ = SOURCES[name], tokenizer.build()
    for example in draw(name, 100):
        prompt, answer = encode(example, source.length, words_.get_vocab())
        chat = words_.apply_chat_template(
            [{"role": "user", "content": example.prompt}], tokenize=False, add_generation_prompt=True
        )
        assert words_(chat, add_special_tokens=False)["input_ids"] == prompt
        assert len(answer) == source.length
        assert words_.decode(answer, skip_special_tokens=True) == example.answer
        assert words_.unk_token_id not in prompt + answer


@pytest.mark.parametrize("name", NAMES)
def test_references_pass_and_answers_to_other_problems_fail(name: str) -> None:
    """With the grader the task names, sandbox included."""
    examples = draw(name, 12)
    problems = [Problem(str(i), name, e.prompt, e.reference) for i, e in enumerate(examples)]
    grader = graders.get(tasks.get(name).grader, workers=1)
    try:
        own = list(grader.grade((p, e.answer) for p, e in zip(problems, examples)))
        other = list(grader.grade((p, e.answer) for p, e in zip(problems, [*examples[1:], examples[0]])))
    finally:
        grader.close()
    assert [grade.outcome for grade in own] == ["passed"] * len(examples)
    assert {grade.outcome for grade in other} <= {"failed", "passed"}
    assert sum(grade.passed for grade in other) <= 3  # two problems may share an answer by chance


@pytest.mark.parametrize(
    ("text", "outcome", "detail"),
    [
        ("4 * 9 = 36 , 36 - 2 = 34", "passed", ""),
        ("4*9=36,36-2=34", "passed", ""),
        ("4 * 9 = 36 , 36 - 2 = 34 ,", "failed", "not a step"),
        ("", "failed", "not a step"),
        ("4 * 9 = 36", "failed", "left over"),
        ("4 * 9 = 35 , 35 - 2 = 33", "failed", "wrong step"),
        ("4 * 9 = 36 , 36 + 2 = 38", "failed", "ends at 38"),
        ("4 * 9 = 36 , 36 - 9 = 27", "failed", "9 is not available"),
        ("9 + 9 = 18 , 18 + 4 = 22", "failed", "9 is not available"),
        ("36 - 2 = 34", "failed", "36 is not available"),
        ("2 - 4 = -2", "failed", "not a step"),
        ("9 / 2 = 4 , 4 * 4 = 16", "failed", "wrong step"),
        ("4 * 9 = 36 , 36 - 2 = 34 , 34 - 34 = 0", "failed", "34 is not available"),
    ],
)
def test_countdown_rules(text: str, outcome: str, detail: str) -> None:
    grade = grade_chain([4, 9, 2], 34, text)
    assert grade.outcome == outcome
    assert detail in grade.detail


def test_countdown_answers_are_expressions() -> None:
    a = grade_chain([4, 9, 2], 34, "4 * 9 = 36 , 36 - 2 = 34").answer
    b = grade_chain([4, 9, 2], 34, "9 * 4 = 36 , 36 - 2 = 34").answer
    assert a == b == "((4 * 9) - 2)"
    assert (
        grade_chain([4, 9, 2], 15, "9 + 2 = 11 , 4 + 11 = 15").answer
        != grade_chain([4, 9, 2], 15, "4 + 9 = 13 , 13 + 2 = 15").answer
    )


def test_countdown_grader_agrees_with_brute_force() -> None:
    """Of all chains of two steps over these numbers exactly the legal ones pass."""
    numbers, target = [2, 3, 6], 12
    right = wrong = 0
    for x, op, y in product(numbers, "+-*/", numbers):
        for u, op2, v in product([*numbers, 5, 8, 9, 18, 4], "+-*/", [*numbers, 5, 8, 9, 18, 4]):
            z = countdown.apply(x, op, y)
            text = f"{x} {op} {y} = {z} , {u} {op2} {v} = {target}"
            rest = list(numbers)
            legal = z is not None and x != y
            if legal:
                rest.remove(x)
                rest.remove(y)
                legal = sorted((u, v)) == sorted((z, *rest)) and countdown.apply(u, op2, v) == target
            assert grade_chain(numbers, target, text).passed == legal, text
            right, wrong = right + legal, wrong + (not legal)
    assert right == 4  # 6 - 2 = 4 , 4 * 3 and 3 * 4; 2 * 3 and 3 * 2 = 6 , 6 + 6
    assert wrong > 100


@pytest.mark.parametrize("name", ["words-2", "words-3"])
def test_words_have_one_answer_and_right_steps(name: str) -> None:
    for example in draw(name, 300):
        tokens = example.prompt.split()
        prices = [int(price) for price in tokens[1 : 2 * words.ON_SALE : 2]]
        count, total = int(tokens[tokens.index("buys") + 1]), int(tokens[tokens.index("buys") + 3])
        choices = [c for c in combinations(prices, count) if sum(c) == total]
        assert len(choices) == 1
        few, many = (int(tokens[i - 1]) for i, token in enumerate(tokens) if token == "of")
        assert example.reference["answer"] == str(few * min(choices[0]) + many * max(choices[0]))
        *steps, boxed = example.answer.split(" ; ")
        assert boxed == f"\\boxed{{ {example.reference['answer']} }}"
        for step in steps:
            left, right = step.split(" = ")
            assert eval(left) == int(right)


def test_words_are_written_in_many_ways() -> None:
    """Real forks: one problem, several first steps and several orders."""
    rng = Random(0)
    ways = {words._find(rng, [3, 5, 9], 17)[0] for _ in range(50)} | {
        words._find(rng, [9, 3, 5], 17)[0] for _ in range(50)
    }
    assert ways == {"3 + 5 = 8", "17 - 3 = 14", "9 + 3 = 12", "17 - 9 = 8"}


def test_an_answer_spans_two_blocks_of_32() -> None:
    assert tasks.get("words-3").length > 32
    assert all(len(example.answer.split()) > 32 for example in draw("words-3", 50))


@pytest.mark.parametrize("name", ["programs-1", "programs-2"])
def test_program_references_pass_their_tests(name: str) -> None:
    for example in draw(name, 300):
        names: dict = {}
        exec(example.answer, names)
        for line in example.reference["tests"]:
            exec(line, names)
        assert len(example.reference["tests"]) == programs.SHOWN + programs.HIDDEN


def test_examples_of_programs_leave_real_ambiguity() -> None:
    """Among all one-statement programs, several agree on the examples shown, and the hidden tests tell some apart."""
    everything = {
        f"{programs.HEADER} {line} ; return {result}"
        for group in programs.LIST_STATEMENTS
        for line in group
        for result in programs.LIST_RESULTS
    }

    def passes(program: str, tests: list[str]) -> bool:
        names: dict = {}
        exec(program, names)
        try:
            for line in tests:
                exec(line, names)
        except (AssertionError, IndexError, ValueError):
            return False
        return True

    ambiguous = 0
    examples = [e for e in draw("programs-1", 60) if e.prompt[0].isdigit()][:30]
    for example in examples:
        tests = example.reference["tests"]
        fit = [p for p in everything if passes(p, tests[: programs.SHOWN])]
        assert example.answer in fit
        ambiguous += any(not passes(p, tests) for p in fit)
    assert ambiguous >= len(examples) // 4


@pytest.mark.parametrize(
    ("name", "prompt", "answer", "seen"),
    [
        (
            "countdown-3",
            "4 9 2 -> 34",
            "4 * 9 = 36 , 36 - 2 = 34",
            ["_ _ _ _ _ | 4 * 9 = ? _ _ _ _ _ _", "_ _ _ _ _ | 4 * 9 = 36 , 36 - 2 = ?"],
        ),
        ("countdown-3", "4 9 2 -> 34", "= 36 =", ["_ _ _ _ _ | = ? _"]),
        (
            "words-2",
            "pen 9 cup 12 . Ann buys 2 for 21 . 2 of her cheapest and 3 of her dearest cost ?",
            "9 + 12 = 21 ; 2 * 9 = 18 ;",
            [
                "pen 9 cup 12 . Ann buys 2 for ? . ? of her cheapest and ? of her dearest cost ? | "
                "_ _ _ _ _ _ 2 * 9 = 18 ;",
            ],
        ),
        ("words-2", "Ann buys 2 for 21 . 2 of her", "21 = 21", ["Ann buys 2 for ? . ? of her | _ _ _"]),
        (
            "programs-1",
            "3 1 -> 8 ; 2 9 -> 1 2",
            "def f(x): return x",
            ["3 1 -> ? ; 2 9 -> ? ? | def f(x): return x"],
        ),
    ],
)
def test_a_check_masks_what_the_rest_determines(name: str, prompt: str, answer: str, seen: list) -> None:
    """_ is covered, ? is covered and expected to come out again."""
    problem = ["<start>", *prompt.split(), "<end>"]
    words = [*problem, *answer.split()]
    found = []
    for covered, expected in SOURCES[name].checks(words, len(problem)):
        assert set(expected) <= set(covered)
        shown = ["?" if k in expected else "_" if k in covered else word for k, word in enumerate(words)]
        found.append(" ".join([*shown[1 : len(problem) - 1], "|", *shown[len(problem) :]]))
    assert found == seen
