"""lm-evaluation-harness: a task of three documents on the embedded model, and the traps on the way."""

from __future__ import annotations

import json
import math
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

import twotemp
from tests.helpers.pages import run_page
from tests.helpers.toy import string_table
from theory.table import TableModel
from twotemp.errors import UserError
from twotemp.policies import parse

pytest.importorskip("lm_eval", reason="needs the extra: pip install 'twotemp[lm-eval]'")

from lm_eval.api.instance import Instance
from lm_eval.evaluator import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from twotemp.analysis import read
from twotemp.integrations.imports import bring, lm_eval
from twotemp.integrations.lm_eval import TwoTemp
from twotemp.store import Store

DOCS = [
    {"prompt": "3 7 12 -> 33", "numbers": [3, 7, 12], "target": 33, "answer": "3 * 7 = 21 , 21 + 12 = 33"},
    {"prompt": "4 9 2 -> 34", "numbers": [4, 9, 2], "target": 34, "answer": "4 * 9 = 36 , 36 - 2 = 34"},
    {"prompt": "5 6 10 -> 20", "numbers": [5, 6, 10], "target": 20, "answer": "5 * 6 = 30 , 30 - 10 = 20"},
]
REPEATS, LENGTH, POLICY = 8, 12, "tlc:t_pos=1;t_token=1"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Path:
    """Three tasks on the same documents: to write, to choose, and to score."""
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "docs.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
    shared = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
    shared |= {"test_split": "test", "doc_to_text": "{{prompt}}"}
    written = {
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "repeats": REPEATS,
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": LENGTH, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    }
    chosen = {
        "output_type": "multiple_choice",
        "doc_to_choice": ["3 * 7 = 21 , 21 + 12 = 33", "7 7 7 7"],
        "doc_to_target": 0,
        "target_delimiter": " ",
        "metric_list": [{"metric": "acc"}],
    }
    scored = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    }
    for name, own in {"three": written, "choice": chosen, "rolling": scored}.items():
        (folder / f"{name}.yaml").write_text(json.dumps({**shared, **own, "task": name}))  # JSON is YAML
    return folder


@pytest.fixture(scope="module", autouse=True)
def _own_caches(tmp_path_factory):
    import datasets

    patch = pytest.MonkeyPatch()
    patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    patch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)  # asks pip, for seconds
    yield
    patch.undo()


def evaluate(tasks: Path, *names: str, model: str | TwoTemp = "twotemp", **options):
    """As the command line does it, defaults included."""
    return simple_evaluate(
        model=model,
        tasks=list(names),
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        **{"device": "cuda:0", "batch_size": 1, "bootstrap_iters": 0, **options},
    )


def texts(results, task: str = "three") -> list[list[str]]:
    return [row["resps"][0] for row in results["samples"][task]]


@pytest.fixture(scope="module")
def plain(tasks):
    return evaluate(tasks, "three", model_args=f"pretrained=tiny,policy={POLICY},seed=3")


def test_repeats_are_the_samples_of_twotemp_under_the_same_ids(plain):
    samples = twotemp.sample(
        twotemp.load("tiny"),
        [doc["prompt"] for doc in DOCS],
        POLICY.replace(";", ","),
        n=REPEATS,
        length=LENGTH,
        seed=3,
        ids=[f"three/{number}/0" for number in range(3)],
        chat=False,
    )
    assert texts(plain) == [[s.text for s in samples[i : i + REPEATS]] for i in (0, 8, 16)]


def test_repeats_differ_and_a_second_run_is_identical(plain, tasks):
    assert all(len(set(given)) > 1 for given in texts(plain))
    again = evaluate(tasks, "three", model_args=f"pretrained=tiny,policy={POLICY},seed=3")
    assert texts(again) == texts(plain)
    other = evaluate(tasks, "three", model_args=f"pretrained=tiny,policy={POLICY},seed=4")
    assert texts(other) != texts(plain)


def test_all_repeats_are_decoded_together(tasks, monkeypatch):
    """lm-eval's batch size of 1 is a default, not a wish: the rows of all documents share their forward passes."""
    model, rows = twotemp.load("tiny"), []
    forward = model.logits
    monkeypatch.setattr(model, "logits", lambda ids, *rest: rows.append(len(ids)) or forward(ids, *rest))
    lm = TwoTemp(model, batch_size=1)
    evaluate(tasks, "three", model=lm)
    assert max(rows) > 2 * REPEATS  # rows that are still equal are computed once
    rows.clear()
    evaluate(tasks, "three", model=TwoTemp(model, batch_size="auto", max_batch_size=2))
    assert max(rows) <= 2


