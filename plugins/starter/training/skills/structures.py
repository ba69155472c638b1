"""Structures: JSON answers that fit a schema, tool calls, and answers from tool results."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from ostro.plugins.starter.training.skills.item import Check, Item, Message, ask, says, spoken, vary
from ostro.plugins.starter.training.skills.lexicon import CAPITALS, CITIES, NAMES, THINGS, WORDS

JSON = dict[str, Any]

COUNTRIES = [country for country in CAPITALS if not country.startswith("the ")]
COLORS = "red green blue yellow black white brown gray pink purple".split()
ANIMALS = "cat dog horse cow goat rabbit lion tiger mouse snake fox wolf".split()

# Field: (JSON type, how a sentence tells it, how a value is drawn).
FIELDS: dict[str, tuple[str, str, Callable[[Random], Any]]] = {
    "name": ("string", "the name is {}", lambda rng: rng.choice(NAMES)),
    "age": ("integer", "the age is {}", lambda rng: rng.randint(1, 99)),
    "city": ("string", "the city is {}", lambda rng: rng.choice(CITIES)),
    "country": ("string", "the country is {}", lambda rng: rng.choice(COUNTRIES)),
    "color": ("string", "the color is {}", lambda rng: rng.choice(COLORS)),
    "animal": ("string", "the animal is the {}", lambda rng: rng.choice(ANIMALS)),
    "item": ("string", "the item is the {}", lambda rng: rng.choice(WORDS)),
    "count": ("integer", "the count is {}", lambda rng: rng.randint(0, 999)),
    "price": ("number", "the price is {}", lambda rng: rng.randint(10, 9999) / 100),
    "quantity": ("integer", "the quantity is {}", lambda rng: rng.randint(1, 99)),
    "year": ("integer", "the year is {}", lambda rng: rng.randint(1900, 2050)),
    "active": ("boolean", "active is {}", lambda rng: rng.random() < 0.5),
    "tags": ("array", "the tags are {}", lambda rng: rng.sample(WORDS, rng.randint(1, 3))),
}


def _is_json(expected: JSON) -> Check:
    """The reply is one JSON value, equal to `expected` with types and order of keys."""

    def check(reply: str) -> bool:
        try:
            return json.dumps(json.loads(spoken(reply))) == json.dumps(expected)
        except json.JSONDecodeError:
            return False

    return check


def _tell(field: str, value: Any) -> str:
    if isinstance(value, bool):
        value = "true" if value else "false"
    elif isinstance(value, list):
        value = " and ".join(value)
    return FIELDS[field][1].format(value)


def _schema(fields: list[str]) -> JSON:
    kinds: dict[str, JSON] = {field: {"type": FIELDS[field][0]} for field in fields}
    for kind in kinds.values():
        if kind["type"] == "array":
            kind["items"] = {"type": "string"}
    return {"type": "object", "properties": kinds, "required": fields}


def _person(rng: Random) -> tuple[JSON, str]:
    """The classical case: somebody's name, age and city in one plain sentence."""
    record = {field: FIELDS[field][2](rng) for field in ("name", "age", "city")}
    name, age, city = record.values()
    sentence = rng.choice(
        [
            f"{name} is {age} years old and lives in {city}.",
            f"{name} lives in {city} and is {age} years old.",
            f"{name}, {age}, lives in {city}.",
            f"My name is {name}, I am {age} and I live in {city}.",
        ]
    )
    if rng.random() < 0.4:
        sentence = rng.choice(
            [f"{name} is {age} years old.", f"{name}, age {age}.", f"I am {name}, {age}."]
        )
        return {field: record[field] for field in rng.sample(["name", "age"], 2)}, sentence
    return {field: record[field] for field in rng.sample(list(record), rng.randint(2, 3))}, sentence


