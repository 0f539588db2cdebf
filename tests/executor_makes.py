"""What workers of the tests draw with: a model that stumbles at given moments. Imported by the workers themselves."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tests import toy_task
from twotemp.engine import Observer
from twotemp.errors import UserError
from twotemp.evaluation import InProcess


@dataclass(frozen=True)
class Stumbling:
    """Draws with the micro model; place 0 does something else after so many steps, as often as `folder` says.

    folder: of marks, one for each time it stumbled, so that it can be asserted that it did.
    """

    folder: Path
    how: str = "never"  # kill, hang, mistake, crash, kill while loading
    times: int = 1
    after: int = 20  # steps
    everywhere: bool = False

    def __call__(self, place: int, observer: Observer) -> InProcess:
        if self.how == "kill while loading":
            self._stumble(place)
        taken = [0]

        class Counted(Observer):
            def step(inner, view):
                taken[0] += 1
                if taken[0] == self.after and self.how != "never":
                    self._stumble(place)
                observer.step(view)

        return InProcess(toy_task.micro_model(), observer=Counted())

    def _stumble(self, place: int) -> None:
        marks = len(list(self.folder.iterdir()))
        if marks >= self.times or (place and not self.everywhere):
            return
        (self.folder / f"{marks}-{os.getpid()}").touch()
        match self.how:
            case "kill" | "kill while loading":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(1000)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "mistake":
                raise UserError("the prompt is in Latin; write English")
            case "crash":
                raise RuntimeError("the sky fell")