def test_chat_templates(tasks):
    """The text that lm-eval renders is encoded as the prompt itself would be."""
    lm = TwoTemp("tiny", policy=POLICY)
    found = evaluate(tasks, "three", model=lm, apply_chat_template=True)
    samples = twotemp.sample(
        lm.model, DOCS[0]["prompt"], POLICY.replace(";", ","), n=REPEATS, length=LENGTH, ids="three/0/0"
    )
    assert texts(found)[0] == [s.text for s in samples]
    # Prompts that lm-eval kept from an earlier run are recognised without its asking for the template.
    text = lm.apply_chat_template([{"role": "user", "content": "1 2 -> 3"}])
    assert TwoTemp("tiny").tok_encode(text) == lm.model.encode("1 2 -> 3")
    begun = [{"role": "user", "content": "1 2 -> 3"}, {"role": "assistant", "content": " 1 + 2"}]
    rendered = lm.apply_chat_template(begun, add_generation_prompt=False)
    assert lm.tok_encode(rendered) == lm.model.encode("1 2 -> 3", prefill=" 1 + 2")
    assert lm.tok_encode("1 2 -> 3") == lm.model.encode("1 2 -> 3", chat=False)


def test_a_rendered_prompt_gets_no_second_set_of_special_tokens(monkeypatch):
    lm, user = TwoTemp("tiny"), {"role": "user", "content": "1 2 -> 3"}
    # Of a tokenizer that begins every plain text with a token of its own.
    monkeypatch.setattr(lm.model, "encode", lambda text, chat: [1, *lm.model.tokens(text)])
    assert lm.tok_encode("1 2 -> 3") == [1, *lm.model.tokens("1 2 -> 3")]
    for turns in ([user], [{"role": "system", "content": "4"}, user]):
        rendered = lm.apply_chat_template(turns)
        assert lm.tok_encode(rendered) == lm.model.tokens(rendered)


def test_a_response_cache_never_hands_out_one_sample_for_all(tasks, tmp_path, plain):
    arguments = {
        "model_args": f"pretrained=tiny,policy={POLICY},seed=3",
        "use_cache": str(tmp_path / "cache"),
    }
    with pytest.raises(UserError, match="do_sample=True"):
        evaluate(tasks, "three", **arguments)
    for _ in range(2):
        found = evaluate(tasks, "three", **arguments, gen_kwargs="do_sample=True")
        assert texts(found) == texts(plain)
    # Without any noise all repeats are one text, and there is nothing to lose.
    certain = arguments | {"model_args": "pretrained=tiny,policy=lc:t_token=0"}
    assert texts(evaluate(tasks, "three", **certain)) == texts(evaluate(tasks, "three", **certain))


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        ("lc:t_token=0", False),
        ("tlc:t_token=0", True),
        ("tlc:t_token=0;t_pos=0", False),
        ("egi:t_token=0;t_pos=0", True),
        ("egi:t_token=0;t_pos=0;first_t_token=0", False),
        ("odd:t_token=0;t_pos=0", True),
    ],
)
def test_a_response_cache_is_refused_where_samples_can_differ(policy, refused):
    lm = TwoTemp("tiny", policy=policy, length=8)
    lm._cached = True
    instance = Instance("generate_until", {}, ("1 2 -> 3", {}), 0, ("t", 0, 1))

    def ask() -> set[str]:
        return set(lm.generate_until([instance] * 6, disable_tqdm=True))

    if refused:
        with pytest.raises(UserError, match="--use_cache"):
            ask()
    else:
        assert len(ask()) == 1


def test_likelihoods_survive_a_response_cache(tasks, tmp_path):
    arguments = {"model_args": "pretrained=tiny,draws=8", "use_cache": str(tmp_path / "cache")}
    first, second = (evaluate(tasks, "choice", "rolling", **arguments) for _ in range(2))
    assert [row["resps"] for row in first["samples"]["choice"]] == [
        row["resps"] for row in second["samples"]["choice"]
    ]


def test_policies_are_spelled_with_semicolons():
    lm = TwoTemp.create_from_arg_string("pretrained=tiny,policy=tct:t_pos=0.2;threshold=0.6,length=16")
    assert lm.policy == parse("tct:t_pos=0.2,threshold=0.6")
    assert lm.length == 16


def test_generation_options_of_lm_eval_apply_or_are_refused():
    lm = TwoTemp("tiny")

    chat = lm.apply_chat_template([{"role": "user", "content": "3 7 12 -> 33"}])

    def ask(options, prompt=chat):
        instance = Instance("generate_until", {}, (prompt, options), 0, ("t", 0, 1))
        return lm.generate_until([instance], disable_tqdm=True)[0]

    whole = ask({"max_gen_toks": 12})
    word = whole.split()[-1]  # whatever the model writes
    assert ask({"max_gen_toks": 12, "until": word}) == whole.partition(word)[0]
    assert ask({"max_gen_toks": 12, "until": [" 9999", ""]}) == whole
    ask({"max_gen_toks": 4096})
    assert len(lm._samples[-1].prompt) + len(lm._samples[-1].tokens) == lm.model.max_length
    with pytest.raises(UserError, match="generation argument 'untill'"):
        ask({"untill": "x"})
    with pytest.raises(UserError, match="hello"):
        ask({}, "hello there")


