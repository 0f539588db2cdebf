"""Random LLaDA-layout models whose costs are shaped like the real one's, and requests for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from twotemp.models import llada
from twotemp.models.llada import LLaDA
from twotemp.models.load import compile_body
from twotemp.policies import policy
from twotemp.records import Policy, Request

LOGIT_SCALE = 8.0  # confidences then range over (0, 1), as those of a trained model do
REAL_VOCABULARY = 126_464
T_TOKEN, THRESHOLD = 0.8, 0.6
POLICIES: dict[str, Policy] = {
    "LC, K = 1": policy("lc", t_token=T_TOKEN),
    f"CT, λ = {THRESHOLD}": policy("ct", threshold=THRESHOLD, t_token=T_TOKEN),
}


@dataclass(frozen=True)
class Proxy:
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
            "init_std": self.width**-0.5,  # so that the layers, and with them the context, matter
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
        """Multiplications of the layers a token, over those of the head."""
        return self.layers * (4 + 9) * self.width / self.vocabulary

    def model(self) -> LLaDA:
        made = llada.new(self.config, name=self.name)
        made.module.eval().requires_grad_(False)
        # The last hidden state is normalised: a head of this spread gives logits of the scale wanted.
        torch.nn.init.normal_(
            made.module.lm_head.weight,
            std=LOGIT_SCALE / self.width**0.5,
            generator=torch.Generator().manual_seed(1),
        )
        return made

    def compiled(self) -> LLaDA:
        """The same model behind torch.compile; a UserError where that does not work."""
        made = self.model()
        compile_body(made)
        return made


# LLaDA-8B with every width divided by 16: its 32 layers and its ratio of body to head, 13.5 : 1.
RATIO = Proxy("LLaDA-8B, 16 times narrower", width=256, layers=32, vocabulary=REAL_VOCABULARY // 16)
VOCABULARY = Proxy("the real vocabulary, a tiny body", width=256, layers=2, vocabulary=REAL_VOCABULARY)


def prompts(model: LLaDA, rows: int, tokens: int) -> torch.Tensor:
    """Different prompts, so that no two rows are ever in the same state and nothing is computed once for all."""
    noise = torch.Generator().manual_seed(0)
    return torch.randint(2, min(model.vocab_size, 1000) - 1, (rows, tokens), generator=noise)


def requests(texts: torch.Tensor, chosen: Policy, length: int, block: int) -> list[Request]:
    return [Request(str(i), tuple(row), chosen, length, block) for i, row in enumerate(texts.tolist())]
