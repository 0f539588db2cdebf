"""The paper's experiments on the embedded models. `make paper` runs them all; `paper.py` says what they write."""