# Likelihoods.

MASK, EOS = 4, 3


@pytest.fixture(scope="module")
def table() -> TableModel:
    return string_table(MASK, EOS)


def test_likelihoods_agree_with_the_exact_ones(table):
    lm = TwoTemp(table, draws=64, batch_size=256)
    asked = [((), [0, 1], list(said)) for said in product(range(3), repeat=4)]
    found = lm._loglikelihood_tokens(asked)
    given = (table.sequences[:, :2] == torch.tensor([0, 1])).all(1)
    z = []
    for (_, row, said), (log_p, _), kept in zip(asked, found, lm._likelihoods, strict=True):
        agrees = (table.sequences == torch.tensor(row + said)).all(1)
        exact = float((table.weights[agrees].sum() / table.weights[given].sum()).log())
        assert kept["log_p"] == log_p
        z.append((log_p - exact) / kept["error"])
    assert abs(sum(z) / len(z)) < 4 / math.sqrt(len(z))
    assert max(map(abs, z)) < 5


def test_greedy_means_what_the_policy_writes_without_noise(table):
    lm = TwoTemp(table, policy="ar", draws=2)
    row, best = [0, 1], []
    while len(best) < 4:
        ids = torch.tensor([[*row, *best, *[MASK] * (4 - len(best))]])
        best.append(int(table.logits(ids, None, ids == MASK)[0].argmax()))
    other = [*best[:-1], (best[-1] + 1) % 3]
    assert [greedy for _, greedy in lm._loglikelihood_tokens([((), row, best), ((), row, other)])] == [
        True,
        False,
    ]
    lm.greedy = False
    assert lm._loglikelihood_tokens([((), row, best)])[0][1] is False


def test_choices_and_whole_texts(tasks):
    found = evaluate(tasks, "choice", model_args="pretrained=tiny,draws=16", apply_chat_template=True)
    said = [one["log_p"] for one in found["config"]["twotemp"]["likelihoods"]]
    right = sum(first > second for first, second in zip(said[::2], said[1::2], strict=True))
    assert found["results"]["choice"]["acc,none"] == pytest.approx(right / 3)
    found = evaluate(tasks, "choice", "rolling", model_args="pretrained=tiny,draws=16")
    kept = found["config"]["twotemp"]["likelihoods"]
    assert [one["request"] for one in kept] == [
        *(f"choice/{doc}/{option}" for doc in range(3) for option in range(2)),
        *(f"rolling/{doc}/0" for doc in range(3)),
    ]
    assert all(0 < one["error"] < abs(one["log_p"]) for one in kept)
    model = twotemp.load("tiny")
    bare = twotemp.score(
        model, [[model.tokenizer.bos_token_id]], [DOCS[0]["answer"]], draws=16, batch_size=32
    )
    assert found["samples"]["rolling"][0]["resps"][0][0] == pytest.approx(bare[0].log_p)


def test_a_text_longer_than_the_context_is_scored_in_windows(table):
    """Each token once, and no row longer than the model's context."""

    class Letters(TwoTemp):
        prefix_token_id = 0

        def tok_encode(self, string, add_special_tokens=None, **unused):
            return [int(letter) for letter in string]

    lm = Letters(table, draws=2)
    text = "0120120120120"
    (log_p,) = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0, ("t", 0, 1))])
    (kept,) = lm._likelihoods
    assert (kept["tokens"], kept["log_p"], kept["request"]) == (len(text), log_p, "t/0/0")
    with pytest.raises(UserError, match="do not fit"):
        lm._loglikelihood_tokens([((), [0, 1, 2], [0, 1, 2, 0])])


# From the command line to a report.


def command(monkeypatch, *arguments: str) -> int:
    """What `twotemp ...` ends with."""
    from twotemp import cli

    monkeypatch.setattr(sys, "argv", ["twotemp", *arguments])
    with pytest.raises(SystemExit) as done:
        cli.main()
    return done.value.code or 0


def kept(folder: Path, tasks: Path, name: str, model_args: str):
    """An evaluation with its files, as `--output_path FOLDER --log_samples` writes them."""
    tracker = EvaluationTracker(output_path=str(folder))
    found = evaluate(tasks, name, model_args=model_args, evaluation_tracker=tracker)
    samples = found.pop("samples")
    tracker.save_results_aggregated(results=found, samples=samples)
    tracker.save_results_samples(task_name=name, samples=samples[name])
    return found


