"""`twotemp lm-eval`: lm-evaluation-harness with our model registered."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import typer

from twotemp.errors import UserError


def lm_eval(context: typer.Context) -> None:
    """Run lm-evaluation-harness with `--model twotemp` registered.

    All options are the harness's; see docs/lm-eval.md.

    [bold]Example[/bold]

      twotemp lm-eval run --model twotemp --model_args pretrained=tiny --tasks gsm8k --limit 10
    """
    if find_spec("lm_eval") is None:
        raise UserError("lm-evaluation-harness is not installed; pip install 'twotemp[lm-eval]'")
    # An optional package, imported after the check above; its own models come first, because lm-eval registers them
    # only as long as no other model is registered.
    import lm_eval.models  # noqa: F401
    from lm_eval.__main__ import cli_evaluate

    import twotemp.integrations.lm_eval  # noqa: F401

    sys.argv = ["lm-eval", *context.args]
    cli_evaluate()
