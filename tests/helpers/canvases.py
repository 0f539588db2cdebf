"""Random DiffusionGemma checkpoints, and what `generate` of `transformers` draws from them, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, PreTrainedTokenizerFast

from twotemp import rng
from twotemp.records import Request

VOCABULARY, EOS = 48, 1
LAYERS = ["sliding_attention", "sliding_attention", "full_attention"]
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "layer_types": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "sliding_window": 6,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 16,
    "max_position_embeddings": 256,
    "eos_token_id": EOS,
}
VISION = {
    **{"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1},
    **{"num_key_value_heads": 1, "head_dim": 8, "patch_size": 4, "model_type": "gemma4_vision"},
}


def random_module(canvas: int = 8, seed: int = 0, sharpness: float = 0.6, **text: Any) -> Any:
    """Return a DiffusionGemma of `transformers` whose weights are all random, also norms and scales of layers."""
    config = DiffusionGemmaConfig(
        text_config=TEXT | text,
        vision_config=dict(VISION),
        canvas_length=canvas,
        image_token_id=VOCABULARY - 1,
    )
    module = DiffusionGemmaForBlockDiffusion(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if name.endswith(("inv_freq", "embed_scale")):
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if "norm" in name or name.endswith(("layer_scalar", "scale")):
                # Layers change little: else rounding grows from step to step, as each is conditioned on the last.
                tensor.copy_((0.3 if "post_" in name else 1) * (1 + 0.2 * noise))
            else:
                tensor.copy_((sharpness if "embed_tokens" in name else 0.2) * noise)
    return module


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of words w2, w3, ... with a chat template in the manner of Gemma's."""
    words = {"<pad>": 0, "<eos>": EOS, "<turn|>": 2, "<|turn>": 3, "[UNK]": 4, "<|image|>": VOCABULARY - 1}
    words |= {f"w{i}": i for i in range(5, VOCABULARY - 1)}
    core = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    template = (
        "{% for message in messages %}<|turn> {{ message.content }} <turn|> {% endfor %}"
        "{% if add_generation_prompt %}<|turn> {% endif %}"
    )
    special = ["<turn|>", "<|turn>", "<|image|>"]
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=special,
        chat_template=template,
    )


def save_checkpoint(folder: Path, **options: Any) -> Path:
    """Write a random checkpoint as `transformers` writes it, with a tokenizer, and return its folder."""
    random_module(**options).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@dataclass
class Recording:
    """What `generate` drew, per canvas and step; tensors are [rows, positions, ...]."""

    start: list[torch.Tensor] = field(default_factory=list)  # the first noise of each canvas
    steps: list[list[dict[str, torch.Tensor]]] = field(default_factory=list)
    sequences: torch.Tensor | None = None


def record(module: Any, prompts: Sequence[Sequence[int]], seed: int, **options: Any) -> Recording:
    """Run `generate` on prompts, padded on the left, and note everything that it draws and decides."""
    found, drawn = Recording(), {}
    make, step, multinomial, forward = (
        *(module._prepare_sampler, module._denoising_step, torch.multinomial, module.forward),
    )

    def prepare(config: Any) -> Any:
        sampler = make(config)
        initial, accept, renoise = sampler.initialize_canvas, sampler.accept_canvas, sampler.renoise_canvas

        def note_initial(batch_size: int, device: Any) -> torch.Tensor:
            drawn["noise"] = initial(batch_size, device)
            return drawn["noise"]

        def note_accept(*arguments: Any) -> torch.Tensor:
            canvas = accept(*arguments)
            drawn["accepted"] = sampler.accepted_token_mask
            return canvas

        sampler.initialize_canvas, sampler.accept_canvas, sampler.renoise_canvas = (
            note_initial,
            note_accept,
            renoise,
        )
        return sampler

    def note_draw(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        tokens = multinomial(probabilities, num_samples)
        drawn["probabilities"], drawn["tokens"] = probabilities, tokens
        return tokens

    def note_logits(**inputs: Any) -> Any:
        output = forward(**inputs)
        drawn["logits"] = output.logits
        return output

    def note_step(**inputs: Any) -> Any:
        if inputs["self_conditioning_logits"] is None:
            found.start.append(inputs["current_canvas"])
            found.steps.append([])
        running = ~inputs["finished_denoising"].clone()
        inputs["decoder_forward"] = note_logits
        canvas, likeliest, soft, finished = step(**inputs)
        shape = canvas.shape
        found.steps[-1].append(
            {
                "running": running,
                "ends": finished.clone(),
                "canvas": canvas,
                "likeliest": likeliest,
                "accepted": drawn["accepted"],
                "tokens": drawn["tokens"].view(shape),
                "probabilities": drawn["probabilities"].view(*shape, -1),
                "logits": drawn["logits"],
                "noise": drawn["noise"],
            }
        )
        return canvas, likeliest, soft, finished

    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    real = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in prompts])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_prepare_sampler", prepare)
        patch.setattr(module, "_denoising_step", note_step)
        patch.setattr(torch, "multinomial", note_draw)
        torch.manual_seed(seed)
        output = module.generate(ids, attention_mask=real, eos_token_id=None, pad_token_id=None, **options)
    found.sequences = output.sequences[:, width:]
    return found


class Injected:
    """Replaces `rng.uniforms`: numbers with which our draws are those of a recording."""

    def __init__(self, recording: Recording, requests: Sequence[Request], canvas: int) -> None:
        self.recording, self.canvas = recording, canvas
        self.rows = {rng.row_key(r.seed, r.id, r.index): n for n, r in enumerate(requests)}
        self.starts = [len(r.prompt) for r in requests]
        self.first: dict[tuple[int, int], int] = {}  # (row, canvas) -> the row's step that is its first

    def __call__(
        self, keys: torch.Tensor, step: torch.Tensor, position: torch.Tensor, streams: Sequence[rng.Stream]
    ) -> torch.Tensor:
        result = torch.full((len(streams), *position.shape), 0.5, dtype=torch.float64)
        for at, (key, now) in enumerate(zip(keys.tolist(), step.tolist())):
            row = self.rows[key]
            for n, where in enumerate((position[at] - self.starts[row]).tolist()):
                number, offset = divmod(where, self.canvas)
                if where < 0 or number >= len(self.recording.start):
                    continue
                for stream, numbers in zip(streams, result):
                    numbers[at, n] = self.uniform(row, number, offset, now, stream)
        return result

    def uniform(self, row: int, number: int, offset: int, step: int, stream: rng.Stream) -> float:
        """Return the middle of the interval that gives what was recorded."""
        if step < 0:
            return (self.recording.start[number][row, offset].item() + 0.5) / VOCABULARY
        first = self.first.setdefault((row, number), step)
        event = self.recording.steps[number][step - first]
        if stream is rng.Stream.CANVAS:
            return (event["noise"][row, offset].item() + 0.5) / VOCABULARY
        cdf = event["probabilities"][row, offset].double().cumsum(0)
        token = event["tokens"][row, offset]
        below = cdf[token - 1].item() if token else 0.0
        return (below + cdf[token].item()) / 2 / cdf[-1].item()
