"""Facts: capitals of countries, and questions about days, months and years."""

from random import Random

from ostro.plugins.starter.training.skills.item import Item, ask, misspell, says, vary
from ostro.plugins.starter.training.skills.lexicon import (
    ALIASES,
    CAPITALS,
    DAYS,
    MONTH_LENGTHS,
    MONTHS,
)

COUNTRY_TO_CAPITAL = """What is the capital of {}?
What's the capital of {}?
Tell me the capital of {}.
Name the capital of {}.
Which city is the capital of {}?
What is the capital city of {}?
What city is the capital of {}?
Do you know the capital of {}?
Can you tell me what the capital of {} is?
I would like to know the capital of {}.
capital of {}
Capital city of {}?
What is {}'s capital?
{}'s capital?
Which city is the seat of government of {}?
I forgot the capital of {}. What is it?
The capital of {} is
The capital of {} is called what?
Give me the name of the capital of {}.
What do they call the capital of {}?
What is the name of the capital of {}?
Quick question: capital of {}?
Remind me, what is the capital of {}?
And the capital of {}?
whats the capital of {}
what's the capital city of {}
{} capital
{} capital city?
capital {}
And of {}, what is the capital?
what about the capital of {}
please tell me the capital city of {}
{}: what is its capital?
what city is {}'s capital
the capital city of {} please""".splitlines()

CAPITAL_TO_COUNTRY = """{} is the capital of which country?
{} is the capital of what country?
Which country has {} as its capital?
What country has the capital {}?
Of which country is {} the capital?
Which country's capital is {}?
Name the country whose capital is {}.
In which country is {} the capital?
What country is {} the capital of?
To which country does the capital {} belong?
The city {} is the capital of which country?
Tell me which country has {} as capital.
{} is the capital of
{} is the capital of which state?
which country is {} the capital of
what is {} the capital of?
what country has {} as capital""".splitlines()


def capital(rng: Random) -> Item:
    """The capital of a country, or the country of a capital; phrasings are what is held out."""
    country, city = rng.choice(list(CAPITALS.items()))
    if rng.random() < 0.75:
        phrase = rng.choice(COUNTRY_TO_CAPITAL)
        named = country
        if country in ALIASES and rng.random() < 0.5:
            named = rng.choice(ALIASES[country].split("|"))
        question = phrase.format(named.removeprefix("the ") if rng.random() < 0.3 else named)
    else:
        phrase = rng.choice(CAPITAL_TO_COUNTRY)
        question = phrase.format(city)
    reply = f"The capital of {country} is {city}."
    if rng.random() < 0.03:
        question = misspell(rng, question)
    thought = f"This is about a country and its capital. {city} belongs to {country}."
    return ask("capital", phrase, vary(rng, question), reply, says(reply), thought)


def calendar(rng: Random) -> Item:
    """Days and months ahead or back, lengths of months, positions, leap years."""
    return rng.choice([_day_step, _day_step, _month_step, _month_step, _leap_year, _single_fact])(
        rng
    )


ORDINALS = """first second third fourth fifth sixth seventh eighth ninth tenth eleventh
twelfth""".split()
# Wordings of the questions with one answer.
PERIODS = {
    "How many days are in a week?|How many days does a week have?|How many days has a week?|"
    "days in a week|How many days are there in one week?|how long is a week": "A week has 7 days.",
    "How many months are in a year?|How many months does a year have?|How many months has a year?|"
    "months in a year|How many months are there in one year?": "A year has 12 months.",
    "How many days are in a year?|How many days has a year?|days in a year|How long is a year?|"
    "How many days are there in one year?|a year has how many days|number of days in a year": (
        "A year has 365 days."
    ),
    "List the days of the week.|Name all days of the week.|What are the days of the week?|"
    "Which days does a week have?|list all days|name the seven days|tell me the days of the week|"
    "give me the days of the week|weekdays": ", ".join(DAYS) + ".",
    "Name all months.|List the months.|What are the months of the year?|list all months|"
    "name the twelve months|tell me the months of the year|Which months does a year have?": (
        ", ".join(MONTHS) + "."
    ),
}


def _count(n: int, unit: str) -> str:
    return f"{n} {unit}" if n == 1 else f"{n} {unit}s"


