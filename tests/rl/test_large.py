"""What training a large model needs: number formats, settings by size, and memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch
from safetensors import safe_open
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from tests.helpers import rl_toys
from tests.helpers.large_models import PeakMemory
from tests.helpers.rl_toys import go, micro_model, same, tensors
from twotemp import tasks
from twotemp.cli import app
from twotemp.cli import grpo as command
from twotemp.engine import run
from twotemp.errors import UserError
from twotemp.folders import read_run
from twotemp.models import checkpoint as folders
from twotemp.models.checkpoint import read_headers, read_tensors, save, weight_files
from twotemp.models.load import load
from twotemp.policies import policy
from twotemp.records import Request
from twotemp.rl import results, rollouts, weights
from twotemp.rl.checkpoint import export, latest
from twotemp.rl.learner import Learner
from twotemp.rl.parallel import accelerator
from twotemp.rl.rollouts import training_problems
from twotemp.rl.settings import RECIPES, read_recipe


def half_model():
    """Return the micro model in bfloat16."""
    model = micro_model()
    model.module.to(torch.bfloat16)
    return model


# --- number formats


class ProductTypes(TorchDispatchMode):
    """Counts matrix products by dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[torch.dtype] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("linear", "mm", "bmm", "addmm"):
            self.counts[result.dtype] += 1
        return result


def test_rollouts_run_adapters_in_the_dtype_of_the_base_and_training_in_float32():
    trained = Learner(half_model(), rl_toys.settings(), accelerator(cpu=True))
    adapters = {name: p for name, p in trained.network.named_parameters() if p.requires_grad}
    for number, parameter in enumerate(adapters.values()):
        torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(number))
    before = {name: p.detach().clone() for name, p in adapters.items()}
    requests = [Request("q", (10, 11, 12), policy("tct"), 4)]
    with trained.sampling() as model, ProductTypes() as products:
        list(run(model, requests))
    assert set(products.counts) == {torch.bfloat16}
    assert {p.dtype for p in adapters.values()} == {torch.float32}
    assert same({name: p.detach() for name, p in adapters.items()}, before)


def test_a_model_that_was_stored_in_bfloat16_is_exported_in_bfloat16_and_in_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "SHARD_BYTES", 20_000)
    source = save(half_model(), tmp_path / "source")
    assert len(weight_files(source)) > 1
    asked = (
        f"grpo --model {source} --task countdown-3 --budget 1steps --out {tmp_path / 'run'} "
        "--groups 2 --size 4 --lora-rank 4 --held-out 0 --device cpu"
    )
    done = CliRunner().invoke(app, asked.split())
    assert done.exit_code == 0, done.output
    files = weight_files(tmp_path / "run" / "model")
    assert len(files) > 1
    assert read_headers(files) == read_headers(weight_files(source)), "names, shapes and dtypes"
    with safe_open(files[0], "pt") as tensors:
        assert tensors.metadata() == {"format": "pt"}
    load(tmp_path / "run" / "model", device="cpu")


def test_the_export_holds_one_file_of_the_model_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "SHARD_BYTES", 4_000)
    source = save(half_model(), tmp_path / "source")
    go(tmp_path / "run", "1steps", model=half_model())
    with PeakMemory(device="cpu") as memory:
        files = weight_files(export(source, tmp_path / "run", tmp_path / "model"))
    sizes = [sum(tensor.nbytes for _, tensor in read_tensors([file])) for file in files]
    adapters = sum(t.nbytes for _, t in read_tensors([latest(tmp_path / "run") / "weights.safetensors"]))
    assert adapters < memory.peak < adapters + 2 * max(sizes) < sum(sizes) + adapters


def test_full_training_in_half_precision_is_refused():
    with pytest.raises(UserError, match="most updates are rounded away; train adapters"):
        Learner(half_model(), rl_toys.settings(lora_rank=0), accelerator(cpu=True))


# --- settings


def settings_of(tmp_path, monkeypatch, billions: float, *more: str) -> tuple[dict, str]:
    """Return the settings that the command arrives at for a model of this size, and what it says."""
    found = {}

    def stop(chosen, **settings):
        found.update(settings)
        raise UserError("stopped here")

    monkeypatch.setattr(command, "stored_parameters", lambda model, revision: int(billions * 1e9))
    monkeypatch.setattr(command, "GrpoSettings", stop)
    asked = ["grpo", "--budget", "1steps", "--out", str(tmp_path / "run"), "--device", "cpu", *more]
    done = CliRunner().invoke(app, asked)
    assert str(done.exception) == "stopped here"
    return found, done.stderr