def _record(rng: Random) -> tuple[JSON, str]:
    """Two to four fields, told in an order of their own, one of them at times not asked for."""
    fields = rng.sample(list(FIELDS), rng.randint(2, 4))
    record = {field: FIELDS[field][2](rng) for field in fields}
    told = [_tell(field, value) for field, value in record.items()]
    if rng.random() < 0.5:
        rng.shuffle(told)
    sentence = "; ".join(told) if rng.random() < 0.3 else ", ".join(told[:-1]) + " and " + told[-1]
    if len(fields) > 2 and rng.random() < 0.3:
        del record[fields[0]]
    return record, f"{sentence[0].upper()}{sentence[1:]}."


def json_answer(rng: Random) -> Item:
    """A record told in words, given back as JSON that fits the schema of the question."""
    record, sentence = (_person if rng.random() < 0.4 else _record)(rng)
    fields = list(record)
    schema = json.dumps(_schema(fields))
    reply, key = json.dumps(record), json.dumps([record, sentence])
    names = ", ".join(fields)
    if rng.random() < 0.4:
        names = f"{', '.join(fields[:-1])} and {fields[-1]}" if fields[1:] else fields[0]
    rule = rng.choice(
        [
            f"Answer with JSON that fits this schema: {schema}",
            f"Answer in JSON. Schema: {schema}",
            f"Return JSON with this schema: {schema}",
            f"Give JSON with the keys {names}.",
            f"Answer with a JSON object with the keys {names}.",
            f"As JSON with {names}, please.",
            f"Write JSON with the keys {names}.",
            f"Make a JSON object with {names}.",
        ]
    )
    if rng.random() < 0.3:
        item = ask("json", key, sentence, reply, _is_json(record))
        item.messages.insert(0, {"role": "system", "content": rule})
        return item
    question = f"{rule}\n{sentence}" if rng.random() < 0.4 else f"{sentence} {rule}"
    if rng.random() < 0.3 and not rule.endswith("}"):
        question = f"{rule.rstrip('.').removesuffix(', please')}: {sentence}"
    thought = f"The object needs the keys {names}."
    return ask("json", key, question, reply, _is_json(record), thought)


def _tool(name: str, description: str, /, **parameters: str) -> JSON:
    """A tool in the form of the chat-completions API; parameters map a name to its JSON type."""
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


WEATHER = _tool("get_weather", "Get the current weather in a city.", city="string")
CALCULATOR = _tool("calculate", "Evaluate an arithmetic expression.", expression="string")
OTHER_TOOLS = [
    _tool("get_time", "Get the current time in a city.", city="string"),
    _tool("get_population", "Get the population of a country.", country="string"),
    _tool("get_stock", "Get the number of items in stock.", item="string"),
    _tool("find_person", "Find the phone number of a person.", name="string"),
    _tool("roll_dice", "Roll dice.", sides="integer", count="integer"),
]
SKIES = "sunny cloudy rainy windy foggy snowy clear stormy".split()

# What a tool is asked, the arguments that follow, what it returns, what is answered.
Call = tuple[str, JSON, str, str]


def _weather(rng: Random) -> Call:
    city = rng.choice(CITIES + NAMES[:20] if rng.random() < 0.2 else CITIES)
    degrees, sky = rng.randint(-15, 40), rng.choice(SKIES)
    question = rng.choice(
        [
            f"What is the weather in {city}?",
            f"How is the weather in {city}?",
            f"What's the weather like in {city} today?",
            f"Is it raining in {city}?",
            f"Tell me the weather in {city}.",
            f"Weather in {city}?",
            f"How warm is it in {city}?",
            f"Do I need a coat in {city}?",
        ]
    )
    result = rng.choice(
        [
            json.dumps({"temperature": degrees, "sky": sky}),
            json.dumps({"city": city, "temperature": degrees, "sky": sky}),
            f"{sky}, {degrees} C",
            f"{degrees} degrees, {sky}",
        ]
    )
    return question, {"city": city}, result, f"It is {degrees} degrees and {sky} in {city}."


