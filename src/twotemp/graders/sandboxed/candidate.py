"""The process that runs the program a model wrote, and then calls it for the judge.

Everything here may be read, replaced or broken by that program. It does not matter: this process holds no
test, no expected value and no channel to anybody but the judge, to whom it can only give values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .values import decode, encode, receive, send


def serve(code: str, requests: int, replies: int) -> None:
    """Run the program, then answer the judge's requests until killed."""
    names: dict[str, Any] = {"__name__": "program"}  # not "__main__": only the definitions are wanted
    kept: list[Any] = []  # objects the judge holds references to

    def keep(value: Any) -> dict[str, int]:
        kept.append(value)
        return {"ref": len(kept) - 1}

    def known(tag: dict[str, Any]) -> Any:
        if "ref" in tag:
            return kept[tag["ref"]]
        try:
            return names[tag["name"]]
        except KeyError:
            raise NameError(f"name {tag['name']!r} is not defined") from None

    def answer(action: Callable[[], Any]) -> None:
        # BaseException: SystemExit is a program that ended instead of returning, and that is all it is.
        try:
            reply = {"value": encode(action(), keep)}
        except BaseException as error:
            reply = {"raised": type(error).__name__, "text": _text(error)}
        send(replies, reply)

    answer(lambda: exec(compile(code, "<program>", "exec"), names))
    while True:
        operation, *arguments = receive(requests)
        answer(lambda: _OPERATIONS[operation](*(decode(argument, known) for argument in arguments)))  # noqa: B023


def _text(error: BaseException) -> str:
    try:
        return str(error)[:300]
    except BaseException:
        return ""


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, arguments, named: function(*arguments, **named),
    "getattr": getattr,
    "setattr": setattr,
    "list": list,
}
