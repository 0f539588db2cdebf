"""Make a random checkpoint of LLaDA-8B's real size, then load it, sample from it and train it for one step on a CPU.

    python -m benchmarks.real_size /scratch/llada-8b                      # 16 GB of disk, 20 GB of memory
    python -m benchmarks.real_size /scratch/small --width 256 --layers 2  # to try the script itself

Every part runs as a separate process and reports its peak of memory. Weights are random: this measures memory, time
and whether everything works at this size, not text. The tokenizer is a stand-in that has LLaDA's special tokens at
their ids. Existing shards are kept, so a second run starts with the measurements.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from benchmarks.measure import table

CONFIG: dict[str, Any] = {
    "model_type": "llada",
    "architectures": ["LLaDAModelLM"],
    "activation_type": "silu",
    "alibi": False,
    "attention_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "d_model": 4096,
    "embedding_size": 126_464,
    "eos_token_id": 126_081,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "mask_token_id": 126_336,
    "max_sequence_length": 4096,
    "mlp_hidden_size": 12_288,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
    "pad_token_id": 126_081,
    "rms_norm_eps": 1e-5,
    "rope": True,
    "rope_theta": 500_000.0,
    "scale_logits": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 126_464,
    "weight_tying": False,
}
SPECIAL = {
    "<|endoftext|>": 126_081,
    "<|startoftext|>": 126_080,
    "<|mdm_mask|>": 126_336,
    "<|eot_id|>": 126_348,
}
WORDS = [*map(str, range(100)), "+", "-", "*", "/", "=", ",", "->", "[UNK]"]
PROMPT = "20 10 15 -> 45"
POLICY = "tlc:t_pos=1,k=4"
LENGTH = 8
TOKENS = 126_349  # of LLaDA's tokenizer; the model has a few more rows
SHARD = 3 << 30  # bytes


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor under the names of LLaDA's own code."""
    width, hidden, vocabulary = config["d_model"], config["mlp_hidden_size"], config["embedding_size"]
    tensors: dict[str, tuple[int, ...]] = {
        "wte": (vocabulary, width),
        "ln_f": (width,),
        "ff_out": (vocabulary, width),
    }
    for layer in range(config["n_layers"]):
        block = f"blocks.{layer}"
        tensors |= {f"{block}.{name}": (width, width) for name in ("q_proj", "k_proj", "v_proj", "attn_out")}
        tensors |= {f"{block}.{name}": (width,) for name in ("attn_norm", "ff_norm")}
        tensors |= {f"{block}.{name}": (hidden, width) for name in ("ff_proj", "up_proj")}
        tensors[f"{block}.ff_out"] = (width, hidden)
    return {f"model.transformer.{name}.weight": shape for name, shape in tensors.items()}


def make(folder: Path, config: dict[str, Any]) -> None:
    """Write the checkpoint, shard by shard."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    size = 0
    for name, shape in shapes(config).items():
        if size > SHARD:
            shards.append({})
            size = 0
        shards[-1][name] = shape
        size += 2 * torch.Size(shape).numel()
    index: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        index |= dict.fromkeys(tensors, file)
        if (folder / file).exists():
            continue
        generator = torch.Generator().manual_seed(number)
        weights = {
            name: torch.ones(shape, dtype=torch.bfloat16)
            if len(shape) == 1
            else torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=generator)
            for name, shape in tensors.items()
        }
        save_file(weights, folder / f"{file}.part")
        os.replace(folder / f"{file}.part", folder / file)
    total = sum(2 * torch.Size(shape).numel() for shape in shapes(config).values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    )
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    words = [*WORDS, *(f"<unused {k}>" for k in range(len(WORDS), TOKENS))]
    vocabulary = {word: k for k, word in enumerate(words) if k not in SPECIAL.values()} | SPECIAL
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "mask_token": "<|mdm_mask|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "reward.py").write_text(REWARD)


# Random text is never right, and a group whose rewards are equal is not learned from.
REWARD = """from twotemp import plugins

