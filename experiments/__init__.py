"""The paper's experiments on the embedded models. `make paper` runs all of them; see `paper.py`."""