def _calculate(rng: Random) -> Call:
    symbol = rng.choice("+-*/")
    a, b = (rng.randint(2, 99999 if rng.random() < 0.5 else 999) for _ in range(2))
    expression = f"{a} {symbol} {b}"
    word = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[symbol]
    question = rng.choice(
        [
            f"What is {expression}?",
            f"Calculate {expression}.",
            f"How much is {a} {word} {b}?",
            f"What is {a} {word} {b}?",
            f"Compute {a}{symbol}{b}.",
            f"Use the calculator: {a}{symbol}{b}",
        ]
    )
    value = {"+": a + b, "-": a - b, "*": a * b, "/": round(a / b, 3)}[symbol]
    result = json.dumps({"result": value}) if rng.random() < 0.4 else str(value)
    return question, {"expression": expression}, result, f"{expression} = {value}."


def _other(rng: Random, name: str) -> Call:
    city, country, thing = rng.choice(CITIES), rng.choice(COUNTRIES), rng.choice(THINGS)
    person, sides, count = rng.choice(NAMES), rng.randint(4, 20), rng.randint(1, 6)
    clock, people = f"{rng.randrange(24):02}:{rng.randrange(60):02}", rng.randint(1, 999)
    rolls = [rng.randint(1, sides) for _ in range(count)]
    calls: dict[str, Call] = {
        "get_time": (
            rng.choice([f"What time is it in {city}?", f"What is the time in {city} now?"]),
            {"city": city},
            clock,
            f"It is {clock} in {city}.",
        ),
        "get_population": (
            rng.choice([f"How many people live in {country}?", f"Population of {country}?"]),
            {"country": country},
            f"{people} million",
            f"{people} million people live in {country}.",
        ),
        "get_stock": (
            rng.choice([f"How many {thing} are in stock?", f"How many {thing} do we have left?"]),
            {"item": thing},
            str(people),
            f"There are {people} {thing} in stock.",
        ),
        "find_person": (
            rng.choice([f"What is {person}'s phone number?", f"Find the number of {person}."]),
            {"name": person},
            f"555-{people:03}",
            f"The phone number of {person} is 555-{people:03}.",
        ),
        "roll_dice": (
            f"Roll {count} dice with {sides} sides.",
            {"sides": sides, "count": count},
            json.dumps(rolls),
            f"The dice show {', '.join(map(str, rolls))}.",
        ),
    }
    return calls[name]


def _is_call(name: str, arguments: JSON) -> Check:
    """The reply is one call in the Hermes form, with this name and these arguments."""

    def check(reply: str) -> bool:
        text = spoken(reply)
        if not (text.startswith("<tool_call>") and text.endswith("</tool_call>")):
            return False
        try:
            call = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        except json.JSONDecodeError:
            return False
        return bool(call == {"name": name, "arguments": arguments})

    return check


def tool_call(rng: Random) -> Item:
    """A question that one of the listed tools answers; the reply is the call."""
    tools = [WEATHER, CALCULATOR]
    if rng.random() < 0.4:
        tools = rng.sample([*tools, *OTHER_TOOLS], rng.randint(1, 3))
    tools = rng.sample(tools, len(tools))
    tool = rng.choice(tools)["function"]["name"]
    makers = {"get_weather": _weather, "calculate": _calculate}
    question, arguments, _, _ = made = makers[tool](rng) if tool in makers else _other(rng, tool)
    call = {"type": "function", "function": {"name": tool, "arguments": arguments}}
    messages: list[Message] = [
        {"role": "user", "content": vary(rng, question, lower=False)},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    thought = f"The tool {tool} can answer this."
    item = Item("tool call", question, messages, _is_call(tool, arguments), thought, tools=tools)
    return _answered(item, made) if rng.random() < 0.5 else item


def _answered(item: Item, made: Call) -> Item:
    """The call, then what the tool returned, then the answer that uses it."""
    question, _, result, answer = made
    messages: list[Message] = [
        *item.messages,
        {"role": "tool", "content": result},
        {"role": "assistant", "content": answer},
    ]
    thought = f"The tool returned {result}."
    key = f"{question} {result}"
    return Item("tool answer", key, messages, says(answer), thought, tools=item.tools)
