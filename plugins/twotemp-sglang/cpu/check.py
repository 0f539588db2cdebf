"""Compare the samples of SGLang with ours on a CPU, with a small random SDAR; run it through `set_up.sh`.

python check.py [engine] [server]     run one check or both; the exit status is 1 if a token differs

engine: AR, LC, TLC, CT and TCT through `sglang.Engine`, token by token, with the steps and the trace.
server: `twotemp eval --sglang URL` through `sglang.launch_server`, against `twotemp eval` in this process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from twotemp.engine import run
from twotemp.models.checkpoint import save
from twotemp.models.families import FAMILIES
from twotemp.models.load import load
from twotemp.models.token_ids import resolve_token_ids
from twotemp.policies import parse
from twotemp.records import Request
from twotemp.store import Store
from twotemp_sglang import NAME
from twotemp_sglang.server import STEPS

POLICIES = ("ar", "lc", "tlc:t_pos=1", "ct:threshold=0.3", "tct:t_pos=0.1,threshold=0.3")
PROMPTS = {"a": (1, 2), "b": (3, 4, 5, 6, 7)}
END, TURN, MASK = 151_643, 151_645, 151_669  # as in SDAR; SGLang has the mask's id built in
CONFIG = {
    "model_type": "sdar",
    "architectures": ["SDARForCausalLM"],
    "vocab_size": 151_936,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "hidden_act": "silu",
    "use_sliding_window": False,
    "eos_token_id": END,
    "torch_dtype": "float32",
}
# What a CPU supports: no graphs, no kernels, no prefix cache. SGLang's default is one request at a time.
SERVER = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "page_size": 1,
    "disable_radix_cache": True,
    "dllm_algorithm": NAME,
    "max_running_requests": 8,
    "max_total_tokens": 4096,
    "context_length": 256,
}


def checkpoints(folder: Path) -> tuple[Path, Path]:
    """Write a random SDAR for twotemp and for SGLang, which calls its layout qwen3; return both folders."""
    family = FAMILIES["sdar"]
    native = family.native_config(CONFIG)
    module = family.native(native).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(1 + 0.2 * noise if "norm" in name else (1.5 if "lm_head" in name else 0.3) * noise)
    names = {END: "<|endoftext|>", TURN: "<|im_end|>", MASK: "<|MASK|>"}
    words = {names.get(number, f"w{number}"): number for number in range(MASK + 1)}
    core = Tokenizer(models.WordLevel(words, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="w0", eos_token="<|endoftext|>")
    token_ids = resolve_token_ids(family.facts, native.vocab_size, CONFIG, tokenizer)
    ours = save(family(module, CONFIG, token_ids, tokenizer, "random"), folder / "ours")
    (theirs := folder / "theirs").mkdir()
    for file in ours.iterdir():
        if file.name != "config.json":
            (theirs / file.name).symlink_to(file)
    config = json.loads((ours / "config.json").read_text())
    (theirs / "config.json").write_text(json.dumps({**config, "model_type": "qwen3"}))
    return ours, theirs


def engine(ours: Path, theirs: Path) -> bool:
    """Tell whether `sglang.Engine` draws the same samples as our engine."""
    import sglang

    # Prompt and answer fill whole blocks, because SGLang always completes a block.
    requests = [
        Request(name, prompt, parse(spec), 12 - len(prompt) % 4, seed=5, index=index, trace=True)
        for spec in POLICIES
        for name, prompt in PROMPTS.items()
        for index in range(2)
    ]
    expected = {(sample.key, sample.policy): sample for sample in run(load(ours), requests)}
    print(f"{len(expected)} samples drawn by our engine", flush=True)
    served = sglang.Engine(model_path=str(theirs), skip_tokenizer_init=True, **SERVER)
    try:
        answers = served.generate(
            input_ids=[list(r.prompt) for r in requests],
            sampling_params=[
                {"max_new_tokens": r.length, "ignore_eos": True, "custom_params": custom_params(r)}
                for r in requests
            ],
        )
    finally:
        served.shutdown()
    equal = True
    for spec in POLICIES:
        pairs = [(r, a) for r, a in zip(requests, answers, strict=True) if r.policy == parse(spec)]
        tokens = steps = total = 0
        for request, answer in pairs:
            own = expected[request.key, request.policy]
            assert own.trace is not None
            total += request.length
            tokens += sum(a == b for a, b in zip(own.tokens, answer["output_ids"], strict=True))
            steps += sum(a == b for a, b in zip(own.trace.steps, answer["meta_info"][STEPS], strict=True))
        print(f"{spec}: {tokens} of {total} tokens equal, {steps} at the same step", flush=True)
        equal &= tokens == steps == total
    return equal


def custom_params(request: Request) -> dict[str, Any]:
    """Return the `custom_params` of a request to SGLang."""
    params = {"policy": request.policy.to_dict(), "seed": request.seed, "request": request.id}
    return {**params, "index": request.index, "trace": request.trace}


TASK = """
from twotemp.plugins import add_task
from twotemp.records import Problem
from twotemp.tasks import ProblemSet, Task

