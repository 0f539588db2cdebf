"""Fork tokens: the paper's theory (section 3.1, appendix C) as code that can be wrong, and the study behind it.

    theory      the anchor-fork model as an object: anchors, eta, confidence paths
    exact       which positions a policy commits, and the order that follows, by enumeration
    strings     the same on token strings: the law of what a policy writes
    statements  every statement of the appendix, as numbers that can disagree with it
    beyond      what the paper leaves open: K > 1 and tempered thresholds
    denoiser    the anchor-fork model as a Denoiser, so that the real engine can be held against `exact`

`docs/theory.md` has the proofs and the measurements.
"""
