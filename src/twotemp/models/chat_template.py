"""Chat templates, rendered within limits: they are programs from elsewhere, and a server must answer after them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from itertools import islice
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.runtime import Macro
from jinja2.utils import Namespace

from twotemp.errors import UserError

SIZE = 2**18  # characters of a template
TEXT = 2**22  # characters and items of what it renders, and of any value that it computes, written out
TURNS = 10**5  # turns of all its loops, and calls of its macros; also the largest width that it may ask for
_BITS = 4096  # of a power
_TOO_LONG = f"it computes a value of more than {TEXT} items"


class TemplateLimits:
    """What one rendering may still do."""

    def __init__(self) -> None:
        self.turns = 0

    def spend(self, turns: int = 1) -> str:
        """Count turns; raise a TemplateError if there were too many."""
        self.turns += turns
        if self.turns > TURNS:
            raise TemplateError(f"it takes more than {TURNS} turns")
        return ""

    def each(self, items: Any) -> Any:
        """Return what a loop goes through, counted."""
        items = items if hasattr(items, "__len__") else _listed(items)
        self.spend(len(items))
        return items

    def checked(self, value: Any) -> Any:
        """Return a list or dict that the template writes, unless it is too long."""
        return _checked(value)

    def range(self, *bounds: int) -> range:
        """Return a range, counted."""
        numbers = range(*bounds)
        self.spend(len(numbers))
        return numbers

    def join(self, *parts: Any) -> str:
        """Return the parts as one text (`~`)."""
        if sum(map(_size, parts)) > TEXT:
            raise TemplateError(_TOO_LONG)
        return "".join(map(str, parts))


def _size(value: Any, known: dict[int, int] | None = None) -> int:
    """Return how many characters and items a value has when it is written out.

    A list that holds another one twice counts it twice, as its text would, but is measured once.
    """
    if isinstance(value, str | bytes):
        return len(value) + 1
    if isinstance(value, int):
        return value.bit_length() // 3 + 1
    if isinstance(value, Namespace):
        value = value._Namespace__attrs
    if not isinstance(value, list | tuple | Mapping | set | frozenset):
        return 1
    known = {} if known is None else known
    if id(value) not in known:
        known[id(value)] = 1  # a namespace may hold itself
        parts = [*value, *value.values()] if isinstance(value, Mapping) else value
        known[id(value)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(value)]


def _checked(value: Any) -> Any:
    """Return the value unless it is too long."""
    if _size(value) > TEXT:
        raise TemplateError(_TOO_LONG)
    return value


def _listed(items: Any) -> list[Any]:
    """Return the items of an iterator, of which there may be no end."""
    listed = list(islice(items, TURNS + 1))
    if len(listed) > TURNS:
        raise TemplateError(f"it takes more than {TURNS} turns")
    return listed


def _times(left: Any, right: Any) -> Any:
    for value, count in ((left, right), (right, left)):
        if isinstance(count, int) and not isinstance(value, float) and _size(value) * count > TEXT:
            if not isinstance(value, int):
                raise TemplateError(_TOO_LONG)
            if value.bit_length() + count.bit_length() > _BITS:
                raise TemplateError(_TOO_LONG)
    return left * right


def _plus(left: Any, right: Any) -> Any:
    return _checked(left + right)


def _remainder(left: Any, right: Any) -> Any:
    """Return the remainder, or the text that a format makes of values."""
    if isinstance(left, str | bytes):
        _check_growth("%", left, right if isinstance(right, tuple) else (right,))
    return left % right


def _check_growth(name: str, value: Any, arguments: tuple[Any, ...]) -> None:
    """Raise a TemplateError if a filter or method may return a much longer value than it is given.

    Args:
        name: Of the filter or method.
        value: What it is applied to.
        arguments: What else it is given.
    """
    sizes = [_size(argument) for argument in arguments]
    widths = [abs(argument) for argument in arguments if isinstance(argument, int)]
    widest = max([1, *widths, *sizes])
    times = 1  # how often something of the greatest width or size can be written
    match name:
        case "format" | "format_map" | "%":
            text = str(value)
            widest += max(map(int, re.findall(r"\d{1,9}", text)), default=0)
            times = 1 + text.count("{") + text.count("%")
        case "replace" if arguments:
            times = 1 + (str(value).count(str(arguments[0])) if len(sizes) > 1 else 0)
            widest = max(sizes[1:], default=1)
        case "join" | "sum":
            times = len(value) if hasattr(value, "__len__") else 1
            # As in "".join([]).
            if isinstance(value, str | bytes) and arguments and hasattr(arguments[0], "__len__"):
                times, widest = len(arguments[0]), len(value)
        case "indent" | "wordwrap" | "urlize" | "translate" | "expandtabs" | "tojson" | "pprint":
            characters = str(value) if isinstance(value, str) else ""
            lines = characters.count("\n") + characters.count("\t") + 1
            times = lines if name in ("indent", "expandtabs") else _size(value)
    if max(widths, default=0) > TURNS or _size(value) + sum(sizes) + times * widest > TEXT:
        raise TemplateError(_TOO_LONG)


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter, which refuses to compute what would be too long."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0  # Jinja's own argument comes first

    @wraps(function)
    def limited(*arguments: Any, **named: Any) -> Any:
        own, given = arguments[:skipped], arguments[skipped:]
        given = tuple(_listed(value) if isinstance(value, Iterator) else value for value in given)
        if given:
            _check_growth(name, given[0], (*given[1:], *named.values()))
        return _checked(function(*own, *given, **named))

    return limited


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _BITS:
        raise TemplateError(_TOO_LONG)
    return left**right


def render(tokenizer: Any, turns: list[dict[str, str]], **options: bool) -> str:
    """Return the text of a chat up to the assistant's next word, as `apply_chat_template` renders it.

    Args:
        tokenizer: Its template and special tokens are used.
        turns: The messages.
        **options: Variables of the template.

    Raises:
        TemplateError: The template refuses the messages, or exceeds the limits above.
    """
    # The environment that templates are written for is not public.
    from transformers.utils.chat_template_utils import _compile_jinja_template

    source = tokenizer.get_chat_template()
    if len(source) > SIZE:
        raise UserError(f"the chat template has more than {SIZE} characters; repair it, or use chat=False")
    # Of an empty template: compiling the source computes its constants, which must be within limits.
    environment = _compile_jinja_template("").environment.overlay()
    environment.intercepted_binops = frozenset(["*", "+", "**", "%"])
    environment.binop_table = {
        **environment.binop_table,
        "*": _times,
        "+": _plus,
        "**": _power,
        "%": _remainder,
    }
    environment.filters = {name: _limited(name, filter) for name, filter in environment.filters.items()}
    environment.finalize = _checked
    plain_call = environment.call

    def call(context: Any, function: Any, /, *arguments: Any, **named: Any) -> Any:
        """Call a macro, a function of the environment, or a method of a value."""
        method = getattr(function, "__wrapped__", function)  # Jinja wraps `format`
        owner = getattr(method, "__self__", None)
        if not isinstance(function, Macro) and not isinstance(owner, TemplateLimits):
            arguments = tuple(_listed(value) if isinstance(value, Iterator) else value for value in arguments)
            name = getattr(method, "__name__", "")
            _check_growth(name, owner, (*arguments, *named.values()))
        return _checked(plain_call(context, function, *arguments, **named))

    environment.call = call
    limits = TemplateLimits()
    names = {
        "__each": limits.each,
        "__spend": limits.spend,
        "__join": limits.join,
        "__checked": limits.checked,
        "range": limits.range,
        "lipsum": None,  # text of any length, which no chat needs
    }
    template = environment.template_class.from_code(
        environment,
        environment.compile(_counted(environment.parse(source))),
        environment.make_globals(names),
    )
    variables = {**tokenizer.special_tokens_map, **options, "messages": turns, "add_generation_prompt": True}
    parts, size = [], 0
    for part in template.generate(tools=None, documents=None, **variables):
        parts.append(part)
        size += len(part)
        limits.spend(0 if size <= TEXT else TURNS + 1)
    return "".join(parts)


def _counted(tree: nodes.Template) -> nodes.Template:
    """Return the template with its loops, macros, concatenations, lists and dicts counted."""

    def call(name: str, *arguments: Any) -> nodes.Call:
        return nodes.Call(nodes.Name(name, "load"), list(arguments), [], None, None)

    for loop in tree.find_all(nodes.For):
        if loop.recursive:
            raise TemplateError("recursive loops are not supported")
        loop.iter = call("__each", loop.iter)
    for macro in tree.find_all(nodes.Macro):
        macro.body.insert(0, nodes.Output([call("__spend")]))

    def measured(value: Any) -> Any:
        match value:
            case nodes.Concat():
                return call("__join", *value.nodes)
            case nodes.List() | nodes.Dict():
                return call("__checked", value)
            case nodes.Tuple() if value.ctx == "load":
                return call("__checked", value)
        return value

    for parent in list(tree.find_all(nodes.Node)):
        for field, value in parent.iter_fields():
            if isinstance(value, list):
                value[:] = map(measured, value)
            else:
                setattr(parent, field, measured(value))
    for node in tree.find_all(nodes.Node):
        if getattr(node, "lineno", None) is None:
            node.set_lineno(1)
    return tree
