"""Check that samples have not changed: hash what `twotemp eval` draws for every preset, family and cache.

    python -m benchmarks.samples --record before.json
    python -m benchmarks.samples --compare before.json     # prints every cell that differs and exits with 1

A cell is a family, a policy and a cache. Its hash covers the question, index, tokens and NFE of every sample, as
`twotemp export` writes them; for `ar` the text instead of the tokens, as `eval` ends its rows at their EOS since 0.3.
Block-causal families refuse the caches "prefix" and "dual": such cells are recorded as "refused". The script uses
only the command line, so it outlives the code behind it. Both files must come from the same machine and the same
torch, since others may round logits differently. It takes two minutes on one core.
"""

from __future__ import annotations

import os

# Set before torch is imported; the number of threads changes how sums are rounded.
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import contextlib
import hashlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from twotemp.cli import main as twotemp

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "fixtures"
CACHES = ("none", "prefix", "dual")  # with "none" a block-causal family uses its exact block cache
# Families that draw with every preset and variant: LLaDA's layout (trained), block-causal, and shifted logits. The
# other fixtures draw with the policies of FEW only.
FULL, FEW = ("tiny", "sdar", "dream"), ("ar", "tct", "llada2.1")
# Parameters that no preset sets by default.
VARIANTS = (
    *("lc:steps=3", "lc:eos=last", "tlc:top_k=4", "tct:top_p=0.9,eos=never", "tct:repel=16", "eb:t_pos=0.5"),
    *("margin:t_pos=0.5", "entropy:t_pos=0.5", "klass:t_pos=0.1", "t2m:t_pos=0.1,t_token=0.8"),
)
# Prompts of two lengths, more samples than rows of a batch, several blocks.
DRAWN = "--tasks countdown-3,countdown-4 --questions 2 -n 3 --length 20 --batch-size 5".split()


def run(*arguments: str) -> tuple[int, str, str]:
    """Run `twotemp` in this process; return its exit code and what it wrote to stdout and stderr."""
    sys.argv, output, errors, code = ["twotemp", *arguments], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            twotemp()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, output.getvalue(), errors.getvalue()


def checkpoint(fixture: Path, folder: Path) -> list[str]:
    """Copy a random model to `folder`, with a tokenizer of single characters; return the options that load it."""
    shutil.copytree(fixture, folder)
    weights = load_file(folder / "model.safetensors")
    # Sharper logits than the fixture's spread the confidences over both sides of the thresholds.
    if "lm_head.weight" in weights:
        weights["lm_head.weight"] *= 3
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    tokens = [*" 0123456789+-*/=(),.>:?", *"abcdefghijklmnopqrstuv", "[UNK]", "<eos>", "<mask>"]
    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]").save_pretrained(folder)
    reference = json.loads((fixture / "reference.json").read_text())["options"]
    mask = reference["mask_id"]
    # iLLaDA's 5 would be a digit here, and a question must not contain the mask.
    if mask < tokens.index("[UNK]"):
        mask = tokens.index("<mask>")
    options = {"model": folder, "mask-id": mask, "eos-id": reference["eos_ids"][0]}
    if "block_size" in reference:
        options["block-size"] = reference["block_size"]
    if not reference.get("block_size"):
        options["block"] = 8
    return [f"--{name}={value}" for name, value in options.items()]


def cells(presets: list[str], folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of every cell and the options of `eval` that draw it; checkpoints are made in `folder`."""
    families = {"tiny": ["--model=tiny", "--block=8"]}
    for reference in sorted(FIXTURES.glob("*/reference.json")):
        families[reference.parent.name] = checkpoint(reference.parent, folder / reference.parent.name)
    for family, model in families.items():
        for policy in [*presets, *VARIANTS] if family in FULL else FEW:
            for cache in CACHES:
                options = [] if cache == "none" else ["--cache", cache]
                yield f"{family} {policy} {cache}", [*model, "--policies", policy, *options]


def draw(options: list[str], seed: int) -> str:
    """Draw one cell; return the hash of its samples, or "refused"."""
    with tempfile.TemporaryDirectory() as folder:
        out, exported = f"{folder}/run", f"{folder}/run.parquet"
        code, _, errors = run("eval", *options, *DRAWN, f"--seed={seed}", "--out", out)
        if code == 2 and "--cache" in options and "cache" in errors.strip().splitlines()[-1]:
            return "refused"
        if code or run("export", out, exported)[0]:
            raise SystemExit(f"eval {' '.join(options)} failed with exit code {code}: {errors}")
        drawn = "text" if "ar" in options else "tokens"
        table = pyarrow.parquet.read_table(exported, columns=["question", "index", drawn, "nfe"])
    samples = sorted(tuple(row.values()) for row in table.to_pylist())
    return hashlib.sha256(json.dumps(samples).encode()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.samples")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--record", type=Path, metavar="FILE", help="write the hashes to this file")
    mode.add_argument("--compare", type=Path, metavar="FILE", help="compare with the hashes in this file")
    parser.add_argument(
        "--seed", type=int, default=0, help="a different seed changes the samples of all but greedy policies"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help='only cells whose names contain this, e.g. "tiny tct"'
    )
    arguments = parser.parse_args()
    presets = list(json.loads(run("policies", "--json")[1]))
    with tempfile.TemporaryDirectory() as folder:
        selected = [cell for cell in cells(presets, Path(folder)) if arguments.only in cell[0]]
        hashes = {name: draw(options, arguments.seed) for name, options in selected}
    refused = [name for name, value in hashes.items() if value == "refused"]
    families = sorted({name.split()[0] for name in refused})
    print(f"{len(hashes)} cells; {len(refused)} refused, caches of: {', '.join(families)}", file=sys.stderr)
    if arguments.record:
        arguments.record.write_text(json.dumps(hashes, indent=1) + "\n")
        return 0
    recorded = json.loads(arguments.compare.read_text())
    before = {name: value for name, value in recorded.items() if arguments.only in name}
    changed = [name for name in before | hashes if before.get(name) != hashes.get(name)]
    for name in changed:
        print(f"{name}: {before.get(name, 'absent')[:12]} -> {hashes.get(name, 'absent')[:12]}")
    print(f"{len(changed)} of {len(before)} cells differ")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
