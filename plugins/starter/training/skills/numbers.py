"""Numbers: the four operations, unit conversion and yes/no comparisons.

Where an answer cannot be looked up from a few earlier tokens, the reply says a short working
first, every token of which can.
"""

from random import Random

from ostro.plugins.starter.training.skills.item import Item, ask, ends_with_number, vary
from ostro.plugins.starter.training.skills.lexicon import NAMES, THINGS, WORDS


def _operand(rng: Random) -> int:
    """Two digits seven times in ten, else three or one."""
    return rng.randrange(rng.choices([10, 100, 1000], [1, 7, 2])[0])


def _sum_question(rng: Random, symbol: str, word: str, a: int, b: int) -> str:
    tight = rng.choice(["", " "])
    bare = f"{a}{tight}{symbol}{tight}{b}"
    spoken = f"{a} {word} {b}"
    return rng.choice(
        [
            bare,
            f"{bare} =",
            f"{bare}=",
            f"{bare}?",
            f"What is {bare}?",
            f"What is {spoken}?",
            f"How much is {spoken}?",
            f"How much is {bare}?",
            f"Calculate {bare}.",
            f"Compute {spoken}.",
            f"What's {bare}?",
            f"{spoken}",
            f"Solve {bare}.",
            f"Tell me the result of {bare}.",
            f"What does {spoken} make?",
            f"What do you get for {bare}?",
        ]
    )


def _add_columns(a: int, b: int) -> str:
    """Column addition, ones first, with the carries said aloud."""
    steps, carry = [], 0
    for i in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**i % 10, b // 10**i % 10
        total = x + y + carry
        carried = f" + {carry}" if carry else ""
        steps.append(f"{x} + {y}{carried} = {total}")
        carry = total // 10
        if carry:
            steps[-1] += f", carry {carry}"
    return "Column by column: " + ". ".join(steps) + "."


def _subtract_columns(a: int, b: int) -> str:
    """Column subtraction, ones first, with the borrows said aloud."""
    if a < b:
        return f"{a} is less than {b}, so I turn it around. {_subtract_columns(b, a)}"
    steps, borrow = [], 0
    for i in range(len(str(a))):
        x, y = a // 10**i % 10 - borrow, b // 10**i % 10
        borrow = int(x < y)
        steps.append(f"borrow, {x + 10} - {y} = {x + 10 - y}" if borrow else f"{x} - {y} = {x - y}")
    return "Column by column: " + ". ".join(steps) + "."


def _difference(a: int, b: int) -> str:
    """The chain of equations that ends with `a - b`: first the tens of `b`, then the ones."""
    if a < b:
        return f"{_difference(b, a)}, so {a} - {b} = {a - b}"
    tens, ones = b // 10 * 10, b % 10
    if a > 99 or not (tens and ones):
        return f"{a} - {b} = {a - b}"
    return f"{a} - {b} = {a} - {tens} - {ones} = {a - tens} - {ones} = {a - b}"


def _product(a: int, b: int) -> str:
    """The chain of equations that ends with `a * b`: one factor is split into tens and ones."""
    chain = f"{a} x {b} = "
    if b > 10 and b % 10 and a > 1:
        tens, ones = b // 10 * 10, b % 10
        chain += f"{a} x {tens} + {a} x {ones} = {a * tens} + {a * ones} = "
    elif a > 10 and a % 10 and 1 < b < 10:
        tens, ones = a // 10 * 10, a % 10
        chain += f"{tens} x {b} + {ones} x {b} = {tens * b} + {ones * b} = "
    return f"{chain}{a * b}"


def addition(rng: Random) -> Item:
    """Sums of numbers of two, at times three, digits."""
    a, b = _operand(rng), _operand(rng)
    key, answer = f"{a},{b}", f"{a} + {b} = {a + b}."
    question = rng.choice([f"Add {a} and {b}.", f"What is the sum of {a} and {b}?"])
    if (kind := rng.random()) < 0.12:
        thing, name = rng.choice(THINGS), rng.choice(NAMES)
        question = rng.choice(
            [
                f"I have {a} {thing} and get {b} more. How many do I have?",
                f"{name} has {a} {thing} and buys {b} more. How many {thing} are there now?",
                f"There are {a} {thing} in one box and {b} in another. How many in all?",
            ]
        )
        answer = f"{a} + {b} = {a + b}, so there are {a + b} {thing}."
    elif kind < 0.8:
        question = _sum_question(rng, "+", rng.choice(["plus", "and"]), a, b)
    check, columns = ends_with_number(a + b), _add_columns(a, b)
    working = columns if max(a, b) > 99 else ""
    return ask("addition", key, vary(rng, question), answer, check, columns, working)


