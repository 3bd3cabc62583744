"""Prompts of nine kinds, put together from subjects and sentences, for a target that has nothing else to answer.

Four kinds are about a passage, which is taken from what the target wrote before.
"""

from __future__ import annotations

import random

PASSAGE_KINDS = ("summary", "retrieval", "edit", "repeat")

SUBJECTS = """volcanoes|the Roman roads|coral reefs|learning to swim|the printing press|bees|solar panels|jazz|
sourdough bread|black holes|tea|the human heart|chess|earthquakes|bicycles|the Silk Road|vaccines|owls|the French
Revolution|plate tectonics|public libraries|moving to a new city|saving money|electric cars|the water cycle|dinosaurs|
meditation|the Moon|glaciers|spiders|penguins|photography|the stock market|recycling|gravity|the Great Wall of China|
sleep|rivers|computer viruses|gardening|opera|dogs|time zones|the history of paper|job interviews|rainforests|
headaches|whales|the Olympic Games|magnets|knitting|democracy|fear of flying|the brain|wind turbines|cheese|the
Industrial Revolution|deserts|email|running a marathon|DNA|mountain climbing|city traffic|the violin|migration of
birds|ancient Egypt|inflation|lightning|exercise at home|school uniforms|the Internet|making friends|rice|satellites|
castles|the number zero|soap|teamwork|pirates|healthy breakfasts|trains|the ozone layer|memory|camping|video games|the
Renaissance|allergies|robots|wolves|clocks|public speaking|fungi|fashion|the Vikings|tsunamis|pottery|procrastination|
space travel|small businesses|oceans|poetry|nutrition|bridges|encryption|a rainy holiday|an old letter|a lost key|a
talking cat|a night train|the last shop in town|a secret garden|two rival bakers|a robot that paints|a storm at sea"""

ASK = """What are the main facts about {0}?|Explain {0} to a ten-year-old.|Why does {0} matter?|How did people come to
understand {0}?|Give me five interesting facts about {0}.|What are common myths about {0}?|How does {0} compare with
{1}?|I would like to learn about {0}. Where should I begin?|What would you tell a beginner about {0}?|Describe {0} in
one paragraph.|List the advantages and disadvantages of {0}.|What questions should I ask an expert on {0}?|Can you
help me plan a short lesson on {0}?|What has changed about {0} in the last hundred years?|Tell me something surprising
about {0}.|Make a table that compares {0} and {1}.|Is there a connection between {0} and {1}?|What is the best way to
get better at {0}?|Who was important in the history of {0}, and why?|Give me a step-by-step guide to {0}."""

WRITE = """Write a short story about {0}.|Write a poem about {0} in four stanzas.|Write an email to a colleague about
{0}.|Write a blog post of about 200 words on {0}.|Write a dialogue between two friends who disagree about {0}.|Write a
formal letter to the city council about {0}.|Write the opening of a novel that has to do with {0} and {1}.|Write a
product description that mentions {0}.|Write a speech of one minute about {0}.|Write three haiku about {0}.|Write a
diary entry about {0}.|Write an advertisement for a museum of {0}.|Write an essay that argues for more attention to
{0}.|Write a thank-you note that refers to {0}.|Write a scene for the theatre in which {0} and {1} both matter.|Write
a news report about {0}.|Write a review of a book about {0}."""

THINGS = """a list of numbers|a string|a binary tree|a linked list|a matrix|a dictionary of prices|a log file|a JSON
file|a stack|a queue|a graph|a list of names|a date|a sentence|a table of students|a bank transfer|a shopping cart|a
deck of cards|a web page|a temperature reading|a phone number|a password|an image|a calendar|a text file"""

DEEDS = """reverses {0}|sorts {0}|checks whether {0} is valid|counts how often each element occurs in {0}|finds the
largest element in {0}|prints {0} in a readable form|converts {0} into another format|searches {0} for a given value|
merges two of {0}|splits {0} into equal parts|removes what is not needed from {0}|saves {0} to disk|compares {0} with
another one|computes the average of {0}|validates {0} and raises an error|generates a random example of {0}"""

CODE = """Write a {1} function that {0}.|Write a {1} program that {0}, with comments.|Show me how to write a {1} class
that {0}.|Write a {1} function that {0}, and then test it.|How do I write something in {1} that {0}?|Give me a {1}
example that {0} and explain it step by step.|Write {1} code that {0}. Keep it as short as possible."""

