"""Chat templates, rendered within limits: they are programs from elsewhere, and a server must answer after them."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError, nodes

from twotemp.errors import UserError

SIZE = 2**18  # characters of a template
TEXT = 2**22  # characters of what it renders, and items of any value that it computes
TURNS = 10**5  # turns of all its loops, and calls of its macros
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
        items = items if hasattr(items, "__len__") else list(items)
        self.spend(len(items))
        return items

    def range(self, *bounds: int) -> range:
        """Return a range, counted."""
        numbers = range(*bounds)
        self.spend(len(numbers))
        return numbers

    def join(self, *parts: Any) -> str:
        """Return the parts as one text (`~`)."""
        return str(_checked("".join(map(str, parts))))


def _checked(value: Any) -> Any:
    """Return the value unless it is too long."""
    if hasattr(value, "__len__") and len(value) > TEXT:
        raise TemplateError(_TOO_LONG)
    return value


def _times(left: Any, right: Any) -> Any:
    for value, count in ((left, right), (right, left)):
        if hasattr(value, "__len__") and isinstance(count, int) and len(value) * count > TEXT:
            raise TemplateError(_TOO_LONG)
    return left * right


def _plus(left: Any, right: Any) -> Any:
    return _checked(left + right)


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
    from transformers.utils.chat_template_utils import (
        _compile_jinja_template,  # its environment is not public
    )

    source = tokenizer.get_chat_template()
    if len(source) > SIZE:
        raise UserError(f"the chat template has more than {SIZE} characters; repair it, or use chat=False")
    # Of an empty template: compiling the source computes its constants, which must be within limits.
    environment = _compile_jinja_template("").environment.overlay()
    environment.intercepted_binops = frozenset(["*", "+", "**"])
    environment.binop_table = {
        **environment.binop_table,
        "*": _times,
        "+": _plus,
        "**": _power,
    }
    limits = TemplateLimits()
    names = {"__each": limits.each, "__spend": limits.spend, "__join": limits.join, "range": limits.range}
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
    """Return the template with its loops, macros and concatenations counted."""

    def call(name: str, *arguments: Any) -> nodes.Call:
        return nodes.Call(nodes.Name(name, "load"), list(arguments), [], None, None)

    for loop in tree.find_all(nodes.For):
        if loop.recursive:
            raise TemplateError("recursive loops are not supported")
        loop.iter = call("__each", loop.iter)
    for macro in tree.find_all(nodes.Macro):
        macro.body.insert(0, nodes.Output([call("__spend")]))
    for parent in list(tree.find_all(nodes.Node)):
        for field, value in parent.iter_fields():
            if isinstance(value, nodes.Concat):
                setattr(parent, field, call("__join", *value.nodes))
            elif isinstance(value, list):
                value[:] = [call("__join", *v.nodes) if isinstance(v, nodes.Concat) else v for v in value]
    for node in tree.find_all(nodes.Node):
        if getattr(node, "lineno", None) is None:
            node.set_lineno(1)
    return tree
