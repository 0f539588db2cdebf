"""One exception for everything that a user can fix. The message says what is wrong and names the fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

PLUGGABLE = ("task", "grader", "policy", "reward")  # what `twotemp.plugins` adds


class UserError(ValueError):
    """Bad input or a missing piece on this machine; the command line prints it without a traceback."""


def counted(count: int, noun: str) -> str:
    """Return "1 sample" or "2 samples" for a message."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return an error for a name that does not exist, with the nearest one that does, ignoring case."""
    choices = {str(choice).lower(): choice for choice in sorted(known)}
    near = get_close_matches(str(name).lower(), choices, n=1, cutoff=0.4)
    hint = f"; did you mean {choices[near[0]]!r}?" if near else ""
    elsewhere = "; names of a plug-in need --plugin FILE.py" if kind in PLUGGABLE else ""
    return UserError(f"unknown {kind} {name!r}{hint} (known: {', '.join(choices.values())}{elsewhere})")


@contextmanager
def reading(what: object, hint: str) -> Iterator[None]:
    """Turn exceptions of the block, except OSError, into a UserError saying that `what` cannot be read."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        raise UserError(f"{what} cannot be read ({error!r}): {hint}") from error
