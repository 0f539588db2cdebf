"""The model card (README.md) that is written beside saved weights."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twotemp.serialization import json_text

# Neither part begins with a dot: `./name` and `../name` are paths.
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def hub_id(name: str) -> str | None:
    """Return the name if it is a hub id rather than a folder."""
    return name if HUB_ID.fullmatch(name) and not Path(name).exists() else None


def remote_code(auto_map: Any, name: str) -> dict[str, Any] | None:
    """Return an `auto_map` that points at the hub repository of that name, whose Python files are not copied.

    None if there is no such repository: the classes that it names could then not be found.
    """
    base = hub_id(name)
    if base is None or not isinstance(auto_map, dict):
        return None

    def pointed(target: Any) -> Any:
        if isinstance(target, list):
            return [pointed(entry) for entry in target]
        return target if not isinstance(target, str) or "--" in target else f"{base}--{target}"

    return {auto: pointed(target) for auto, target in auto_map.items()}


def model_card(name: str, family: str, about: str, settings: Mapping[str, Any] | None = None) -> str:
    """Return the README.md of a saved model.

    Args:
        name: What the model was loaded as.
        family: Its `model_type`.
        about: How it differs from that model, as a sentence.
        settings: How it was trained.
    """
    base = hub_id(name)
    source = f"[`{base}`](https://huggingface.co/{base})" if base else f"`{Path(name).name}`"
    header = ["library_name: twotemp", "pipeline_tag: text-generation", "tags:", "- diffusion-language-model"]
    if base:
        header.append(f"base_model: {json.dumps(base)}")
    training = f"\n## Training\n\n```json\n{json_text(settings, indent=2)}\n```\n" if settings else ""
    return f"""---
{chr(10).join(header)}
---

# A diffusion language model

{about} It has the layout of its family (`{family}`) and comes from {source}, whose license and limits apply.

```python
import twotemp

model = twotemp.load("path/to/this/folder")
print(twotemp.sample(model, "Your prompt", "tct", length=128)[0].text)
```

The folder holds weights and configuration only. Its family's own code, which `AutoModel` needs, is in the repository
of the published checkpoint.
{training}"""
