"""Order and deadlines of the waiting line."""

from aerie.contracts.messages import Generate
from aerie.scheduler.queue import Deadlines, Queue
from aerie.scheduler.request import Phase, Request, accept
from tests.fakes import capacity
from tests.scheduler.driver import generate


def request(number: int, length: int = 3, message: Generate | None = None) -> Request:
    message = message or generate(f"r{number}", [1] * length)
    return accept(message, capacity(), number=number, now=0.0, max_length=64, max_depth=3)


def nothing_is_free(request: Request) -> bool:
    return False


def test_by_arrival_and_by_length():
    queue = Queue()
    requests = [request(0, 9), request(1, 2), request(2, 5)]
    for one in requests:
        queue.push(one)
    assert queue.first() is requests[0] and queue.shortest() is requests[1]
    queue.remove(requests[1])
    assert queue.shortest() is requests[2] and len(queue) == 2
    queue.remove(requests[0])
    assert queue.first() is requests[2]
    queue.remove(requests[2])
    assert queue.first() is None and queue.shortest() is None


def test_a_preempted_request_comes_back_to_its_place():
    queue = Queue()
    early, late = request(0), request(1)
    queue.push(early)
    queue.remove(early)
    queue.push(late)
    early.tokens += [7] * 4
    queue.push(early)
    assert queue.first() is early and queue.shortest() is late


def test_a_queue_deadline_ends_with_the_wait_a_total_one_does_not():
    deadlines = Deadlines()
    waiting = request(0, message=generate("a", [1], queue_deadline=5.0, deadline=20.0))
    running = request(1, message=generate("b", [1], queue_deadline=5.0, deadline=20.0))
    done = request(2, message=generate("c", [1], queue_deadline=5.0, deadline=20.0))
    for one in (waiting, running, done):
        deadlines.add(one)
    running.tally.admitted_at = 1.0
    done.phase = Phase.ENDED
    deadlines.forget(done)
    assert deadlines.expired(4.9, nothing_is_free) == []
    late = deadlines.expired(5.0, nothing_is_free)
    assert [(one, error.code) for one, error in late] == [(waiting, "queue_timeout")]
    assert "5.0 s and no row" in late[0][1].message
    late = deadlines.expired(20.0, nothing_is_free)
    assert [one for one, _ in late] == [running] and "limits.total_seconds" in late[0][1].message
    assert deadlines.expired(99.0, nothing_is_free) == []


def test_a_request_that_gets_a_row_at_its_queue_deadline_has_only_the_total_one():
    deadlines = Deadlines()
    deadlines.add(request(0, message=generate("a", [1], queue_deadline=5.0, deadline=20.0)))
    assert deadlines.expired(5.0, lambda waiting: True) == []
    assert [one.id for one, _ in deadlines.expired(20.0, nothing_is_free)] == ["a"]
