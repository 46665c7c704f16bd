"""A row's matcher on a device that runs beside the host: it follows what the row commits, one or two steps later."""

from concurrent.futures import Future

from aerie.engine.grammars.guided import Guided


class Follower:
    """Tasks of one row run one after the other, and they alone touch its matcher; only `due` comes from outside."""

    def __init__(self, guided: Guided) -> None:
        self.guided = guided
        self.matcher = guided.matcher
        self.end_ids = guided.end_ids
        self.task: Future[None] | None = None
        """The last one."""
        self.due: list[int] = []
        """Tokens that the row has committed and the matcher has not taken."""
        self.fault: str | None = None
        """Why the row cannot go on."""
        self._first = guided.matcher.copy()
        self._taken: list[int] = []

    def commit(self, tokens: list[int]) -> None:
        """The row has committed tokens; an end token, which no matcher takes, is the last."""
        self.due += [token for token in tokens if token not in self.end_ids]

    def root_words(self) -> bytes:
        """The mask after all that has been committed. Raises GrammarFailed."""
        while self.due:
            self.matcher.take(self.due[0])
            self._taken.append(self.due.pop(0))
        return self.matcher.words()

    def restore(self) -> None:
        """Makes the matcher anew after the same tokens: one that has failed is of no more use."""
        self.matcher = self._first.copy()
        for token in self._taken:
            self.matcher.take(token)