LANGUAGES = "Python|Python|Python|JavaScript|Java|C++|C|Go|Rust|SQL|Bash|TypeScript|HTML"

SUMS = """A shop sells {0} apples for {1} dollars each and gives a discount of {2} %. How much does it take?|What is
{0} times {1}, minus {2}?|A train travels {0} km in {1} hours. How far does it travel in {2} hours?|Solve for x: {1}x
+ {2} = {0}.|A rectangle is {0} cm long and {1} cm wide. What are its area and its perimeter?|What is {1} % of {0}?|If
{1} workers need {0} hours for a job, how long do {2} workers need?|Find the average of {0}, {1} and {2}.|Anna has {0}
coins and gives {1} to each of {2} friends. How many are left?|What is the next number: {1}, {2}, {0}? Explain your
reasoning.|A recipe for {1} people needs {0} g of flour. How much do {2} people need?|Convert {0} minutes into hours
and minutes.|What is the probability of rolling a sum of {1} with two dice?|Simplify the fraction {1}/{0}.|The sides
of a triangle are {0}, {1} and {2}. Is that possible?|A tank holds {0} litres and loses {1} litres an hour. When is it
empty?|What is the square of {1}?|Divide {0} by {2} and round to two decimals."""

PHRASES = """Where is the nearest train station?|I would like a cup of coffee, please.|The weather is beautiful
today.|My brother works in a hospital.|We will meet at seven in the evening.|Could you tell me how much this costs?|
She has been learning English for two years.|The children are playing in the garden.|I forgot my umbrella at the
office.|This book is more interesting than the film.|The meeting was cancelled because of the storm.|Please close the
window before you leave.|Tomorrow we are travelling to the sea.|He asked me to send him the report by Friday.|Thank
you very much for your help.|There are many old houses in this street."""

TONGUES = "French|Spanish|German|Italian|Portuguese|Dutch|Swedish|Polish|Japanese|Turkish"

TRANSLATE = """Translate into {1}: {0}|How do you say "{0}" in {1}?|Translate the following sentence into {1} and
explain the grammar: {0}|What is the {1} for "{0}"? Give two versions."""

ABOUT_PASSAGE = {
    "summary": """Summarise the following text in two sentences:|Give me the main points of this text as a list:|What is
        the following text about? Answer briefly.|Write a headline and a one-paragraph summary for this text:""",
    "retrieval": """Read this text and say what it tells about the first thing it mentions:|Which names, places or
        numbers occur in this text?|Answer from the text alone: what is its most important claim, and what supports it?|
        Quote the sentence of this text that matters most, and explain why:""",
    "edit": """Correct all mistakes in the following text and return the corrected text:|Rewrite this text in a more
        formal tone:|Rewrite the following text in simpler words, sentence by sentence:|Change the following text to the
        past tense:""",
    "repeat": """Copy the following text exactly:|Write this text out again, with each sentence on a line of its own:|
        Return the following text unchanged, in quotation marks:""",
}
KINDS = ("questions", "writing", "coding", "maths", "translation", *PASSAGE_KINDS)


def seed_prompt(index: int, passage: str = "") -> tuple[str, str]:
    """The kind and the text of prompt `index` of an endless sequence; the same index gives the same prompt.

    Without a `passage`, kinds that are about one are left out.
    """
    drawn = random.Random(index)
    kind = KINDS[index % len(KINDS)]
    if kind in PASSAGE_KINDS and not passage:
        kind = KINDS[index % (len(KINDS) - len(PASSAGE_KINDS))]
    match kind:
        case "questions" | "writing":
            return kind, _one(drawn, ASK if kind == "questions" else WRITE).format(*drawn.sample(_list(SUBJECTS), 2))
        case "coding":
            return kind, _one(drawn, CODE).format(
                _one(drawn, DEEDS).format(_one(drawn, THINGS)), _one(drawn, LANGUAGES)
            )
        case "maths":
            return kind, _one(drawn, SUMS).format(drawn.randint(20, 400), drawn.randint(3, 20), drawn.randint(2, 12))
        case "translation":
            return kind, _one(drawn, TRANSLATE).format(_one(drawn, PHRASES), _one(drawn, TONGUES))
    return kind, f"{_one(drawn, ABOUT_PASSAGE[kind])}\n\n{passage}"


def _list(texts: str) -> list[str]:
    return [" ".join(text.split()) for text in texts.split("|")]


def _one(drawn: random.Random, texts: str) -> str:
    return drawn.choice(_list(texts))
