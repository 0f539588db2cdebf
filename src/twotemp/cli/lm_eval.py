"""`twotemp lm-eval`: lm-evaluation-harness with our model registered."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import typer

from twotemp.errors import UserError

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def lm_eval(context: typer.Context) -> None:
    """The command line of lm-evaluation-harness, with `--model twotemp`; see docs/lm-eval.md."""
    if find_spec("lm_eval") is None:
        raise UserError("lm-evaluation-harness is not installed; pip install 'twotemp[lm-eval]'")
    # Its own models first: lm-eval registers them only as long as it knows no other.
    import lm_eval.models  # noqa: F401
    from lm_eval.__main__ import cli_evaluate

    import twotemp.integrations.lm_eval  # noqa: F401

    sys.argv = ["lm-eval", *context.args]
    cli_evaluate()
