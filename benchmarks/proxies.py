"""Random models in LLaDA's layout whose costs have the proportions of LLaDA-8B, and requests for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from twotemp.models import llada
from twotemp.models.llada import LLaDA
from twotemp.models.load import compile_body
from twotemp.policies import policy
from twotemp.records import Policy, Request

LOGIT_SCALE = 8.0  # spreads confidences over (0, 1), as in a trained model
REAL_VOCABULARY = 126_464
T_TOKEN, THRESHOLD = 0.8, 0.6
POLICIES: dict[str, Policy] = {
    "LC, K = 1": policy("lc", t_token=T_TOKEN),
    f"CT, λ = {THRESHOLD}": policy("ct", threshold=THRESHOLD, t_token=T_TOKEN),
}


@dataclass(frozen=True)
class Proxy:
    """The sizes of a random model."""

    name: str
    width: int
    layers: int
    vocabulary: int

    @property
    def config(self) -> dict[str, Any]:
        return {
            "activation_type": "silu",
            "block_type": "llama",
            "d_model": self.width,
            "embedding_size": self.vocabulary,
            "eos_token_id": 1,
            "init_device": "cpu",
            "init_std": self.width**-0.5,  # large enough for the layers, and thus the context, to matter
            "layer_norm_type": "rms",
            "mask_token_id": self.vocabulary - 1,
            "max_sequence_length": 2048,
            "mlp_hidden_size": 3 * self.width,  # LLaDA-8B: 12,288 = 3 * 4,096
            "n_heads": self.width // 64,
            "n_kv_heads": self.width // 64,
            "n_layers": self.layers,
            "pad_token_id": 1,
            "rms_norm_eps": 1e-5,
            "rope": True,
            "rope_theta": 500000.0,
            "vocab_size": self.vocabulary,
            "weight_tying": False,
        }

    @property
    def body_to_head(self) -> float:
        """Return the multiplications of the layers per token, divided by those of the head."""
        return self.layers * (4 + 9) * self.width / self.vocabulary

    def model(self) -> LLaDA:
        """Build the model."""
        model = llada.new(self.config, name=self.name)
        model.module.eval().requires_grad_(False)
        # The last hidden state is normalised, so the spread of the head sets the scale of the logits.
        torch.nn.init.normal_(
            model.module.lm_head.weight,
            std=LOGIT_SCALE / self.width**0.5,
            generator=torch.Generator().manual_seed(1),
        )
        return model

    def compiled(self) -> LLaDA:
        """Build the model with torch.compile; raise a UserError where that does not work."""
        model = self.model()
        compile_body(model)
        return model


# LLaDA-8B with every width divided by 16: its 32 layers and its ratio of body to head, 13.5 : 1.
RATIO = Proxy("LLaDA-8B, 16 times narrower", width=256, layers=32, vocabulary=REAL_VOCABULARY // 16)
VOCABULARY = Proxy("the real vocabulary, a tiny body", width=256, layers=2, vocabulary=REAL_VOCABULARY)


def prompts(model: LLaDA, rows: int, tokens: int) -> torch.Tensor:
    """Return random prompts; they differ, so that the engine cannot share computation between rows."""
    noise = torch.Generator().manual_seed(0)
    return torch.randint(2, min(model.vocab_size, 1000) - 1, (rows, tokens), generator=noise)


def requests(texts: torch.Tensor, chosen: Policy, length: int, block: int) -> list[Request]:
    """Return one request per prompt.

    Args:
        texts: the prompts' token ids, [rows, tokens].
        chosen: the policy of all requests.
        length: tokens to sample.
        block: the block length.
    """
    return [Request(str(i), tuple(row), chosen, length, block) for i, row in enumerate(texts.tolist())]
