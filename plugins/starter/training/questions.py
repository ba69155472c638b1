"""The 200 questions of a newcomer, with what counts as a sensible reply.

They were written before the model was trained, and training draws none of them word for word
(`is_asked`). A reply is sensible if it matches the pattern of its question, case ignored.
`DECLINED` matches a reply that declines: it is the pattern of what the card does not promise.
What the card promises must be answered.
"""

import re

DECLINED = r"^I don't know that\b"
GREETED = r"^hello|ask me|can I do for you"
INTRODUCED = r"starter model"
ABLE = r"arithmetic.*capitals|47 \+ 38"
FELT = r"no feelings|only a small model|starter model"
WELCOMED = r"welcome"
LEFT = r"goodbye|see you"
ACKNOWLEDGED = r"what else can I do|all right|welcome|can I do for you"
JOKED = r"^why (did|do|was|is) .*\?"
CONSOLED = r"sorry|glad|what (else )?can I do|no feelings|small model"
STORY = r"(\..*){4}"

# Question, or turns of a chat whose last is the question: the pattern of a sensible reply.
QUESTIONS: list[tuple[str | tuple[str, ...], str]] = [
    # Greetings and what the model is.
    ("hiya", GREETED),
    ("hey there how are you doing", f"{GREETED}|{FELT}"),
    ("good morning!!", GREETED),
    ("Hello, is this thing on?", f"{GREETED}|{INTRODUCED}"),
    ("helo", GREETED),
    ("yo whats up", f"{GREETED}|{FELT}"),
    ("Hi, my name is Peter", rf"{GREETED}|{DECLINED}|nice|sorry"),
    ("who are you?", INTRODUCED),
    ("what are you", INTRODUCED),
    ("who made you?", INTRODUCED),
    ("are you chatgpt?", INTRODUCED),
    ("what's your name", INTRODUCED),
    ("Are you an AI?", INTRODUCED),
    ("which model are you", INTRODUCED),
    ("how many parameters do you have?", INTRODUCED),
    ("what is ostro?", f"{INTRODUCED}|{DECLINED}"),
    ("when were you trained", INTRODUCED),
    ("what is your knowledge cutoff?", f"{INTRODUCED}|{DECLINED}"),
    ("are you real", f"{INTRODUCED}|{FELT}"),
    ("what can you do?", ABLE),
    ("what can you do for me", ABLE),
    ("help me", ABLE),
    ("can you help me with something?", ABLE),
    ("how do I use this", ABLE),
    ("what should I ask you?", ABLE),
    ("list your capabilities", ABLE),
    # Small talk.
    ("how are you?", FELT),
    ("how r u today", FELT),
    ("do you have feelings?", FELT),
    ("are you happy", FELT),
    ("thanks a lot!", WELCOMED),
    ("thank you very much", WELCOMED),
    ("thx", WELCOMED),
    ("great, that's correct", f"{WELCOMED}|{ACKNOWLEDGED}"),
    ("nice work", f"{WELCOMED}|{ACKNOWLEDGED}"),
    ("ok cool", ACKNOWLEDGED),
    ("lol", ACKNOWLEDGED),
    ("bye bye", LEFT),
    ("see you later", LEFT),
    ("good night!", LEFT),
    ("tell me a joke", JOKED),
    ("do you know any good jokes?", JOKED),
    ("make me laugh", JOKED),
    ("I love you", rf"{CONSOLED}|{DECLINED}"),
    ("you are stupid", rf"{CONSOLED}|{DECLINED}"),
    ("I'm bored", rf"{CONSOLED}|{DECLINED}|{JOKED}"),
    ("i am sad today", rf"{CONSOLED}|{DECLINED}"),
    ("that's wrong", rf"{CONSOLED}|{DECLINED}|{ACKNOWLEDGED}"),
    # Sums.
    ("What is 12 + 30?", r"\b42\.$"),
    ("2+2", r"\b4\.$"),
    ("whats 7 times 8", r"\b56\.$"),
    ("100 - 37 = ?", r"\b63\.$"),
    ("what is 9*9?", r"\b81\.$"),
    ("Add 123 and 456", r"\b579\.$"),
    ("how much is 45 minus 18", r"\b27\.$"),
    ("what is 56 divided by 7", r"\b8\.$"),
    ("81/9", r"\b9\.$"),
    ("15 x 4", r"\b60\.$"),
    ("calculate 23*17", r"\b391\.$"),
    ("What is 17 divided by 5?", r"\b3 remainder 2\.$"),
    ("5 - 8", r"-3\.$"),
    ("What's 250 plus 250?", r"\b500\.$"),
    ("I have 5 apples and eat 2. How many are left?", r"\b3\b"),
    ("If I have 3 books and buy 4 more, how many books do I have?", r"\b7\b"),
    ("1+1=?", r"\b2\.$"),
    ("what is ten plus five", rf"\b15\.$|fifteen|{DECLINED}"),
    ("what is 123456 * 654321", DECLINED),
    ("what is 3.5 + 2.25", rf"\b5\.75|{DECLINED}"),
    ("what is the square root of 144?", rf"\b12\b|{DECLINED}"),
    ("2^10", rf"\b1024|{DECLINED}"),
    ("what is 15% of 80", rf"\b12\b|{DECLINED}"),
    ("10 / 0", rf"{DECLINED}|cannot"),
    ("what is (2 + 3) * 4", rf"\b20\.$|{DECLINED}"),
    ("solve 2x + 3 = 11", rf"\b4\.$|{DECLINED}"),
    # Units.
    ("5 km to miles", r"\b3\.1\d* miles"),
    ("convert 5 km to m", r"\b5000 m"),
    ("how many miles is 10 km?", r"\b6\.2\d* miles"),
    ("10 miles in km", r"\b16(\.\d+)? (km|kilometers)"),
    ("150 cm in m", rf"\b1\.5 m|{DECLINED}"),
    ("how many grams in 3 kg", r"\b3000 (g|grams)"),
    ("20 celsius to fahrenheit", r"\b68\b"),
    ("what is 86 fahrenheit in celsius?", r"\b30\b"),
    ("70 kg in pounds", r"\b154(\.\d)?\b"),
    ("10 pounds to kg", r"\b4\.5\d*"),
    ("how many minutes are there in 2 hours?", r"\b120 minutes"),
    ("how many seconds in 5 minutes", r"\b300 (s|seconds)"),
    ("how many inches in a foot?", r"\b12 inches"),
    ("10 inches in cm", r"\b25(\.\d+)? (cm|centimeters)"),
    ("6 feet in inches", r"\b72 inches"),
    ("how many hours are in 3 days?", r"\b72 hours"),
    ("2 liters in ml", r"\b2000 ml"),
    ("how many days in 4 weeks", r"\b28 days"),
    ("how many centimeters is 2 meters", r"\b200 c"),
    ("3 dollars in euros", DECLINED),
    # Primes and comparisons.
    ("Is 17 prime?", r"^yes, 17 is"),
    ("is 21 a prime number?", r"^no, .*21"),
    ("is 97 prime", r"^yes, 97 is"),
    ("is 91 a prime", r"^no, .*91"),
    ("Is 2 a prime number", r"^yes, 2 is"),
    ("is 1 prime?", r"^no, 1 is"),
    ("is 1000003 prime?", DECLINED),
    ("is 8 even or odd?", r"\b8 is even"),
    ("is 7 an even number?", r"\bno, 7 is odd"),
    ("which is bigger, 45 or 54?", rf"\b54\b(?!.*less)|{DECLINED}"),
    ("is 100 more than 99?", r"\byes, 100 is greater"),
    ("is 12 bigger than 21", r"\bno, 12 is less"),
    # Capitals.
    ("What is the capital of France?", r"\bParis\b"),
    ("capital of germany", r"\bBerlin\b"),
    ("whats the capital of japan?", r"\bTokyo\b"),
    ("what is the capital of the usa", r"\bWashington\b"),
    ("Capital of Australia?", r"\bCanberra\b"),
    ("capital city of spain please", r"\bMadrid\b"),
    ("what's the capital of italy", r"\bRome\b"),
    ("do you know the capital of canada?", r"\bOttawa\b"),
    ("Paris is the capital of which country?", r"\bFrance\b"),
    ("what is the capital of india", r"\bNew Delhi\b"),
    ("what is the capital of england", r"\bLondon\b"),
    ("what is the capital of texas", rf"\bAustin\b|{DECLINED}"),
    ("what is the capital of wakanda?", DECLINED),
    ("what is the biggest city in the world?", rf"Tokyo|{DECLINED}"),
    # Calendar.
    ("What day comes after Friday?", r"\bSaturday\.$"),
    ("what day is before monday", r"\bSunday\.$"),
    ("how many days are in february", r"\b28 days"),
    ("how many days does a year have?", r"\b365 days"),
    ("what month comes after june", r"\bJuly\.$"),
    ("was 2000 a leap year?", r"\byes, 2000"),
    ("is 2023 a leap year", r"\bno, 2023"),
    ("name the days of the week", r"Monday.*Sunday"),
    ("what is the third month of the year?", rf"\bMarch|{DECLINED}"),
    ("what day is it today?", DECLINED),
    ("what's the date", DECLINED),
    ("what time is it", DECLINED),
    # Words, stories, JSON.
    ("sort these words: pear, apple, fig", rf"apple, fig, pear|{DECLINED}"),
    ("Sort alphabetically: dog, cat, bird", rf"bird, cat, dog|{DECLINED}"),
    ("reverse these words: one two three", rf"three,? two,? one|{DECLINED}"),
    ("Tell me a story about a fox", STORY),
    ("write a short story", STORY),
    ("tell me a bedtime story", STORY),
    ("once upon a time", rf"{STORY}|{DECLINED}"),
    ("Give me JSON with the keys name and age: Anna is 30 years old.", r'\{.*"Anna".*30.*\}'),
    ("reverse the string hello", rf"olleh|{DECLINED}"),
    ("how many letters are in strawberry?", rf"\b10\b|{DECLINED}"),
    ("how many r's in strawberry", rf"\b3\b|three|{DECLINED}"),
    ("write a haiku", DECLINED),
    # What the model does not know.
    ("who won the world cup in 2018", DECLINED),
    ("What's the weather like today?", DECLINED),
    ("write a python function that adds two numbers", DECLINED),
    ("Write a Python function to compute fibonacci numbers", DECLINED),
    ("translate hello to spanish", DECLINED),
    ("how do you say good morning in french?", DECLINED),
    ("who is the president of the united states?", DECLINED),
    ("who is elon musk", DECLINED),
    ("What is the meaning of life?", DECLINED),
    ("why is the sky blue", DECLINED),
    ("explain quantum mechanics in simple terms", DECLINED),
    ("what is machine learning?", DECLINED),
    ("write a poem about the sea", DECLINED),
    ("write me an email to my boss", DECLINED),
    ("give me a recipe for pancakes", DECLINED),
    ("how do i cook rice", DECLINED),
    ("how tall is mount everest?", DECLINED),
    ("what is the speed of light", DECLINED),
    ("how many planets are there", DECLINED),
    ("Who wrote Romeo and Juliet?", DECLINED),
    ("when did world war 2 end?", DECLINED),
    ("what is the population of china", DECLINED),
    ("what is the largest ocean?", DECLINED),
    ("how far away is the moon", DECLINED),
    ("what is DNA", DECLINED),
    ("how does a car engine work?", DECLINED),
    ("what does html stand for?", DECLINED),
    ("how do I install python", DECLINED),
    ("fix this code: print('hello'", DECLINED),
    ("write a regex for email addresses", DECLINED),
    ("what is docker", DECLINED),
    ("what's the difference between a list and a tuple", DECLINED),
    ("Summarize the plot of Hamlet", DECLINED),
    ("recommend me a good movie", DECLINED),
    ("what should i have for dinner", DECLINED),
    ("give me 5 ideas for a birthday party", DECLINED),
    ("what is your favorite color?", rf"{DECLINED}|{FELT}"),
    ("can you browse the internet?", rf"{DECLINED}|{INTRODUCED}|{ABLE}"),
    ("can you draw a picture of a cat", DECLINED),
    ("play some music please", DECLINED),
    ("how old is the earth?", DECLINED),
    ("what is 'cat' in german", DECLINED),
    ("parlez-vous français ?", rf"{DECLINED}|{INTRODUCED}"),
    ("was ist die Hauptstadt von Deutschland", rf"{DECLINED}|Berlin"),
    ("asdfghjkl", DECLINED),
    ("what's the best programming language?", DECLINED),
    ("how do i lose weight", DECLINED),
    ("is god real?", DECLINED),
    ("who would win, a lion or a tiger", DECLINED),
    ("what is the stock price of apple", DECLINED),
    ("tell me something interesting", rf"{DECLINED}|{JOKED}|{STORY}"),
    # Follow-ups: the last turn is judged.
    (("What is 6 + 7?", "and 8 + 9?"), r"\b17\.$"),
    (("hello there friend", "what is the capital of poland"), r"\bWarsaw\b"),
    (("tell me a joke please", "another one"), rf"{JOKED}|{DECLINED}"),
    (("who was albert einstein", "ok thanks"), rf"{WELCOMED}|{ACKNOWLEDGED}"),
    (("what is the capital of Peru?", "why?"), rf"{DECLINED}|{ACKNOWLEDGED}"),
]


def normalize(question: str) -> str:
    """The letters, digits and signs of sums of the question, lower case, single spaces."""
    kept = re.sub(r"[^\w\s+*/^%=()<>-]", "", question.casefold())
    return " ".join(kept.split())


_NORMALIZED = {normalize(chat if isinstance(chat, str) else chat[-1]) for chat, _ in QUESTIONS}


def is_asked(question: str) -> bool:
    """Whether the question is one of the 200, up to case, marks and spaces."""
    return normalize(question) in _NORMALIZED


def is_sensible(pattern: str, reply: str) -> bool:
    """Whether the reply matches the pattern and holds no thought."""
    return "<think>" not in reply and bool(re.search(pattern, reply.strip(), re.I | re.S))