def subtraction(rng: Random) -> Item:
    """Differences of numbers of two, at times three, digits; one in four is negative."""
    a, b = _operand(rng), _operand(rng)
    if a < b and rng.random() < 0.5:
        a, b = b, a
    key, answer = f"{a},{b}", f"{_difference(a, b)}."
    question = rng.choice([f"Subtract {b} from {a}.", f"Take {b} away from {a}."])
    if (kind := rng.random()) < 0.12 and a >= b:
        thing, name = rng.choice(THINGS), rng.choice(NAMES)
        question = rng.choice(
            [
                f"I have {a} {thing} and lose {b}. How many are left?",
                f"{name} has {a} {thing} and gives away {b}. How many {thing} are left?",
                f"There are {a} {thing} and {b} are sold. How many are left?",
            ]
        )
        answer = f"{_difference(a, b)}, so {a - b} {thing} are left."
    elif kind < 0.8:
        question = _sum_question(rng, "-", "minus", a, b)
    check, columns = ends_with_number(a - b), _subtract_columns(a, b)
    working = columns if max(a, b) > 99 else ""
    return ask("subtraction", key, vary(rng, question), answer, check, columns, working)


def multiplication(rng: Random) -> Item:
    """Products of two numbers below one hundred; one of them is split into tens and ones."""
    a, b = rng.randrange(100), rng.randrange(100 if rng.random() < 0.5 else 13)
    key, product = f"{a},{b}", _product(a, b)
    split = "I split one factor into tens and ones."
    thought = split if "+" in product else "I can multiply these at once."
    symbol = rng.choice(["x", "*", "*", "\N{MULTIPLICATION SIGN}"])
    question = rng.choice([f"Multiply {a} by {b}.", f"What is the product of {a} and {b}?"])
    if rng.random() < 0.8:
        question = _sum_question(rng, symbol, "times", a, b)
    check = ends_with_number(a * b)
    return ask("multiplication", key, vary(rng, question), f"{product}.", check, thought)


def _divide_digits(a: int, b: int) -> str:
    """Long division by one digit, from the left; nothing when the quotient has one digit."""
    if a < 10 * b:
        return ""
    taken = 1 if a // 10 ** (len(str(a)) - 1) >= b else 2
    steps, rest = [], str(a)[:taken]
    for digit in [*str(a)[taken:], ""]:
        part = int(rest)
        steps.append(f"{part} / {b} = {part // b} remainder {part % b}")
        rest = f"{part % b}{digit}"
    return "Digit by digit: " + ". ".join(steps) + "."


def division(rng: Random) -> Item:
    """Numbers below one thousand over one digit, with the remainder when there is one.

    Each step of a long division is a quotient below ten, so that these are too few to hold out.
    """
    b = rng.randint(2, 9)
    a = rng.randrange(10 * b if (kind := rng.random()) < 0.3 else 100 if kind < 0.75 else 1000)
    if rng.random() < 0.4:
        a -= a % b
    quotient, rest = divmod(a, b)
    result = f"{quotient} remainder {rest}" if rest else f"{quotient}"
    question = rng.choice([f"Divide {a} by {b}.", f"How many times does {b} go into {a}?"])
    if rng.random() < 0.8:
        question = _sum_question(rng, rng.choice(["/", "/", "÷"]), "divided by", a, b)
    key, working = f"{a},{b}" if quotient > 9 else "table", _divide_digits(a, b)
    thought = "" if working else "I know this by heart."
    answer = f"{a} / {b} = {result}."
    return ask("division", key, vary(rng, question), answer, None, thought, working)


UNITS = [
    ("kilometers", "meters", "km", "m", 1000),
    ("meters", "centimeters", "m", "cm", 100),
    ("centimeters", "millimeters", "cm", "mm", 10),
    ("kilograms", "grams", "kg", "g", 1000),
    ("tonnes", "kilograms", "t", "kg", 1000),
    ("liters", "milliliters", "l", "ml", 1000),
    ("days", "hours", "days", "h", 24),
    ("hours", "minutes", "h", "min", 60),
    ("minutes", "seconds", "min", "s", 60),
    ("weeks", "days", "weeks", "days", 7),
    ("years", "months", "years", "months", 12),
    ("feet", "inches", "ft", "in", 12),
    ("yards", "feet", "yd", "ft", 3),
    ("dollars", "cents", "dollars", "cents", 100),
    ("euros", "cents", "euros", "cents", 100),
    ("decades", "years", "decades", "years", 10),
    ("centuries", "years", "centuries", "years", 100),
]


def conversion(rng: Random) -> Item:
    """Whole amounts from one unit to another, in both directions."""
    large, small, large_sign, small_sign, factor = rng.choice(UNITS)
    if rng.random() < 0.1:
        return _single_unit(rng, large, small, factor)
    there = rng.random() < 0.65
    # The way back is known by heart where it is more than noughts taken away.
    n = rng.randint(2, 99 if there or (factor % 10 == 0 and factor != 60) else 12)
    short = rng.random() < 0.4
    if short:
        large, small = large_sign, small_sign
    source, target = (large, small) if there else (small, large)
    amount, result = (n, n * factor) if there else (n * factor, n)
    sign = "x" if there else "/"
    chain = _product(n, factor) if there else f"{amount} / {factor} = {n}"
    reply = f"{amount} {source} = {chain} {target}."
    question = rng.choice(
        [
            f"Convert {amount} {source} to {target}.",
            f"How many {target} are {amount} {source}?",
            f"How many {target} are in {amount} {source}?",
            f"What is {amount} {source} in {target}?",
            f"{amount} {source} to {target}",
            f"{amount} {source} in {target}",
            f"Change {amount} {source} into {target}.",
            f"I have {amount} {source}. How many {target} is that?",
            f"Express {amount} {source} in {target}.",
            f"How much is {amount} {source} in {target}?",
        ]
    )
    thought = f"One of the larger unit is {factor} of the smaller, so I use {sign} {factor}."
    key = f"{amount} {source} {target}"
    check = ends_with_number(result)
    return ask("conversion", key, vary(rng, question), reply, check, thought)


