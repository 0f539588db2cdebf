"""One exception for everything a user can mend. The message says what is wrong and names the fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

PLUGGABLE = ("task", "grader", "policy")  # what `twotemp.plugins` adds


class UserError(ValueError):
    """Bad input or a missing piece on this machine; the command line prints it without a traceback."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that does not exist, with the nearest one that does, whatever its capitals."""
    choices = {str(choice).lower(): choice for choice in sorted(known)}
    near = get_close_matches(str(name).lower(), choices, n=1, cutoff=0.4)
    hint = f"; did you mean {choices[near[0]]!r}?" if near else ""
    elsewhere = "; one of a plug-in comes with --plugin FILE.py" if kind in PLUGGABLE else ""
    return UserError(f"unknown {kind} {name!r}{hint} (known: {', '.join(choices.values())}{elsewhere})")


@contextmanager
def understood(what: object, hint: str) -> Iterator[None]:
    """What others wrote may be anything: where it cannot be read, the error says what it is. (A disk's and a
    connection's own errors pass.)"""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        raise UserError(f"{what} cannot be read ({error!r}): {hint}") from error
