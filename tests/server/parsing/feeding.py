"""What a parser says of an answer that comes in pieces."""

from aerie.server.parsing.channels import ChannelParser
from aerie.server.parsing.parser import RegionParser
from aerie.server.parsing.regions import Event, add


def events_of(parser: ChannelParser | RegionParser, *pieces: str) -> list[Event]:
    """All events, those of a run joined, as a whole answer joins them."""
    events: list[Event] = []
    for event in [event for piece in pieces for event in parser.feed(piece)] + list(parser.finish()):
        add(events, event)
    return events
