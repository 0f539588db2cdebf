"""The training loop of the denoisers, which ends with a LLaDA checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipes import checkpoints, tokenizer
from recipes.corpus import Corpus, generate
from recipes.log import LossLog, ProgressCallback, ignore_progress
from recipes.muon import Muon
from recipes.objective import Logits, diffusion_loss, next_token_loss, uniform_loss
from recipes.recipe import Recipe, threads
from twotemp.folders import claim, only_writer
from twotemp.models import llada
from twotemp.models.checkpoint import save
from twotemp.models.load import load

MODEL = "model"  # the folder of the finished checkpoint, in `out`
FIRST = "first"  # the folder of the run of the recipe's `after`, in `out`


def train(recipe: Recipe, out: Path, on_progress: ProgressCallback = ignore_progress) -> Path:
    """Train a denoiser and return the folder of its LLaDA checkpoint.

    `out` also gets the log (a line every `log_every` steps and with every checkpoint), the loss curve, and the state
    of the run. After an interruption the same call continues from the last checkpoint and ends with the same weights.
    If the recipe has an `after`, that recipe is trained first, in a folder inside `out`; if it names an embedded
    model, the run starts from its weights.
    """
    with only_writer(out), threads(recipe.threads):
        return _train(recipe, out, on_progress)


def _train(recipe: Recipe, out: Path, on_progress: ProgressCallback) -> Path:
    words, masks = tokenizer.build(), recipe.noise == "mask"
    model = llada.new(config(recipe, words), words, seed=recipe.seed, name=recipe.name, masks=masks)
    network = model.module.train()
    optimizer = Muon(network, recipe.weight_decay)
    done = checkpoints.read(out, recipe, network, optimizer)
    # `checkpoints.read` has already checked which changes the finished steps allow.
    claim(out, "training", {"recipe": recipe.to_dict()}, step=None)
    start = train(recipe.after, out / FIRST, on_progress) if recipe.after and not done else recipe.model
    if start is not None and not done:
        first = load(start, device="cpu").module
        assert first is not None
        network.load_state_dict(first.state_dict())
    log = LossLog(out, done)
    if done < recipe.steps:
        corpus = Corpus(generate(recipe.examples, recipe.seed, words.get_vocab()), recipe.batch_tokens)
        for step in range(done, recipe.steps):
            next_token = step < recipe.next_token_steps
            if step in (done, recipe.next_token_steps):
                logits = forward(network, causal=next_token, compiled=recipe.compile)
            generator = torch.Generator().manual_seed((recipe.seed << 32) + step)
            batch = corpus.batch(generator)
            if next_token:
                loss = next_token_loss(logits, batch.ids, batch.prompt)
            elif not masks:
                loss = uniform_loss(
                    *(logits, batch.ids, batch.prompt, model.vocab_size, generator),
                    least_time=recipe.least_time,
                )
            else:
                loss = diffusion_loss(
                    logits,
                    batch.ids,
                    batch.prompt,
                    model.mask_id,
                    generator,
                    least_time=recipe.least_time,
                    largest_weight=recipe.largest_weight,
                )
            optimizer.descend(loss, recipe.rate(step))
            log.add(batch.task, loss.item(), batch.ids.numel())
            checkpoint = (step + 1) % recipe.checkpoint_every == 0 or step + 1 == recipe.steps
            # Also with every checkpoint, so that a resumed run finds the tokens and seconds so far in the last line.
            if (step + 1) % recipe.log_every == 0 or checkpoint:
                log.write(step + 1, "next token" if next_token else "diffusion", recipe.rate(step))
            if checkpoint:
                checkpoints.write(out, step + 1, recipe, network, optimizer)
            on_progress(step + 1, recipe.steps, f"{recipe.name}, loss {loss.item():.3f}")
    log.plot("loss (nats per answer token)")
    network.eval()
    return out / MODEL if (out / MODEL).exists() else save(model, out / MODEL)


def config(recipe: Recipe, words: Any) -> dict[str, Any]:
    """Return config.json of the small model: LLaDA-8B's fields and values, with smaller sizes."""
    vocabulary = words.get_vocab()
    mask = {"mask_token_id": vocabulary[tokenizer.MASK]} if recipe.noise == "mask" else {}
    return mask | {
        "activation_type": "silu",
        "alibi": False,
        "attention_dropout": 0.0,
        "attention_layer_norm": False,
        "bias_for_layer_norm": False,
        "block_group_size": 1,
        "block_type": "llama",
        "d_model": recipe.d_model,
        "embedding_size": len(vocabulary),
        "eos_token_id": vocabulary[tokenizer.EOS],
        "include_bias": False,
        "include_qkv_bias": False,
        "init_std": 0.02,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "max_sequence_length": tokenizer.MAX_LENGTH,
        "mlp_hidden_size": recipe.mlp_hidden_size,
        "multi_query_attention": None,
        "n_heads": recipe.n_heads,
        "n_kv_heads": recipe.n_heads,
        "n_layers": recipe.n_layers,
        "pad_token_id": vocabulary[tokenizer.EOS],
        "rms_norm_eps": 1e-5,
        "rope": True,
        "rope_theta": 10000.0,
        "scale_logits": False,
        "vocab_size": len(vocabulary),
        "weight_tying": False,
    }


def forward(network: Any, causal: bool, compiled: bool) -> Logits:
    """Return a function (ids, want) -> logits of the wanted positions, with causal or full attention."""
    network.config.is_causal = causal

    def hidden(ids: Tensor) -> Tensor:
        states: Tensor = network.model(input_ids=ids, use_cache=False).last_hidden_state
        return states

    if compiled:
        torch._dynamo.reset()  # code compiled before has the other kind of attention built in
        hidden = torch.compile(hidden, dynamic=True)  # one kernel for all lengths
    return lambda ids, want: network.lm_head(hidden(ids)[want])
