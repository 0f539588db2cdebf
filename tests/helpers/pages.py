"""Run the commands of a page in docs/."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_page(name: str, folder: Path) -> None:
    """Run the first block of shell commands of a page in this folder."""
    text = (Path(__file__).resolve().parents[2] / "docs" / name).read_text("utf-8")
    script = text.split("```bash\n")[1].partition("```")[0]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-euc", script], cwd=folder, check=True, env={**os.environ, "PATH": path})