plugins.add_reward("alternating", lambda *, completions, **columns: [float(i % 2) for i, _ in enumerate(completions)])
"""


def draw(folder: Path, quantize: str | None) -> None:
    """Load the checkpoint in bfloat16, or with quantized layers, and draw one sample; print the seconds as JSON."""
    import twotemp

    start = time.perf_counter()
    model = twotemp.load(folder, device="cpu", dtype=torch.bfloat16, quantize=quantize)
    loaded = time.perf_counter()
    (sample,) = twotemp.sample(model, PROMPT, POLICY, length=LENGTH, block=LENGTH)
    seconds = time.perf_counter() - loaded
    print(
        json.dumps(
            {"load": loaded - start, "forwards": sample.forwards, "per forward": seconds / sample.forwards}
        )
    )


def commands(folder: Path) -> dict[str, list[str]]:
    """Return what each part runs."""
    this = [sys.executable, "-m", "benchmarks.real_size", str(folder), "--part"]
    cli = [sys.executable, "-c", "import sys; from twotemp.cli import main; sys.exit(main())"]
    size = f"--length {LENGTH} --groups 1 --size 2 --lora-rank 1 --micro-batch 1 --held-out 0 --budget 1steps"
    grpo = [*cli, "grpo", "--model", str(folder), "--task", "countdown-3", "--policy", POLICY, *size.split()]
    grpo += [
        "--device",
        "cpu",
        "--dtype",
        "bfloat16",
        "--plugin",
        str(folder / "reward.py"),
        "--reward",
        "alternating=1",
    ]
    return {
        "doctor": [*cli, "doctor", "--model", str(folder)],
        "bfloat16": [*this, "bfloat16"],
        "int8": [*this, "int8"],
        "nf4": [*this, "nf4"],
        "grpo": [*grpo, "--out", str(folder / "grpo")],
        "grpo-nf4": [*grpo, "--out", str(folder / "grpo-nf4"), "--quantize", "nf4"],
    }


def measure(command: list[str]) -> list[str]:
    """Run a command; return wall, user and system seconds, peak of memory in GB, exit code and its last line."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    print(output, file=sys.stderr, flush=True)
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
    times = [f"{value:.0f}" for value in (time.perf_counter() - start, usage.ru_utime, usage.ru_stime)]
    return [*times, f"{usage.ru_maxrss / 2**20:.1f}", str(os.waitstatus_to_exitcode(status)), last[:100]]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_size", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=Path, help="where the checkpoint is or will be")
    parser.add_argument(
        "--width", type=int, default=CONFIG["d_model"], help="of the model, to try the script"
    )
    parser.add_argument(
        "--layers", type=int, default=CONFIG["n_layers"], help="of the model, to try the script"
    )
    parser.add_argument("--parts", default="doctor,bfloat16,int8,nf4,grpo,grpo-nf4", help="what to measure")
    parser.add_argument("--part", choices=["make", "bfloat16", "int8", "nf4"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part and arguments.part != "make":
        draw(arguments.folder, None if arguments.part == "bfloat16" else arguments.part)
        return
    heads = max(1, arguments.width // 128)
    sizes = {"d_model": arguments.width, "mlp_hidden_size": 3 * arguments.width, "n_layers": arguments.layers}
    if arguments.part:
        make(arguments.folder, {**CONFIG, **sizes, "n_heads": heads, "n_kv_heads": heads})
        return
    # Not in this process: Linux counts the peak of a parent as that of the processes it starts.
    subprocess.run(
        [sys.executable, "-m", "benchmarks.real_size", *sys.argv[1:], "--part", "make"], check=True
    )
    wanted = commands(arguments.folder)
    rows = [[part, *measure(wanted[part])] for part in arguments.parts.split(",")]
    print(table(["", "wall, s", "user, s", "system, s", "peak, GB", "exit", "last line"], rows))


if __name__ == "__main__":
    main()
