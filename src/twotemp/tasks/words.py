r"""Word problems: find out what was bought, then compute a bill, step by step, to a boxed number.

    pen 9 cup 12 hat 15 map 7 bag 20 key 3 . Ann buys 3 for 36 . 2 of her cheapest and 3 of her dearest cost ?
    9 + 12 = 21 ; 21 + 15 = 36 ; 2 * 9 = 18 ; 3 * 15 = 45 ; 18 + 45 = 63 ; \boxed{ 63 }

Only one choice of things adds up to the price, but there are many ways to write it down: the things in any
order, added up or subtracted from the price, either bill first. A wrong first thing cannot be corrected later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from random import Random

from twotemp.tasks.base import Example, MaskedCheck, Source

PEOPLE = ("Ann", "Cal", "Eve", "Joy")
THINGS = ("pen", "cup", "hat", "map", "bag", "key", "box", "toy")
ON_SALE = 6
DEAREST = 20
LARGEST = 99  # a number is one token
VOCABULARY = (
    *map(str, range(LARGEST + 1)),
    *PEOPLE,
    *THINGS,
    *("buys", "for", "of", "her", "cheapest", "and", "dearest", "cost"),
    *(".", "?", "+", "-", "*", "=", ";", "\\boxed{", "}"),
)


def draw(rng: Random, count: int) -> Example:
    """Draw a shop, `count` things whose price has only one explanation, and one way to write the solution."""
    while True:
        prices = rng.sample(range(2, DEAREST + 1), ON_SALE)
        bought = rng.sample(prices, count)
        total = sum(bought)
        few, many = rng.randint(2, 3), rng.randint(2, 3)
        cheapest, dearest = min(bought), max(bought)
        answer = few * cheapest + many * dearest
        unique = sum(sum(choice) == total for choice in combinations(prices, count)) == 1
        if unique and answer <= LARGEST:
            break
    bills = [f"{few} * {cheapest} = {few * cheapest}", f"{many} * {dearest} = {many * dearest}"]
    parts = [few * cheapest, many * dearest]
    if rng.random() < 0.5:
        bills.reverse()
        parts.reverse()
    steps = [*_find(rng, bought, total), *bills, f"{parts[0]} + {parts[1]} = {answer}"]
    shop = " ".join(f"{thing} {price}" for thing, price in zip(rng.sample(THINGS, ON_SALE), prices))
    bill = f"{few} of her cheapest and {many} of her dearest cost ?"
    return Example(
        prompt=f"{shop} . {rng.choice(PEOPLE)} buys {count} for {total} . {bill}",
        answer=" ; ".join(steps) + f" ; \\boxed{{ {answer} }}",
        # What has to be found out; the multipliers only change the bill that follows.
        key=f"{sorted(prices)} {count} {total}",
        reference={"answer": str(answer)},
    )


def _find(rng: Random, bought: list[int], total: int) -> list[str]:
    """Return steps that show which things were bought: added up to the total, or subtracted from it."""
    first, *rest = bought
    steps = []
    if rng.random() < 0.5:
        for price in rest:
            steps.append(f"{first} + {price} = {first + price}")
            first += price
    else:
        for price in bought[:-1]:
            steps.append(f"{total} - {price} = {total - price}")
            total -= price
    return steps


def checks(words: Sequence[str], first: int) -> list[MaskedCheck]:
    """Mask the price and the multipliers: the bills determine them."""
    bills = next((k - 1 for k in range(first + 1, len(words)) if words[k] == "*"), len(words))
    asked = [k for k in range(1, first - 1) if words[k - 1] == "for" or words[k + 1] == "of"]
    return [MaskedCheck([*asked, *range(first, bills)], asked)]


DESCRIPTION = "which {} things were bought for the price, and what others like them cost"
SOURCES = tuple(
    Source(
        f"words-{count}",
        DESCRIPTION.format(count),
        grader="maths",
        length=length,
        version=2,
        draw=partial(draw, count=count),
        checks=checks,
    )
    for count, length in ((2, 32), (3, 40))
)