def test_large_models_are_trained_with_the_settings_of_d1_and_what_is_given(tmp_path, monkeypatch):
    found, said = settings_of(tmp_path, monkeypatch, 8, "--learning-rate", "5e-4", "--groups", "16")
    assert "8.0 billion parameters: settings of --recipe d1" in said
    expected = {**RECIPES["d1"], "learning_rate": 5e-4, "groups": 16}  # given, though these are the defaults
    assert {name: found[name] for name in expected} == expected
    small, said = settings_of(tmp_path, monkeypatch, 0.1)
    assert (small["learning_rate"], small["micro_batch"]) == (5e-4, 1024)
    assert "recipe" not in said


def test_training_a_large_model_with_the_settings_of_a_small_one_warns(tmp_path, monkeypatch):
    found, said = settings_of(tmp_path, monkeypatch, 8, "--recipe", "tiny")
    assert "warning: these were chosen for a model of 0.8 million parameters" in said
    assert found["learning_rate"] == 5e-4
    with pytest.raises(UserError, match="recipe"):
        read_recipe("d2")


def test_weight_decay_shrinks_the_weights(tmp_path):
    go(tmp_path / "none", "2steps")
    go(tmp_path / "some", "2steps", weight_decay=100.0)
    none, some = tensors(tmp_path / "none"), tensors(tmp_path / "some")
    name = next(key for key in none if key.endswith("lora_A.default.weight"))
    assert some[name].norm() < 0.9 * none[name].norm()
    assert read_run(tmp_path / "some")["settings"]["weight_decay"] == 100.0


def test_a_published_task_trains_on_its_own_training_set():
    asked = []

    def problems(**options):
        asked.append(options)
        return tasks.ProblemSet(rl_toys.TASK.problems().problems[:3], "", "")

    task = replace(tasks.get("gsm8k"), load=problems)
    assert len({problem.id for problem in islice(training_problems(task, 0), 3)}) == 3
    assert asked[0]["subset"] == "train"


# --- memory


def short_of_memory(monkeypatch, rows: int) -> list[int]:
    """Let passes of more than this many rows run out of memory; return the list of the rows of all passes."""
    honest, seen = weights.log_q, []

    def log_q(logits, queries, forbidden):
        seen.append(len(queries.ids))
        if len(queries.ids) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return honest(logits, queries, forbidden)

    monkeypatch.setattr(weights, "log_q", log_q)
    return seen


def test_an_update_that_does_not_fit_halves_its_micro_batches(tmp_path, monkeypatch, caplog):
    go(tmp_path / "roomy", "2steps", micro_batch=2)
    seen = short_of_memory(monkeypatch, 2)
    go(tmp_path / "tight", "2steps", micro_batch=8)
    assert max(seen) > 2, "it did run out of memory"
    assert "continuing with micro-batches of 2" in caplog.text
    assert same(tensors(tmp_path / "tight"), tensors(tmp_path / "roomy"))


def test_an_update_that_does_not_fit_at_all_names_the_option(tmp_path, monkeypatch):
    short_of_memory(monkeypatch, 0)
    with pytest.raises(UserError, match="does not fit into memory with --micro-batch 1;"):
        go(tmp_path, "2steps", micro_batch=2)


# --- time


def test_ar_rollouts_end_at_eos_and_training_is_the_same(tmp_path, monkeypatch):
    forwards: dict[bool, int] = {True: 0, False: 0}
    honest, numbers = rollouts.problem_requests, results.group_numbers

    def train(stop: bool) -> tuple[dict, list]:
        def requests(*arguments, eos_stop, **options):
            return honest(*arguments, eos_stop=stop, **options)

        def count(drawn):
            forwards[stop] += sum(sample.forwards for sample in drawn.samples)
            return numbers(drawn)

        monkeypatch.setattr(rollouts, "problem_requests", requests)
        monkeypatch.setattr(results, "group_numbers", count)
        out = tmp_path / str(stop)
        changes = {"policy": policy("ar", t_token=1.0), "length": 12, "beta": 0.0}
        go(out, "3steps", model=likely_to_end(), likelihood="trajectory", questions=0, **changes)
        steps = results.read_steps(out)
        return tensors(out), [(s.reward, s.nfe, s.distinct, s.tokens_per_forward) for s in steps]

    (stopped, first), (whole, second) = train(True), train(False)
    assert first == second
    assert same(stopped, whole)
    assert forwards[True] < forwards[False] == 3 * 8 * 12


def likely_to_end():
    """Return the micro model, biased towards EOS."""
    model = micro_model()
    with torch.no_grad():
        model.module.lm_head.weight[model.eos_ids[0]] *= 2
    return model
