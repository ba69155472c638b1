"""Numbers: the four operations.

Where an answer cannot be looked up from a few earlier tokens, the reply says a short working
first, every token of which can.
"""

from random import Random

from ostro.plugins.starter.training.skills.item import Item, ask, ends_with_number, vary
from ostro.plugins.starter.training.skills.lexicon import NAMES, THINGS


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
            f"{bare} = ?",
            f"{bare}=?",
            f"whats {bare}",
            f"whats {spoken}?",
            f"And {bare}?",
            f"and what is {spoken}?",
            f"Now {bare}",
            f"how much is {spoken}",
            f"{spoken} is what?",
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


def multiply(a: int, b: int) -> str:
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
                f"If I have {a} {thing} and get {b} more, how many {thing} do I have?",
                f"{name} has {a} {thing} and finds {b}. How many does {name} have?",
                f"I had {a} {thing} and bought {b}. How many {thing} do I have now?",
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
                f"I had {a} {thing} and ate {b}. How many {thing} are left?",
                f"{name} has {a} {thing} and eats {b}. How many remain?",
                f"If I have {a} {thing} and lose {b}, how many {thing} do I have left?",
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
    key, product = f"{a},{b}", multiply(a, b)
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
