"""twotemp's policies inside an SGLang server (`server`), and drawing samples through such a server (`client`)."""

NAME = "TwoTemp"  # of the algorithm, as in `--dllm-algorithm TwoTemp`
