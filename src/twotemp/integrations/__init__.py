"""Other people's harnesses: our samplers as a model of theirs, and their results as a run of ours.

Thin edges. Prompts are encoded, requests made and samples drawn where everything else of the package does it; what is
here translates names. Neither harness is imported before it is asked for.
"""
