"""Numbers: the four operations, unit conversion and yes/no comparisons."""

from random import Random

from ostro.plugins.starter.skills.item import Item, ask, ends_with_number, says, vary
from ostro.plugins.starter.skills.lexicon import NAMES, THINGS, WORDS


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
    return "Column by column: " + ". ".join(steps) + f". So it is {a + b}."


def _subtract_columns(a: int, b: int) -> str:
    """Column subtraction, ones first, with the borrows said aloud."""
    if a < b:
        inner = _subtract_columns(b, a)
        return f"{a} is less than {b}, so the result is negative. {inner} Turned around: {a - b}."
    steps, borrow = [], 0
    for i in range(len(str(a))):
        x, y = a // 10**i % 10 - borrow, b // 10**i % 10
        borrow = int(x < y)
        steps.append(f"borrow, {x + 10} - {y} = {x + 10 - y}" if borrow else f"{x} - {y} = {x - y}")
    return "Column by column: " + ". ".join(steps) + f". So it is {a - b}."


def addition(rng: Random) -> Item:
    """Sums of numbers of two, at times three, digits."""
    a, b = _operand(rng), _operand(rng)
    key, reply = f"{a},{b}", f"{a} + {b} = {a + b}."
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
        reply = f"{a} + {b} = {a + b}, so there are {a + b} {thing}."
    elif kind < 0.8:
        question = _sum_question(rng, "+", rng.choice(["plus", "and"]), a, b)
    check = ends_with_number(a + b)
    return ask("addition", key, vary(rng, question), reply, check, _add_columns(a, b))


def subtraction(rng: Random) -> Item:
    """Differences of numbers of two, at times three, digits; one in four is negative."""
    a, b = _operand(rng), _operand(rng)
    if a < b and rng.random() < 0.5:
        a, b = b, a
    key, reply = f"{a},{b}", f"{a} - {b} = {a - b}."
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
        reply = f"{a} - {b} = {a - b}, so {a - b} {thing} are left."
    elif kind < 0.8:
        question = _sum_question(rng, "-", "minus", a, b)
    check = ends_with_number(a - b)
    return ask("subtraction", key, vary(rng, question), reply, check, _subtract_columns(a, b))


def multiplication(rng: Random) -> Item:
    """Products of two numbers below one hundred; the tens of the second are taken apart."""
    a, b = rng.randrange(100), rng.randrange(100 if rng.random() < 0.5 else 13)
    key, reply = f"{a},{b}", f"{a} x {b} = {a * b}."
    tens, ones = b // 10 * 10, b % 10
    thought = f"One factor has one digit, so I multiply at once: {a} x {b} = {a * b}."
    if tens and ones and a > 9:
        parts = f"{a} x {tens} + {a} x {ones} = {a * tens} + {a * ones}"
        reply = f"{a} x {b} = {parts} = {a * b}."
        thought = f"I split {b} into {tens} and {ones}. {parts} = {a * b}."
    symbol = rng.choice(["x", "*", "*", "\N{MULTIPLICATION SIGN}"])
    question = rng.choice([f"Multiply {a} by {b}.", f"What is the product of {a} and {b}?"])
    if rng.random() < 0.8:
        question = _sum_question(rng, symbol, "times", a, b)
    check = ends_with_number(a * b)
    return ask("multiplication", key, vary(rng, question), reply, check, thought)


def division(rng: Random) -> Item:
    """Numbers up to one hundred over one digit, with the remainder when there is one."""
    b = rng.randint(2, 9)
    a = rng.randrange(101) if rng.random() < 0.5 else b * rng.randint(0, 99 // b)
    quotient, rest = divmod(a, b)
    result = f"{quotient} remainder {rest}" if rest else f"{quotient}"
    thought = f"{b} x {quotient} = {b * quotient}, and {a} - {b * quotient} = {rest}."
    question = rng.choice([f"Divide {a} by {b}.", f"How many times does {b} go into {a}?"])
    if rng.random() < 0.8:
        question = _sum_question(rng, rng.choice(["/", "/", "÷"]), "divided by", a, b)
    reply = f"{a} / {b} = {result}."
    return ask("division", f"{a},{b}", vary(rng, question), reply, says(reply), thought)


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
    n = rng.randint(2, 99)
    short = rng.random() < 0.4
    if short:
        large, small = large_sign, small_sign
    there = rng.random() < 0.65
    source, target = (large, small) if there else (small, large)
    amount, result = (n, n * factor) if there else (n * factor, n)
    sign = "x" if there else "/"
    reply = f"{amount} {source} = {amount} {sign} {factor} = {result} {target}."
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


def comparison(rng: Random) -> Item:
    """Yes/no questions: larger or smaller, even or odd, and alphabetical order."""
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
    relation = "the same as" if a == b else f"{large if a > b else small} than"
    reply = f"{'Yes' if truth else 'No'}, {a} is {relation} {b}."
    question = rng.choice(
        [
            f"Is {a} {large if more else small} than {b}?",
            f"Is {a} {large if more else small} than {b}? Yes or no?",
            f"Yes or no: is {a} {large if more else small} than {b}?",
            f"Is {a} {'>' if more else '<'} {b}?",
            f"Is it true that {a} is {large if more else small} than {b}?",
        ]
    )
    if question.startswith("Is") and "than" not in question:
        relation = "equal to" if a == b else "greater than" if a > b else "less than"
        reply = f"{'Yes' if truth else 'No'}, {a} is {relation} {b}."
    thought = f"I compare {a} and {b}: {a} is {relation} {b}."
    return ask("comparison", f"{a},{b}", vary(rng, question), reply, says(reply), thought)


def _parity(rng: Random) -> Item:
    n, word = rng.randrange(1000), rng.choice(["even", "odd"])
    parity = "odd" if n % 2 else "even"
    reply = f"{'Yes' if word == parity else 'No'}, {n} is {parity}."
    question = rng.choice(
        [f"Is {n} {word}?", f"Is {n} an {word} number?", f"Yes or no: is {n} {word}?"]
    )
    thought = f"The last digit of {n} is {n % 10}, so it is {parity}."
    return ask("comparison", f"parity {n}", vary(rng, question), reply, says(reply), thought)


def _alphabet(rng: Random) -> Item:
    first, second = rng.sample(WORDS, 2)
    word = rng.choice(["before", "after"])
    order = "before" if first < second else "after"
    reply = f"{'Yes' if word == order else 'No'}, {first} comes {order} {second}."
    question = rng.choice(
        [
            f"Does {first} come {word} {second} in the alphabet?",
            f"Does the word {first} come {word} {second} in a dictionary?",
            f"Yes or no: does {first} come {word} {second} alphabetically?",
        ]
    )
    thought = f"In alphabetical order {first} stands {order} {second}."
    return ask("comparison", f"{first},{second}", vary(rng, question), reply, says(reply), thought)
