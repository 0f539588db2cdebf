"""A folder for the hub: `model.generate(..., custom_generate="<this repository>", trust_remote_code=True)`."""

import twotemp


def generate(model, inputs=None, custom_generate=None, **options):
    """Run `generate` with twotemp's policies; see `twotemp.generate` for policy=, mask_id=, seed= and block=."""
    options = {name: value for name, value in options.items() if value is not None}
    return model.generate(inputs, custom_generate=twotemp.generate, **options)