def _single_unit(rng: Random, large: str, small: str, factor: int) -> Item:
    """How many of the smaller unit make one of the larger: the phrasing is held out."""
    one = {"feet": "foot", "centuries": "century"}.get(large, large.removesuffix("s"))
    phrase = rng.choice(
        [
            "How many {small} are in {a} {one}?",
            "How many {small} are in one {one}?",
            "How many {small} are there in {a} {one}?",
            "How many {small} does {a} {one} have?",
            "How many {small} make {a} {one}?",
            "What is 1 {one} in {small}?",
            "1 {one} in {small}",
            "Convert 1 {one} to {small}.",
            "{a} {one} is how many {small}?",
        ]
    )
    article = "an" if one == "hour" else "a"
    question = phrase.format(small=small, one=one, a=article)
    reply, thought = f"1 {one} = {factor} {small}.", "I know this."
    check = ends_with_number(factor)
    return ask("conversion", phrase, vary(rng, question), reply, check, thought)


def _compare(a: str, b: str, less: str, more: str) -> str:
    """The digits or letters of both, from the left, up to the first that differ.

    What is found is said after both, so that it follows from the tokens just before it.
    """
    pairs = []
    for x, y in zip(a, b, strict=False):
        pairs.append(f"{x} and {y}, {less if x < y else more if x > y else 'same'}")
        if x != y:
            break
    return "; ".join(pairs)


def comparison(rng: Random) -> Item:
    """Yes/no questions: larger or smaller, even or odd, and alphabetical order.

    What was found and what was asked stand side by side before the answer: whether they are the
    same is hard to see from afar.
    """
    kind = rng.random()
    if kind < 0.2:
        return _parity(rng)
    if kind < 0.45:
        return _alphabet(rng)
    a = rng.randrange(1000 if rng.random() < 0.4 else 100)
    b = rng.randrange(1000 if rng.random() < 0.4 else 100)
    if rng.random() < 0.3:
        b = abs(a + rng.randint(-9, 9))
    large, small = rng.choice(
        [("greater", "less"), ("larger", "smaller"), ("bigger", "smaller"), ("more", "less")]
    )
    more = rng.random() < 0.5
    truth = a > b if more else a < b
    asked = f"{large if more else small} than"
    question = rng.choice(
        [
            f"Is {a} {asked} {b}?",
            f"Is {a} {asked} {b}? Yes or no?",
            f"Yes or no: is {a} {asked} {b}?",
            f"Is {a} {'>' if more else '<'} {b}?",
            f"Is it true that {a} is {asked} {b}?",
        ]
    )
    digits = len(str(a)), len(str(b))
    compared = f"{digits[0]} and {digits[1]} digits, {'less' if a < b else 'more'}"
    if digits[0] == digits[1]:
        compared = _compare(str(a), str(b), "less", "more")
    relation = "equal to" if a == b else "greater than" if a > b else "less than"
    answer = f"{'Yes' if truth else 'No'}, {a} is {relation} {b}."
    working = f"{a} and {b}: {compared}. Asked: {'more' if more else 'less'}."
    return ask("comparison", f"{a},{b}", vary(rng, question), answer, working=working)


def _parity(rng: Random) -> Item:
    n, word = rng.randrange(1000), rng.choice(["even", "odd"])
    parity = "odd" if n % 2 else "even"
    answer = f"{'Yes' if word == parity else 'No'}, {n} is {parity}."
    question = rng.choice(
        [f"Is {n} {word}?", f"Is {n} an {word} number?", f"Yes or no: is {n} {word}?"]
    )
    working = f"The last digit of {n} is {n % 10}, {parity}. Asked: {word}."
    return ask("comparison", f"parity {n}", vary(rng, question), answer, working=working)


def _alphabet(rng: Random) -> Item:
    """Words that differ in one of their first two letters."""
    while (pair := rng.sample(WORDS, 2))[0][:2] == pair[1][:2]:
        pass
    first, second = pair
    word = rng.choice(["before", "after"])
    order = "before" if first < second else "after"
    answer = f"{'Yes' if word == order else 'No'}, {first} comes {order} {second}."
    question = rng.choice(
        [
            f"Does {first} come {word} {second} in the alphabet?",
            f"Does the word {first} come {word} {second} in a dictionary?",
            f"Yes or no: does {first} come {word} {second} alphabetically?",
        ]
    )
    compared = _compare(first, second, "before", "after")
    working = f"{first} and {second}: {compared}. Asked: {word}."
    return ask("comparison", f"{first},{second}", vary(rng, question), answer, working=working)
