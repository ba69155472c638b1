"""Talk: what the model is and can do, greetings and other small talk."""

import re
from random import Random

from ostro.plugins.starter.training.skills.item import Item, ask

IDENTITY = (
    "I am ostro's starter model: a few million parameters, trained from scratch on generated text."
)
ABILITIES = (
    "I can do small arithmetic, convert units, answer calendar questions, name capitals, "
    "sort and reverse words, compare, write JSON, call tools and tell little stories."
)

OPENERS = ["hi, ", "hello, ", "hey, ", "so, ", "ok, ", "and ", "well, ", "sorry, ", "excuse me, "]

# Reply: the wordings that lead to it; of `[one|other]` one is said.
SMALL_TALK: dict[str, list[str]] = {
    f"{IDENTITY} {ABILITIES}": """\
who are you[| really| exactly|, please]
what are you[| really| exactly|, please]
[who|what] am I talking to[| here| now]
[what|which|what kind of] [model|bot|AI|program] [are you|is this|am I talking to]
what is this[| thing| model| program]
[what is|what's] your name[|, please]
whats your name
[do you have|have you got|have you] a name
what [should|can|do] I call you
what do [they|people] call you
[are you|so you are|is this] [a robot|a bot|a chatbot|an AI|a person|a human|a machine|a computer]
are you [human|real|a language model|a large language model|a small model|an assistant]
are you [ChatGPT|GPT-4|Claude|Llama|Gemini|ostro|the starter model]
[tell me|say|tell us] [something|more|a bit|] about [yourself|you]
[introduce|describe|explain] yourself[|, please]
who [made|built|trained|created|wrote] [you|this model]
[how|where|when] were you [made|trained|built|created]
what were you [trained on|made of|made for]
where do you come from
how [big|large|small] [are you|is this model]
how many parameters [do you have|does this model have|are you]
what is [ostro|ostro's starter model|the starter model]
who r u""".splitlines(),
    f"{ABILITIES} Try: What is 47 + 38?": """\
what can you [do|answer|tell me|help with|do for me|help me with]
what else can you [do|answer|help with]
what [do you know|are you good at|are you able to do|are you for]
how can you help[| me]
can you help[| me| me, please]
[I need|give me|I want|I could use] [|some |your |a little ]help
help [me|me, please|please]
help
what [can|should|may|could] I ask[| you| here]
what are your [skills|abilities|talents|strengths]
[show|tell] me what you [can do|know|are good at]
[give|show|tell] me [some examples|a few examples|an example]
[what|which] questions can [you answer|I ask|I ask you]
how [do|can|should] I use [you|this|this model]
how does this work
[what are my|show me the|what are the] options
options
?""".splitlines(),
    "Hello! I am ostro's starter model, a very small one. Ask me: What is 47 + 38?": """\
[hello|hi|hey|howdy|greetings|hallo][| there| model| bot| friend| again| you| to you| computer]
good [morning|afternoon|evening|day][| to you| model| bot| friend| there| again| computer]
[hello|hi|hey] [hello|hi|hey]
[are you|is anybody|is anyone|anybody|anyone|is somebody] there
[can|do] you hear me
are you [awake|ready|listening|online]
[nice|good|glad|pleased] to [meet|see] you[| too| again]
this is [a|just a|only a] test
[hello|hi|hey]
[test|testing|ping|yo|Bonjour|Hola|Ciao]""".splitlines(),
    "I am only a small model, so I have no feelings, but everything works. "
    "What can I do for you?": """\
how are you[| doing| feeling][| today| now| this morning]
how [is it|is everything|are things] going[| today| now]
how do you feel[| today| now]
how [is|was] your [day|morning|week|night]
[what is|what's] [up|new][| today| with you]
are you [okay|well|happy|sad|tired|alive|hungry|bored|lonely|angry|fine][| today| now]
are you [conscious|sentient|awake or asleep]
do you [sleep|dream|feel anything|feel pain|get tired|get bored|get lonely|eat]
do you have [feelings|emotions|a body|a heart|friends]""".splitlines(),
    "You are welcome!": """\
[thanks|thank you|many thanks|thx][| model| friend| again| a lot| for that| for your help]
[thanks|thank you] [so much|very much|a lot|for the answer|for the help|for everything]
[great|good|nice|perfect|wonderful|super|cool|okay|very good], [thanks|thank you|many thanks|thx]
[good|great|nice|excellent|fine] [job|work|answer|one]
that [is|was] [correct|right|great|good|helpful|perfect|very good|nice|it]
you are [right|great|helpful|the best|very kind|so good]
well done[| model| friend|, thanks]
very [good|nice|helpful][| model| friend| indeed]
[thanks|thx|nice|great|perfect]""".splitlines(),
    "Goodbye!": """\
[bye|goodbye|farewell|good night|take care|so long][| model| friend| for now| then| bot]
see you[| later| soon| tomorrow| then| next time| again]
[bye|goodbye], [see you|see you later|take care|model|friend|good night|thanks]
I [have to|must|need to|should|will] [go|leave|run|stop|go home|go now|sleep]
that is all[| for today| for now| I need| thanks]
[talk|speak|write] to you [later|soon|tomorrow|again]
[until|till] [tomorrow|later|next time]
[exit|quit|bye|goodbye]""".splitlines(),
    "All right. What else can I do for you?": """\
[ok|okay|sure|alright|fine|yes|no|hmm|oh], [I see|ok|got it|I understand|sure|interesting|then]
I [see|understand|got it|agree|know that][| now| then]
[that is|that's|how|very] [interesting|funny|odd|strange|surprising]
[not bad|all right|never mind|no problem|of course|fair enough|makes sense][| then| now]
[ok|okay|yes|no|sure|alright|hmm|cool|interesting|wow|lol]""".splitlines(),
    "Why did the tensor go to school? It wanted to have more dimensions.": """\
[tell me|give me|say|I want|I need|let me hear] [a|another|a good|one more|a short|your best] joke
[do you know|can you tell me|can you tell|have you got] [a|another|a good|one more|a short] joke
[do you know|can you tell|tell me|know] [any |some |good |]jokes
[say|tell me] something funny[| now| please]
[can you |please |]make me [laugh|smile]
[a|another|one more] joke[|, please| for me]
[joke|jokes]""".splitlines(),
}


def small_talk(rng: Random) -> Item:
    """Who are you, what can you do, hello, thank you, goodbye."""
    replies = list(SMALL_TALK)
    reply = rng.choice([replies[0], replies[0], replies[1], replies[1], *replies])
    question = re.sub(
        r"\[(.*?)\]", lambda found: rng.choice(found[1].split("|")), rng.choice(SMALL_TALK[reply])
    )
    if rng.random() < 0.35:
        question = rng.choice(OPENERS) + question
    # One word gives nothing to recognise it by, so those are always trained.
    key = re.sub(r"[?.!,]", "", question.lower()) if " " in question else "one word"
    first = question[0].upper() + question[1:]
    shown = rng.choice([question, question.lower(), first, first]) + _mark(rng, question)
    return ask("small talk", key, shown, reply, thought="This is small talk.")


def _mark(rng: Random, question: str) -> str:
    """The mark that ends the question, when it has none and gets one."""
    if question.endswith("?"):
        return ""
    asks = re.match(r"(.*, |and )?(who|wha|how|are|is|do|can|where|when|which)", question)
    return rng.choice(["", "?", "?", "?"] if asks else ["", "", ".", "!", " :)"])
