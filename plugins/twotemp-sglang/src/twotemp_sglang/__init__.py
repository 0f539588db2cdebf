"""Run twotemp's policies inside an SGLang server (`server`), and draw samples through such a server (`client`)."""

NAME = "TwoTemp"  # the algorithm's name, as in `--dllm-algorithm TwoTemp`
