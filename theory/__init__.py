"""The paper's theory of fork tokens (section 3.1, appendix C) as code that can be wrong. Not part of the wheel.

    anchor_fork  the anchor-fork model as an object: anchors, eta, confidence paths
    exact        which positions a policy commits, and the order that follows, by enumeration
    strings      the same on token strings: the law of what a policy writes
    statements   every statement of the appendix, as numbers that can disagree with it
    beyond       what the paper leaves open: K > 1 and tempered thresholds
    table        a `LanguageModel` given by an explicit distribution over sequences
    denoiser     the anchor-fork model as a `Denoiser`, to compare the real engine with `exact`
    planted      the paper's overview example as a table model, with its exact outcomes

`docs/theory.md` has the proofs and the measurements.
"""
