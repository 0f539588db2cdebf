"""Every policy by name: a point of the frame in `step.py`, with its parameters, formula and source.

LC, random and CT need no code: they are T_pos = 0 and T_pos = inf of the two tempered families.
A new policy is one entry here; the conformance tests include it automatically.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from twotemp.records import Policy

_EVERYWHERE = (
    *("t_token", "top_k", "top_p", "eos", "repel"),
    *("steps", "cooling", "stop_steps", "stop_entropy"),  # how a canvas of a model without a mask ends
)


@dataclass(frozen=True)
class Preset:
    """A named policy: its default numbers, which of them a user may set, and where it comes from."""

    policy: Policy
    parameters: tuple[str, ...]
    formula: str
    source: str
    settable: tuple[str, ...] = field(init=False)  # `parameters`, and those that every policy has

    def __post_init__(self) -> None:
        object.__setattr__(self, "settable", tuple(dict.fromkeys(self.parameters + _EVERYWHERE)))

    @property
    def experimental(self) -> bool:
        """Whether it uses a method of `twotemp.experimental`."""
        return self.policy.repel > 0 or self.policy.edit != "never"


def _preset(like: Policy, name: str, formula: str, source: str, **changed: Any) -> Preset:
    """Return a preset; `name` is followed by the parameters that a user may set."""
    name, *parameters = name.split()
    return Preset(replace(like, name=name, **changed), tuple(parameters), formula, source)


PAPER = "A Tale of Two Temperatures"
# The plain rules, which the others vary.
_LEFT = Policy("left", score="position", rule="budget")
_BEST = Policy("best", score="log_confidence", rule="budget")
_ABOVE = Policy("above", score="confidence", rule="threshold", threshold=0.6)
_DRAWN = replace(_ABOVE, confidence="drawn", t_token=0.0)

PRESETS: dict[str, Preset] = {
    p.policy.name: p
    for p in (
        # The paper's six.
        _preset(_LEFT, "ar k", "the K leftmost masked positions", f"{PAPER}, section 2"),
        _preset(
            _BEST,
            "random k steps",
            "K masked positions, uniformly (TLC at T_pos = inf)",
            "Nie et al. 2025 (LLaDA), random remasking",
            t_pos=float("inf"),
        ),
        _preset(
            _BEST,
            "lc k steps",
            "the K highest c (TLC at T_pos = 0); with steps, K is LLaDA's even split of a block over that many steps",
            "Chang et al. 2022 (MaskGIT), Nie et al. 2025 (LLaDA)",
        ),
        _preset(
            _BEST,
            "tlc k steps t_pos",
            "K draws without replacement from Cat(c^(1/T_pos)): the K highest log c + T_pos Gumbel",
            f"{PAPER}, algorithm 2; for images MaskGIT's random top-k",
            t_pos=1.0,
        ),
        _preset(
            _ABOVE,
            "ct threshold",
            "all c > lambda; if none, the highest (TCT at T_pos = 0)",
            f"Wu et al. 2025 (Fast-dLLM); {PAPER}, algorithm 3",
        ),
        _preset(
            _ABOVE,
            "tct threshold t_pos",
            "each with probability sigma((c - lambda)/T_pos): all c + T_pos Logistic > lambda; "
            "if none, the highest",
            f"{PAPER}, algorithm 4",
            t_pos=0.1,
        ),
        # The field's other heuristics, in the same frame and each temperable.
        _preset(
            _BEST,
            "margin k t_pos",
            "the K highest log(q1 - q2) + T_pos Gumbel, q1 and q2 the two likeliest tokens",
            "Kim et al. 2025 (top probability margin)",
            score="log_margin",
        ),
        _preset(
            _BEST,
            "entropy k t_pos",
            "the K highest -H(q) + T_pos Gumbel",
            "Ye et al. 2025 (Dream, alg=entropy)",
            score="neg_entropy",
        ),
        _preset(
            _BEST,
            "eb entropy_bound k t_pos",
            "the longest prefix U by -H(q) + T_pos Gumbel with sum_U H - max_U H <= gamma",
            "Ben-Hamu et al. 2025 (entropy-bounded unmasking)",
            score="neg_entropy",
            rule="entropy_bound",
            entropy_bound=0.1,
        ),
        _preset(
            _ABOVE,
            "klass threshold kl_bound kl_steps k t_pos",
            "all c + T_pos Logistic > lambda whose q moved by KL < epsilon in each of the last n steps; "
            "if none, the K highest of all",
            "Kim et al. 2025 (KLASS)",
            rule="stable",
            kl_bound=0.01,
            kl_steps=2,
        ),
        _preset(
            _BEST,
            "alg-temp k t_pos",
            "K draws without replacement from softmax(c / T_pos): tempers c where TLC tempers log c",
            "Ye et al. 2025 (Dream, alg_temp)",
            score="confidence",
            t_pos=0.1,
        ),
        _preset(
            _LEFT,
            "soft-ar k t_pos",
            "the K highest -position + T_pos Gumbel: left to right, loosened",
            "this project",
            t_pos=1.0,
        ),
        # Upstream-faithful: where a code base's semantics differ from the paper's.
        _preset(
            _ABOVE,
            "fast-dllm threshold t_pos",
            "all c >= lambda (not >), and the highest",
            "Fast-dLLM's LLaDA sampler",
            threshold=0.9,
            inclusive=True,
            t_token=0.0,
        ),
        _preset(
            _BEST,
            "dream steps schedule t_pos",
            "the k(step) highest -H(q) + T_pos Gumbel, q tempered and filtered, k >= 1 from Dream's time grid "
            "(schedule=dream-exact: upstream's k, which can be 0); decode in one block (block = length), as it does",
            "Dream's diffusion_generate (alg=entropy)",
            score="neg_entropy",
            confidence="drawn",
            steps=256,
            schedule="dream",
            t_token=0.2,
            top_p=0.95,
        ),
        _preset(
            _ABOVE,
            "sdar threshold k t_pos",
            "all c > lambda and at least the K highest",
            "SDAR's low_confidence_dynamic with its evaluation code's unfiltered c (generate.py filters first: "
            "at top_k = 1 every c is 1); k clamped to the masks left, which upstream forgets",
            threshold=0.85,
            t_token=1.0,
        ),
        _preset(
            _DRAWN,
            "llada2 threshold k t_pos",
            "all c > lambda and at least the K highest, c of the tempered and filtered q",
            "LLaDA-2's generate (T_token = 0 is greedy here; upstream's sampled at 1)",
            threshold=0.95,
        ),
        _preset(
            _BEST,
            "diffusion-gemma entropy_bound k t_pos",
            "as eb, with H of the tempered q, T_token falling by the share `cooling` over the `steps` of a canvas; "
            "what is not committed becomes random tokens, and the text is the likeliest tokens once they have stayed "
            "the same for `stop_steps` steps with a mean H < `stop_entropy`; t_pos = 0 is upstream's",
            "DiffusionGemma's generate (transformers)",
            score="neg_entropy",
            rule="entropy_bound",
            confidence="drawn",
            entropy_bound=0.1,
            t_token=0.8,
            cooling=0.5,
            steps=48,
        ),
        # The order does not depend on the drawn token, or not at forks: other ways to diversity.
        _preset(
            _BEST,
            "tpp k steps t_pos",
            "the K highest log max_v q(v) + T_pos Gumbel: chosen before the token is drawn, so that the choice does "
            "not prefer likely draws (docs/theory.md, section 5)",
            "Jeon et al. 2026 (TPP)",
            score="log_top",
        ),
        _preset(
            _BEST,
            "egi k steps t_pos first_t_token",
            "the first step: the K highest H(q) + T_pos Gumbel, drawn at T_token = first_t_token; then as tpp",
            "Jeon et al. 2026 (EGI)",
            score="log_top",
            first_score="entropy",
            first_t_token=0.9,
            t_token=0.6,
        ),
        _preset(
            _ABOVE,
            "fork threshold t_pos",
            "all c + T_pos Logistic > lambda; if none, the leftmost mask, whatever was drawn there",
            "Frkovic, Jazbec, Naesseth 2026 (Fork-dLLM)",
            fallback="leftmost",
            threshold=0.8,
        ),
        # Experimental: the samples of a prompt repel each other. Any preset can: `tct:repel=16`.
        _preset(
            _BEST,
            "odd k steps t_pos",
            "as tlc, but sample i's logits are first pushed away from what samples 0 to i - 1 of the prompt say, "
            "by alpha (repel) times the share of the row that is still masked",
            "Lamont et al. 2026 (ODD)",
            repel=16.0,
            t_token=1.0,
        ),
        # Experimental: tokens of the active block may be rewritten.
        _preset(
            _DRAWN,
            "llada2.1 threshold k edit_threshold edits t_pos",
            "as llada2; at the same time a token already written in the block is overwritten if another one is drawn "
            "with c > tau, at most `edits` times per position; a block ends with a step that rewrites nothing "
            "(threshold=0.5,edit_threshold=0 is upstream's speed mode)",
            "Bie et al. 2026 (LLaDA-2.1, quality mode; upstream's budget is 16 steps after the last mask instead)",
            threshold=0.7,
            edit="overwrite",
            edit_threshold=0.5,
            edits=16,
        ),
        _preset(
            _DRAWN,
            "t2m threshold k edit_threshold edit_share edits t_pos",
            "as llada2.1, but a token already written in the block becomes a mask again if q(token) < tau: at most a "
            "quarter (edit_share) of them in a step, the least likely, and `edits` times per position",
            "Yao 2026 (T2M, low probability)",
            threshold=0.7,
            edit="remask",
            edit_threshold=0.1,
            edit_share=0.25,
            edits=3,
        ),
    )
}
