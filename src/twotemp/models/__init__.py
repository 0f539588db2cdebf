"""Masked diffusion language models behind one contract (`base.Denoiser`); `load.load` is the way in."""
