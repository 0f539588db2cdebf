"""The paper's theory of fork tokens (section 3.1, appendix C) as code that tests can refute. Not part of the wheel.

    anchor_fork  the anchor-fork model as an object: anchors, eta, confidence paths
    exact        the law of the committed positions and of their order, by enumeration
    strings      the law of the strings that a policy writes
    statements   every statement of the appendix, as the numbers that it compares
    beyond       extensions of the paper: K > 1 and tempered thresholds
    table        a `LanguageModel` given by an explicit distribution over sequences
    denoiser     the anchor-fork model as a `Denoiser`, to compare the engine with `exact`
    planted      the paper's overview example as a table model, with its exact outcomes

`docs/theory.md` has the proofs and the measurements.
"""