def _day_step(rng: Random) -> Item:
    day, n, forward = rng.randrange(7), rng.randint(1, 30), rng.random() < 0.6
    if rng.random() < 0.3:
        n = 1
    there = (day + n if forward else day - n) % 7
    span, where = _count(n, "day"), "after" if forward else "before"
    question = rng.choice(
        [
            f"What day is {span} {where} {DAYS[day]}?",
            f"Which day comes {span} {where} {DAYS[day]}?",
            f"Today is {DAYS[day]}. What day {'is it in' if forward else 'was it'} {span}"
            f"{'' if forward else ' ago'}?",
            f"If it is {DAYS[day]}, what day {'will it be in' if forward else 'was it'} {span}"
            f"{'' if forward else ' ago'}?",
        ]
    )
    if n == 1 and rng.random() < 0.7:
        question = rng.choice(
            [
                f"What day comes {where} {DAYS[day]}?",
                f"Which day is {where} {DAYS[day]}?",
                f"What day is {where} {DAYS[day]}?",
                f"which day comes {where} {DAYS[day]}",
                f"the day {where} {DAYS[day]}",
                f"Today is {DAYS[day]}. What day {'is tomorrow' if forward else 'was yesterday'}?",
            ]
        )
    # A step within a week ends every longer one, so that these are too few to hold out.
    key = f"{day} {n} {forward}" if n > 6 else f"fact {question}" if n == 1 else "within a week"
    weeks, rest = _count(n // 7, "week"), _count(n % 7, "day")
    thought, working, step = f"I count {n} {'on' if forward else 'back'}.", "", span
    if n > 6:
        thought = ""
        working = f"{n} days are {weeks}{f' and {rest}' if n % 7 else ''}."
        step = rest if n % 7 else weeks
    answer = f"{step} {where} {DAYS[day]} is {DAYS[there]}."
    return ask("calendar", key, vary(rng, question), answer, None, thought, working)


def _month_step(rng: Random) -> Item:
    month, n, forward = rng.randrange(12), rng.randint(1, 11), rng.random() < 0.6
    if rng.random() < 0.3:
        n = 1
    there = (month + n if forward else month - n) % 12
    span, where = _count(n, "month"), "after" if forward else "before"
    question = rng.choice(
        [
            f"What month is {span} {where} {MONTHS[month]}?",
            f"Which month comes {span} {where} {MONTHS[month]}?",
            f"It is {MONTHS[month]}. What month {'is it in' if forward else 'was it'} {span}"
            f"{'' if forward else ' ago'}?",
        ]
    )
    if n == 1 and rng.random() < 0.7:
        question = rng.choice(
            [
                f"What month comes {where} {MONTHS[month]}?",
                f"Which month is {where} {MONTHS[month]}?",
                f"What month is {where} {MONTHS[month]}?",
                f"the month {where} {MONTHS[month]}",
            ]
        )
    key = f"month {month} {n} {forward}" if n > 1 else f"fact {question}"
    answer = f"{span} {where} {MONTHS[month]} is {MONTHS[there]}."
    thought, working = "That is the next one." if forward else "That is the one before.", ""
    if n > 1:
        sign, back = ("+", "-") if forward else ("-", "+")
        reached = month + 1 + n if forward else month + 1 - n
        steps = f"{month + 1} {sign} {n} = {reached}"
        if reached != there + 1:
            steps += f", {reached} {back} 12 = {there + 1}"
        thought, working = "", f"{MONTHS[month]} is month {month + 1}. {steps}."
        answer = f"Month {there + 1} is {MONTHS[there]}."
    return ask("calendar", key, vary(rng, question), answer, None, thought, working)


def _leap_year(rng: Random) -> Item:
    year = rng.randrange(1600, 2400)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    answer = f"Yes, {year} is a leap year." if leap else f"No, {year} is not a leap year."
    question = rng.choice(
        [
            f"Is {year} a leap year?",
            f"Was {year} a leap year?",
            f"Leap year or not: {year}?",
            f"Does {year} have a February 29?",
        ]
    )
    # A year is decided by its last two digits; those that begin a century are too few to hold out.
    dividend, divisor = (year % 100, 4) if year % 100 else (year, 400)
    key = f"leap {year}" if year % 100 else "leap century"
    working = f"{dividend} / {divisor} has remainder {dividend % divisor}."
    return ask("calendar", key, vary(rng, question), answer, working=working)


def _single_fact(rng: Random) -> Item:
    """Facts too few to hold out by themselves: the phrasing is held out."""
    month, i = rng.choice(MONTHS), rng.randrange(12)
    days, ordinal = MONTH_LENGTHS[month], f"{i + 1}{('st', 'nd', 'rd')[i] if i < 3 else 'th'}"
    spoken = ORDINALS[i] if rng.random() < 0.5 else ordinal
    length = f"{month} has {days} days" + (
        ", or 29 in a leap year." if month == "February" else "."
    )
    phrase, question, reply = rng.choice(
        [
            ("How many days does M have?", f"How many days does {month} have?", length),
            ("How many days has M?", f"How many days has {month}?", length),
            ("days in M", f"days in {month}", length),
            ("How many days are there in M?", f"How many days are there in {month}?", length),
            ("How many days are in M?", f"How many days are in {month}?", length),
            ("How long is M?", f"How long is {month}?", length),
            ("M has how many days?", f"{month} has how many days?", length),
            ("Number of days in M?", f"Number of days in {month}?", length),
            ("Tell me the days of M.", f"Tell me the number of days in {month}.", length),
            *(
                (phrase, phrase.replace("Nth", spoken), f"The {ordinal} month is {MONTHS[i]}.")
                for phrase in (
                    "What is the Nth month?",
                    "Which month is the Nth?",
                    "Name the Nth month.",
                    "What is the Nth month of the year?",
                    "Which month is number Nth?",
                    "Nth month?",
                )
            ),
            *(
                (phrase, phrase, reply)
                for phrases, reply in PERIODS.items()
                for phrase in rng.sample(phrases.split("|"), 2)
            ),
        ]
    )
    return ask(
        "calendar", f"fact {phrase}", vary(rng, question), reply, says(reply), "I know this."
    )
