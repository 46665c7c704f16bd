"""Aerie's own prompts: five task types that serving is judged by, and system prompts."""

from itertools import product

SYSTEMS = (
    "You turn texts, lists and tables into the form that is asked for, and add nothing of your own.",
    "You are a patient assistant in an office. Do what each message asks, exactly and completely.",
    "Answer briefly. When you are asked for JSON, a table or code, give that and nothing else.",
    "You help people who keep records of things, rooms and appointments. Names are spelt as they were given.",
)

_TOPICS = "tides|sourdough|the printing press|photosynthesis|compound interest|glaciers|jazz|vaccines|tea|bridges"
_MANNERS = (
    "Explain {} to someone who has never heard of it.",
    "What is a common misunderstanding about {}?",
    "I have ten minutes. What should I know about {}?",
    "Why do people care about {}?",
    "Tell me a short story in which {} plays a part.",
)
_FUNCTIONS = (
    "reverses the words of a sentence|merges two sorted lists|counts the vowels of a text|finds the longest run of "
    "equal items|checks whether brackets are balanced|parses a date of the form 2026-05-01|groups words by their "
    "anagrams|computes a moving average|flattens nested lists|validates an IPv4 address"
)
_LANGUAGES = ("Python", "JavaScript", "Go", "SQL where it can, else Python", "Rust")
_SUMS = (
    "A shop sells pens at {a} cents and pads at {b} cents. What do {c} pens and {d} pads cost together?",
    "A train runs {a} km in {c} hours, then {b} km in {d} hours. What is its average speed?",
    "A tank holds {a} liters and loses {c} liters an hour. When are {d} liters left?",
    "The sum of two numbers is {a} and their difference is {c}. Which numbers are they?",
    "A field is {a} m long and {b} m wide. How many posts, {c} m apart, does its fence need?",
)
_ORDERS = (
    "Write exactly three sentences about {}; each must begin with the same letter.",
    "List five facts about {} as a numbered list, each of at most eight words.",
    "Write a polite letter that asks a library for a book about {}. Do not use the word 'please'.",
    "Describe {} in two paragraphs, the second of which has no letter 'z'.",
    "Give {} a rating from one to ten and defend it in four lines.",
)
SENTENCES = (
    "The committee met on a gray morning and agreed on little.",
    "Rain had kept the workers from the bridge for most of the month.",
    "Two of the three proposals asked for more money than the town had.",
    "An engineer explained why the old piers could carry another lane.",
    "Shopkeepers feared that a closed road would cost them the summer.",
    "The mayor promised a ferry, and nobody asked what it would cost.",
    "A child's drawing of the bridge hung behind the speaker all day.",
    "By noon the vote had been put off for the second time.",
    "The newspaper counted eleven speakers and one good argument.",
    "Later that week a crack was found, and the matter was settled.",
    "The new lane opened a year late and was named after nobody.",
    "Older people still call the place by the name of the ferry.",
)


def _chat() -> list[str]:
    return [form.format(topic) for topic, form in product(_TOPICS.split("|"), _MANNERS)]


def _code() -> list[str]:
    return [
        f"Write a function in {language} that {task}." for task, language in product(_FUNCTIONS.split("|"), _LANGUAGES)
    ]


def _math() -> list[str]:
    return [form.format(a=120 + 7 * n, b=85 + 3 * n, c=4 + n, d=2 + n) for n, form in product(range(10), _SUMS)]


def _instructions() -> list[str]:
    return [form.format(topic) for topic, form in product(_TOPICS.split("|"), _ORDERS)]


def _summaries() -> list[str]:
    count = len(SENTENCES)
    starts = product(range(count), (4, 6, 8, 10))
    texts = (" ".join(SENTENCES[(first + 5 * step) % count] for step in range(length)) for first, length in starts)
    return [f"Summarize in one sentence: {text}" for text in texts]


TASKS = {
    "chat": _chat,
    "code": _code,
    "math": _math,
    "instructions": _instructions,
    "summaries": _summaries,
}
"""Functions that each make a fresh list."""
