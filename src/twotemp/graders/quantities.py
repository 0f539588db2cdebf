r"""Parse answers that are one number, with or without a unit: "$1,200", "minus 10", "two thirds", "5 km".

A quantity is an exact rational number and a unit. Nothing is rounded: 0.333 is 333/1000.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

# Dimension, size and spellings of each unit (a plural s is allowed).
_MEASURES = """
length 1/1000 mm millimeter millimetre
length 1/100 cm centimeter centimetre
length 1 m meter metre
length 1000 km kilometer kilometre
length 127/5000 in inch inches
length 381/1250 ft foot feet
length 1143/1250 yd yard
length 201168/125 mi mile
mass 1/1000 mg milligram
mass 1 g gram
mass 1000 kg kilogram
mass 45359237/100000 lb pound
mass 45359237/1600000 oz ounce
volume 1/1000 ml milliliter millilitre
volume 1 l liter litre
volume 473176473/125000000 gal gallon
time 1 s sec second
time 60 min minute
time 3600 h hr hour
time 86400 day
time 604800 week
months 1 month
months 12 yr year
money 1 cent
money 100 dollar usd
euros 1 euro eur
sterling 1 sterling gbp
angle 1 degree
radians 1 rad radian
percent 1 percent
morning 1 am
afternoon 1 pm
"""
_UNITS = {
    name: (measure, Fraction(size))
    for measure, size, *names in map(str.split, _MEASURES.strip().splitlines())
    for name in names
}
_SYMBOLS = {
    r"\\\$": "dollar",
    "€": "euro",
    "£": "sterling",
    r"\\?%": "percent",
    r"(?:\{\})?\^\s*\{?\s*\\circ\s*\}?|°|\\degree": "degree",
}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cubed": 3}

_ONES = "one two three four five six seven eight nine".split()
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_WORDS = {word: n for n, word in enumerate(["zero", *_ONES, *_TEENS])}
_WORDS |= {word: 10 * n for n, word in enumerate(_TENS, start=2)}
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_NTHS = "third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
_PARTS = {"half": 2, "halve": 2, "quarter": 4} | {word: n for n, word in enumerate(_NTHS, start=3)}
_PARTS |= {word.replace("y", "ie") + "th": n for word, n in (_WORDS | _SCALES).items() if n > 12}


def _any(words: list[str]) -> str:
    return "(?:" + "|".join(words) + ")"


_BELOW_100 = rf"(?:{_any(_TENS)}(?:[\s-]+{_any(_ONES)})?|{_any(_TEENS)}|{_any(['zero', *_ONES])})"
_BELOW_1000 = rf"{_BELOW_100}(?:\s+hundred(?:\s+(?:and\s+)?{_BELOW_100})?)?"
_SCALED = rf"{_BELOW_1000}(?:\s+{_any(list(_SCALES)[1:])}(?:\s+(?:and\s+)?{_BELOW_1000})?)*"
_IN_WORDS = re.compile(rf"\b{_SCALED}\b", re.I)
_DECIMAL = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_SCALED_DIGITS = re.compile(rf"(?<![0-9./])({_DECIMAL})\s*\b({_any(list(_SCALES))})s?\b", re.I)
_PART = _any(list(_PARTS))
_AND_A_PART = re.compile(rf"\band\s+(?:an?\s+(?={_PART}\b)|(?=(?:half|quarter)\b))", re.I)
_SOME_PARTS = re.compile(rf"(?<![0-9./])(?:([0-9]+)\s+and\s+)?([0-9]+)[\s-]+({_PART})(s?)\b", re.I)

_WRAPPED = re.compile(r"\\(?:text(?:bf|rm|it|normal)?|mbox|mathrm|mathbf)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,;:() ]|\$|~")
_THOUSANDS = re.compile(r"(?<=[0-9])(?:,|\{,\}|\\,)\s*(?=[0-9]{3}(?![0-9]))")
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))")
_O_CLOCK = re.compile(r"\b([0-9]{1,2}):00\b")
_BASE = re.compile(r"(?<=[0-9])_\s*\{?\s*([0-9]+)\s*\}?\s*$")
_REPEATING = r"[0-9]*\.[0-9]*\\(?:overline|bar|dot)\s*\{?[0-9]+\}?"
_VALUE = rf"(?:{_REPEATING}|(?:[0-9]+\s+)?[0-9]+\s*/\s*[0-9]+|{_DECIMAL})"
_PROSE = r"[A-Za-z'][A-Za-z'./\s-]*"
_ONE_NUMBER = re.compile(
    rf"(?P<lead>{_PROSE}\s)?(?P<sign>[-+−]?)\s*(?P<value>{_VALUE})\.?"
    rf"(?P<gap>\s*)(?P<tail>{_PROSE})?(?P<power>\^\{{?[23]\}}?)?\.?"
)
_SHORT_SCALE = re.compile(r"(?<=[0-9])\s?[kKM]\b")
_HALF_DAY = re.compile(r"\b([ap])\.m\b\.?", re.I)
_NEGATIVE = re.compile(r"(?:^|(?<=\s))(?:minus|negative)\s+$", re.I)
# Words that change the value of a number: anywhere near it, right after it, right before it.
_MATHS = {"pi", "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "mod", "factorial", "infinity"}
_MATHS |= {word + s for word in _SCALES for s in ("", "s")}
_AFTER = {"squared", "cubed", "or"} | {word + s for word in _PARTS for s in ("", "s")}
_AFTER.remove("quarters")  # up to three have been read as a fraction; more are coins
_BEFORE = rf"(?:not|than|twice|double|triple|(?:root|square|cube|{_PART}s?)\s+(?:of|past|to))"
_CHANGED = re.compile(rf"\b{_BEFORE}\s+$", re.I)
_COUNTS = re.compile(rf"[0-9]|\b(?:{_BEFORE}|{_any([*_WORDS, *_MATHS, *_AFTER])})\b", re.I)
_NOT_WHOLE = re.compile(rf"(?<![0-9.])(?:{_REPEATING}|[0-9]*\.[0-9]+)(?![0-9.])")


class Quantity(NamedTuple):
    """A number with its unit."""

    value: Fraction
    measure: str = ""  # "" if no unit was written, or an unknown one
    size: Fraction = Fraction(1)  # of the unit


def read(text: str, *, prose: bool) -> Quantity | None:
    """Return the only number in a text; None if the text is anything else, which is not a verdict.

    Nouns may follow the number ("45 fairies"), but not a single letter, which is a variable ("18x"), nor a word
    with a mathematical meaning ("7 pi", "5 squared"). With `prose`, words may also precede it ("it is 45"), a unit
    may touch it ("5m"), and k and M are thousand and million; otherwise these are formulas.
    """
    units = []
    for pattern, name in _SYMBOLS.items():
        text, count = re.subn(pattern, " ", text)
        units += [_UNITS[name]] * bool(count)
    if base := _BASE.search(text):
        text = text[: base.start()]
        units.append((f"base {base[1]}", Fraction(1)))
    text = _plain(text)
    if prose:
        text = _SHORT_SCALE.sub(lambda match: " thousand" if match[0].strip() in "kK" else " million", text)
    match = _ONE_NUMBER.fullmatch(_digits(text).strip())
    if match is None or not _is_quantity(match, prose):
        return None
    if unit := _unit((match["tail"] or "").split(), match["power"]):
        units.append(unit)
    value = _rational(match["value"])
    if value is None or len(units) > 1:
        return None
    negative = (match["sign"] in ("-", "−")) != bool(_NEGATIVE.search(match["lead"] or ""))
    return Quantity(-value if negative else value, *(units[0] if units else ()))


def same(a: Quantity, b: Quantity, *, percent_is_hundredth: bool) -> bool:
    """Return whether two quantities are equal (60 minutes are 1 hour); a missing unit matches any unit.

    With `percent_is_hundredth`, 50 % equals both 1/2 and 50 without a unit.
    """
    if a.measure and b.measure:
        return a.measure == b.measure and a.value * a.size == b.value * b.size
    if percent_is_hundredth and "percent" in (a.measure, b.measure):
        part, number = (a, b) if a.measure else (b, a)
        return part.value in (number.value, 100 * number.value)
    return a.value == b.value


def latex(value: Fraction) -> str:
    """Return a fraction in LaTeX."""
    return rf"{{\frac{{{value.numerator}}}{{{value.denominator}}}}}"


def exact(text: str) -> str:
    """Return LaTeX with every decimal as an exact fraction, so that math-verify does not round it."""
    return _NOT_WHOLE.sub(lambda match: latex(_decimal(match[0])), text)


def shown(text: str) -> str:
    r"""Return the text for math-verify, which drops \text{}; unwrap words that change the number, 3\text{ halves}."""
    if read(text, prose=True) is not None or read(_WRAPPED.sub(" ", text), prose=True) is None:
        return text
    return _WRAPPED.sub(lambda match: f" {match[1]} " if _COUNTS.search(match[1]) else match[0], text)


def _plain(text: str) -> str:
    """Remove LaTeX markup: \\frac{1}{2} is 1/2, \\text{cm} is cm, 1{,}200 is 1200, 2:00 p.m. is 2 pm."""
    text = _WRAPPED.sub(r" \1 ", text.replace(r"\!", ""))
    text = _SPACING.sub(" ", _THOUSANDS.sub("", text))
    text = _FRACTION.sub(lambda m: f" {m[1] or m[2]}/{m[3] or m[4]} ", text)
    return _O_CLOCK.sub(r"\1", _HALF_DAY.sub(r"\1m", text))


def _digits(text: str) -> str:
    """Convert number words to digits: "one hundred five" is 105, "1.5 million" 1500000, "two and a half" 2 1/2."""
    text = _IN_WORDS.sub(lambda match: str(_in_digits(match[0].lower())), text)
    text = _SOME_PARTS.sub(_fraction, _AND_A_PART.sub("and 1 ", text))
    return _SCALED_DIGITS.sub(lambda match: str(Fraction(match[1]) * _SCALES[match[2].lower()]), text)


def _in_digits(words: str) -> int:
    total = part = 0
    for word in re.split(r"[\s-]+", words):
        if word == "hundred":
            part *= 100
        elif word in _SCALES:
            total, part = (total + part * _SCALES[word] if part else total * _SCALES[word]), 0
        else:
            part += _WORDS.get(word, 0)  # "and" adds nothing
    return total + part


def _fraction(match: re.Match[str]) -> str:
    """Convert "two thirds" to 2/3; leave what is ambiguous: 20 third, 102 thirds (100 2/3?)."""
    whole, above, below = match[1] or "", int(match[2]), _PARTS[match[3].lower()]
    proper = above < below and (above == 1) == (not match[4])
    return f"{whole} {above}/{below}" if proper else match[0]


def _rational(text: str) -> Fraction | None:
    """Parse "12", "3/4", "1 3/4" or a decimal exactly; return None for a fraction over 0."""
    *whole, last = re.sub(r"\s*/\s*", "/", text).split()
    above, _, below = last.partition("/")
    if below and int(below) == 0:
        return None
    return sum(map(Fraction, whole), _decimal(above) / int(below or 1))


def _decimal(text: str) -> Fraction:
    """Parse "12", ".5" or "0.1\\overline{6}" exactly."""
    head, *period = re.split(r"\\[a-z]+\s*\{?", text.rstrip("}"))
    whole, _, decimals = head.partition(".")
    value = Fraction(int(whole + decimals or "0"))
    if period:
        value += Fraction(int(period[0]), 10 ** len(period[0]) - 1)
    return value / Fraction(10 ** len(decimals))


def _is_quantity(match: re.Match[str], prose: bool) -> bool:
    """Return whether the words near the number are nouns, not parts of a formula."""
    lead, tail = match["lead"] or "", match["tail"] or ""
    words = re.findall(r"[a-z']+", f"{lead} {tail}".lower())
    if not _MATHS.isdisjoint(words) or not (prose or not lead or _NEGATIVE.fullmatch(lead)):
        return False
    if _CHANGED.search(lead):
        return False
    if not tail:
        return not match["power"]
    first, second, *_ = [*re.split(r"[\s./-]+", tail), ""]
    if first.lower() in _AFTER and not _is_adjective(first.lower(), second.lower()):
        return False
    if match["gap"]:
        return len(first) > 1 or _known(first) is not None
    return prose and (_known(first) is not None or first in ("st", "nd", "rd", "th"))


def _is_adjective(word: str, following: str) -> bool:
    """Return whether a word is an adjective: 12 fourth graders, 5 squared meters; not two third of it, 5 squared."""
    if word in _PARTS:
        return following not in ("", "of")
    return word in _POWERS and _known(following) is not None


def _unit(tail: list[str], power: str | None) -> tuple[str, Fraction] | None:
    """Return the unit at the start of the text after a number; None for a rate ("miles per hour", "m/s").

    "20 in total" is not 20 inches.
    """
    exponent = int(power.strip("^{}")) if power else 1
    if len(tail) > 1 and tail[0].lower() in _POWERS:
        exponent, tail = _POWERS[tail[0].lower()], tail[1:]
    elif len(tail) > 1 and tail[1].lower() in ("squared", "cubed"):
        exponent, tail = _POWERS[tail[1].lower()], [tail[0], *tail[2:]]
    if not tail or (len(tail) > 1 and tail[1].lower() in ("/", "per", "a", "an", "each")):
        return None
    if len(tail) > 1 and tail[0].lower() == "in":
        return None
    unit = _known(tail[0].rstrip("."))
    return unit and (f"{unit[0]}^{exponent}" if exponent > 1 else unit[0], unit[1] ** exponent)


def _known(word: str) -> tuple[str, Fraction] | None:
    word = word.lower()
    return _UNITS.get(word) or _UNITS.get(word.removesuffix("s"))