def test_the_launcher_passes_everything_on(monkeypatch):
    from lm_eval.api.registry import get_model

    seen = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: seen.append(sys.argv))
    assert command(monkeypatch, "lm-eval", "run", "--help", "--model", "twotemp", "-x=1") == 0
    assert seen == [["lm-eval", "run", "--help", "--model", "twotemp", "-x=1"]]
    assert get_model("twotemp") is TwoTemp
    assert get_model("dummy").__name__ == "DummyLM"  # its own models are still there


@pytest.mark.slow  # lm-eval reads the thousands of tasks it comes with
def test_the_command_line_of_lm_eval_takes_the_model(tasks, tmp_path, monkeypatch, plain):
    common = ["lm-eval", "run", "--model", "twotemp", "--include_path", str(tasks), "--tasks", "three"]
    own = ["--model_args", f"pretrained=tiny,policy={POLICY},seed=3"]
    files = ["--output_path", str(tmp_path), "--log_samples"]
    assert command(monkeypatch, *common, *own, *files) == 0
    (log,) = tmp_path.rglob("samples_three_*.jsonl")
    assert [json.loads(line)["resps"][0] for line in log.read_text().splitlines()] == texts(plain)


def test_import_then_report_and_select(tasks, tmp_path, monkeypatch):
    out, run = tmp_path / "out", str(tmp_path / "run")
    for policy in ("tct", POLICY):
        kept(out, tasks, "three", f"pretrained=tiny,policy={policy}")
    arguments = ["import", "lm-eval", str(out), "--out", run]
    assert command(monkeypatch, *arguments) == 2  # lm-eval judged the first of the repeats alone
    for _ in range(2):  # the second time there is nothing new
        assert command(monkeypatch, *arguments, "--grader", "countdown") == 0
    assert command(monkeypatch, "report", run) == 0
    assert command(monkeypatch, "select", run, "--by", "majority,oracle") == 0
    cells = Store.open(run).cells()
    assert sorted(cell.name for cell in cells) == ["three@tct", "three@tlc:t_token=1"]
    for cell in cells:
        samples = list(cell.samples())
        drawn = twotemp.sample(
            twotemp.load("tiny"),
            [doc["prompt"] for doc in DOCS],
            cell.config.policy,
            n=REPEATS,
            length=LENGTH,
            ids=[f"three/{number}/0" for number in range(3)],
            chat=False,
        )
        assert len(samples) == 3 * REPEATS
        assert {(s.key, s.text, s.tokens, s.prompt, s.positions, s.nfe) for s in samples} == {
            (s.key, s.text, s.tokens, s.prompt, s.positions, s.nfe) for s in drawn
        }


def test_single_verdicts_of_lm_eval_are_taken_over(tasks, tmp_path):
    config = json.loads((tasks / "three.yaml").read_text()) | {"repeats": 1, "task": "once"}
    config["doc_to_target"] = "{{answer if numbers[0] == 3 else 'x'}}"
    (tmp_path / "once.yaml").write_text(json.dumps(config))
    text = TwoTemp("tiny", policy="lc:t_token=0", length=LENGTH).generate_until(
        [Instance("generate_until", {}, (DOCS[0]["prompt"], {}), 0, ("once", 0, 1))], disable_tqdm=True
    )[0]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({**doc, "answer": text}) + "\n" for doc in DOCS))
    config["dataset_kwargs"] = {"data_files": {"test": str(tmp_path / "docs.jsonl")}}
    (tmp_path / "once.yaml").write_text(json.dumps(config))
    found = kept(tmp_path / "out", tmp_path, "once", "pretrained=tiny,policy=lc:t_token=0")
    assert found["results"]["once"]["exact_match,none"] == pytest.approx(1 / 3)
    bring(lm_eval([tmp_path / "out"], None, True), tmp_path / "run")
    (series,) = read([tmp_path / "run"])
    assert series.grader == "recorded lm-eval exact_match,none"
    assert dict(zip(series.questions, series.table.correct.tolist())) == {
        "once/0/0": 1,
        "once/1/0": 0,
        "once/2/0": 0,
    }


def test_the_entry_point_names_the_model():
    from importlib.metadata import entry_points

    (point,) = {point for point in entry_points(group="lm_eval.models") if point.name == "twotemp"}
    assert point.load() is TwoTemp


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path):
    run_page("lm-eval.md", tmp_path)
    assert "k = 8" in (tmp_path / "runs" / "puzzle" / "report" / "report.md").read_text()
    assert (tmp_path / "runs" / "puzzle" / "selection" / "selection.md").exists()
