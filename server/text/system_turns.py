"""System turns as a chat template takes them: several that lead become one where it takes one; a later one is refused
where it would be lost.

Made by `template`, which asks the template once, with short chats. A template that raises on system turns is left to
speak for itself.
"""

from collections.abc import Callable
from typing import Any

from aerie.contracts.errors import BadRequest

Json = dict[str, Any]
_ROLES = ("system", "developer")
_FIRST, _SECOND, _ASKED = "instructions A", "instructions B", "question C"


class SystemTurns:
    """`render` returns the prompt, or None for messages that the template refuses. `roles` are those of its system
    turns.
    """

    def __init__(self, render: Callable[[list[Json]], str | None], roles: tuple[str, ...]) -> None:
        first = _turn(roles[0], _FIRST)
        takes_one = _shows(render([first, _turn("user", _ASKED)]), _FIRST)
        pairs = ([first, _turn(role, _SECOND), _turn("user", _ASKED)] for role in roles)
        self._merges = takes_one and not all(_shows(render(pair), _FIRST, _SECOND) for pair in pairs)
        talk = [_turn("user", _ASKED), _turn("assistant", _FIRST), _turn("user", _ASKED)]
        later = [*talk[:2], _turn(roles[-1], _SECOND), talk[2]]
        said = render(later)
        self._loses_later = said is not None and not _shows(said, _SECOND) and _shows(render(talk), _FIRST)

    def arranged(self, messages: list[Json]) -> list[Json]:
        """The messages for the template. Raises BadRequest about a turn that it would leave out."""
        leading = next((place for place, one in enumerate(messages) if one.get("role") not in _ROLES), len(messages))
        if self._loses_later:
            lost = next((place for place, one in enumerate(messages) if place >= leading and _is_system(one)), None)
            if lost is not None:
                raise BadRequest(
                    f"messages[{lost}] has the role {messages[lost]['role']!r}; this model's chat template takes such "
                    "messages at the beginning only",
                    param=f"messages[{lost}].role",
                )
        contents = [one.get("content") for one in messages[:leading]]
        texts = [one for one in contents if isinstance(one, str)]
        if not self._merges or leading < 2 or len(texts) < leading:
            return messages
        return [messages[0] | {"content": "\n\n".join(texts)}, *messages[leading:]]


def _is_system(message: Json) -> bool:
    return message.get("role") in _ROLES


def _turn(role: str, content: str) -> Json:
    return {"role": role, "content": content}


def _shows(prompt: str | None, *texts: str) -> bool:
    return prompt is not None and all(text in prompt for text in texts)
