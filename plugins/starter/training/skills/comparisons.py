"""Comparisons: larger or smaller, even or odd, prime or not, and alphabetical order."""

from random import Random

from ostro.plugins.starter.training.skills.item import Item, ask, vary
from ostro.plugins.starter.training.skills.lexicon import WORDS


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
    if kind < 0.28:
        return _larger(rng)
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


def _larger(rng: Random) -> Item:
    """Which of two numbers is larger or smaller."""
    a, b = rng.sample(range(1000 if rng.random() < 0.4 else 100), 2)
    more = rng.random() < 0.7
    word = rng.choice(["bigger", "larger", "greater", "more"] if more else ["smaller", "less"])
    question = rng.choice(
        [
            f"Which is {word}, {a} or {b}?",
            f"Which one is {word}: {a} or {b}?",
            f"What is {word}: {a} or {b}?",
            f"Which number is {word}, {a} or {b}?",
            f"{a} or {b}, which is {word}?",
        ]
    )
    digits = len(str(a)), len(str(b))
    compared = f"{digits[0]} and {digits[1]} digits, {'less' if a < b else 'more'}"
    if digits[0] == digits[1]:
        compared = _compare(str(a), str(b), "less", "more")
    winner = max(a, b) if more else min(a, b)
    working = f"{a} and {b}: {compared}. Asked: {'more' if more else 'less'}."
    answer = f"{winner} is {'greater' if more else 'less'}."
    return ask("comparison", f"{a},{b}", vary(rng, question), answer, working=working)


def _parity(rng: Random) -> Item:
    n, word = rng.randrange(1000 if rng.random() < 0.7 else 100), rng.choice(["even", "odd"])
    parity = "odd" if n % 2 else "even"
    if rng.random() < 0.25:
        one, other = rng.choice([("even", "odd"), ("odd", "even")])
        question = rng.choice(
            [
                f"Is {n} {one} or {other}?",
                f"Is the number {n} {one} or {other}?",
                f"{n}: {one} or {other}?",
            ]
        )
        working = f"The last digit of {n} is {n % 10}, {parity}."
        key = f"parity {n}"
        answer = f"{n} is {parity}."
        return ask("comparison", key, vary(rng, question), answer, working=working)
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


LARGEST = 199


def primality(rng: Random) -> Item:
    """Whether a number of at most 199 is prime, with its smallest divisor when it is not.

    The numbers are too few to hold out: the wording is.
    """
    n = rng.randint(0, 99 if rng.random() < 0.6 else LARGEST)
    wording = rng.choice(PRIME_QUESTIONS)
    return ask("primality", wording, vary(rng, wording.format(n)), _prime_reply(n), thought=KNOWN)


KNOWN = "I know the primes up to 199."
PRIME_QUESTIONS = """Is {} prime?
Is {} a prime?
Is {} a prime number?
Is {} a prime number or not?
Is the number {} prime?
Is the number {} a prime number?
Is {} prime or not?
Is {} prime or composite?
{} prime?
{}: prime or not?
{} is prime, right?
Would you say {} is prime?
Tell me if {} is prime.
Tell me whether {} is a prime number.
Check if {} is prime.
Can you check whether {} is a prime?
Do you know if {} is prime?
Does {} count as a prime number?
And {}, is it prime?
Is it true that {} is prime?
Yes or no: is {} prime?
I wonder if {} is a prime number.
prime: {}?""".splitlines()


def _prime_reply(n: int) -> str:
    if n < 2:
        return f"No, {n} is not prime: the smallest prime is 2."
    divisor = next(d for d in range(2, n + 1) if n % d == 0)
    if divisor == n:
        return f"Yes, {n} is prime."
    return f"No, {n} = {divisor} x {n // divisor} is not prime."
