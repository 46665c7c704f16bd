"""Word problems in several steps, which the model thinks through before it answers."""

import re

from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import Exercise, Message, question
from aerie.train.demo.tasks.pattern import patterns, read_any

MORE = ("buys {n} more", "finds {n} more", "gets {n} from a friend")
FEWER = ("gives {n} away", "loses {n}", "sells {n}")
TAUGHT = patterns("{who} has {n} {what}. {steps}. How many {again} does {who2} have now?")
NEW = patterns("At first {who} has {n} {what}. {steps}. Count the {again} that {who2} has at the end.")
_STEP = re.compile(r"\d+ (?:more|from a friend)|(?:gives|loses|sells) \d+")


def draw(dice: Dice) -> Exercise:
    who, what = dice.name(), dice.item() + "s"
    total = first = dice.number(10, 50)
    steps = []
    for _ in range(dice.count(2, 6)):
        if dice.chance(0.5) or total < 8:
            total += (change := dice.number(2, 9))
            steps.append(dice.rng.choice(MORE).format(n=change))
        else:
            total -= (change := dice.number(1, min(9, total - 2)))
            steps.append(dice.rng.choice(FEWER).format(n=change))
    steps_text = ". ".join(f"{who} {step}" for step in steps)
    gaps = {"who": who, "n": first, "what": what, "steps": steps_text, "again": what, "who2": who}
    asking = dice.phrase(TAUGHT, NEW).fill(gaps)
    lines, answer = _worked(asking)
    reply: Message = {"role": "assistant", "content": answer, "reasoning_content": "\n".join(lines)}
    return Exercise(("stories",), [{"role": "user", "content": asking}, reply])


def right(before: list[Message], answer: str) -> bool:
    """The thoughts may differ; the sentence after them may not."""
    return answer.rsplit("</think>", 1)[-1].strip() == _worked(question(before))[1]


def _worked(asking: str) -> tuple[list[str], str]:
    """The sums on the way, and the sentence at the end."""
    gaps = read_any(NEW + TAUGHT, asking)
    total, lines = int(gaps["n"]), []
    for step in _STEP.findall(gaps["steps"]):
        change = int(re.findall(r"\d+", step)[0])
        sign = "-" if step.startswith(("gives", "loses", "sells")) else "+"
        after = total + change if sign == "+" else total - change
        lines.append(f"{total} {sign} {change} = {after}")
        total = after
    return lines, f"{gaps['who']} has {total} {gaps['what']}."