def load(data=None, prompt=None, subset=None):
    prompts = ("w1 w2", "w3 w4 w5 w6 w7 w8")
    problems = tuple(Problem(f"q/{i}", "words", text, {"answer": "w1"}) for i, text in enumerate(prompts))
    return ProblemSet(problems, "1", "here")

add_task(Task("words", "say words", grader="maths", length=10, load=load))
"""


def server(ours: Path, theirs: Path) -> bool:
    """Tell whether `twotemp eval --sglang` stores the same samples as `twotemp eval`."""
    folder = ours.parent
    (folder / "task.py").write_text(TASK)

    def evaluate(out: str, *more: str) -> dict[Any, Any]:
        command = [sys.executable, "-c", "from twotemp.cli import main; main()", "eval", "--model", str(ours)]
        command += ["--tasks", "words", "--policies", ",".join(POLICIES), "-n", "2", "--no-chat", "--trace"]
        subprocess.run(
            [*command, "--plugin", str(folder / "task.py"), "--out", str(folder / out), *more], check=True
        )
        samples = (sample for cell in Store.open(folder / out).cells() for sample in cell.samples())
        return {(s.key, s.policy): (s.tokens, s.text, s.nfe) for s in samples}

    with launched(theirs) as url:
        served = evaluate("served", "--sglang", url)
    local = evaluate("local")
    same = sum(served.get(name) == sample for name, sample in local.items())
    print(f"eval --sglang: {same} of {len(local)} samples equal (tokens, text, NFE), {len(served)} stored")
    return same == len(local) == len(served) == len(POLICIES) * 2 * 2


@contextmanager
def launched(model: Path) -> Iterator[str]:
    """Start a server on this machine and yield its address once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [f"--{name.replace('_', '-')}" for name, value in SERVER.items() if value is True]
    for name, value in SERVER.items():
        options += [] if value is True else [f"--{name.replace('_', '-')}", str(value)]
    command = [
        sys.executable,
        "-m",
        "sglang.launch_server",
        "--model-path",
        str(model),
        "--skip-tokenizer-init",
    ]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port), "--skip-server-warmup", *options],
        start_new_session=True,
    )
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + 900
    try:
        while True:
            try:
                urlopen(f"{url}/server_info", timeout=10).close()
                break
            except (URLError, OSError):
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit("the server did not start; its output is above") from None
                time.sleep(2)
        yield url
    finally:
        os.killpg(process.pid, 15)
        process.wait()


def main() -> None:
    """Run the checks."""
    parts = {"engine": engine, "server": server}
    selected = sys.argv[1:] or list(parts)
    with tempfile.TemporaryDirectory() as folder:
        folders = checkpoints(Path(folder))
        if not all(parts[name](*folders) for name in selected):
            raise SystemExit("SGLang and twotemp differ")


if __name__ == "__main__":
    main()
