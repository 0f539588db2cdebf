"""Log-likelihoods under a denoiser: for `twotemp.score`, GRPO and reward models.

`queries` says which partly masked rows to show the model and computes log q, `estimators` is the table of estimators,
`score` is the public function.
"""
