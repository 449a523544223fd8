"""Which broker serves which topic: an operator decides, and each broker hears of it in its own time.

Board:     the truth, as the operator has written it.
View:      what one broker believes. A new owner hears of a move soon, others later; an old owner maybe not at all, and
           continues until the topic's log stops it. A broker that starts reads the board.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from magnetar.broker.front_end import PULSAR
from magnetar.broker.ownership import BrokerAddress, Lost, Owner, Ownership
from magnetar.errors import ServiceNotReadyError
from magnetar.names import TopicName
from magnetar.sim.loop import SimLoop
from magnetar.sim.topics.options import PORT


class Board:
    def __init__(self, random: Random) -> None:
        self.owners: dict[str, str] = {}
        """Topic → the node that shall serve it."""
        self._generations: dict[str, int] = {}
        """Topic → how often it was moved."""
        self._random = random
        self._views: dict[str, View] = {}

    def join(self, name: str, address: BrokerAddress) -> View:
        """A broker starts."""
        view = self._views[name] = View(name, address)
        for topic, owner in self.owners.items():
            view.begin(topic, owner, self._generations.get(topic, 0))
        return view

    def move(self, topic: str, to: str, *, tell_old_after_s: float) -> None:
        old, self.owners[topic] = self.owners.get(topic, ""), to
        generation = self._generations[topic] = self._generations.get(topic, 0) + 1
        for name, view in self._views.items():
            delay_s = 0.02 * self._random.random() if name == to else 0.3 * self._random.random()
            view.hear_later(topic, to, generation, tell_old_after_s if name == old else delay_s)

    def tell_everybody(self) -> None:
        for topic, owner in self.owners.items():
            for view in self._views.values():
                view.hear_later(topic, owner, self._generations.get(topic, 0), 0.0)


class View(Ownership):
    """Of one process. The operator speaks to it from outside; it listens as the process that it belongs to.

    A topic that was another's in between is lost first, also when it comes back at the same moment: what is loaded
    knows nothing of what the other has done.
    """

    def __init__(self, name: str, address: BrokerAddress) -> None:
        self._name = name
        self._address = address
        self._owners: dict[str, tuple[int, str]] = {}
        """Topic → generation and owner."""
        self._listeners: dict[Lost, None] = {}
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self._loop = loop
        self._process = loop.current()

    def begin(self, topic: str, owner: str, generation: int) -> None:
        self._owners[topic] = generation, owner

    def hear_later(self, topic: str, owner: str, generation: int, delay_s: float) -> None:
        if self._process.is_alive:
            context = self._process.context.copy()
            self._loop.call_later(delay_s, self._hear, topic, owner, generation, context=context)

    def _hear(self, topic: str, owner: str, generation: int) -> None:
        known, was = self._owners.get(topic, (-1, ""))
        if generation <= known:
            return  # News of an earlier move that come late are none.
        self._owners[topic] = generation, owner
        if was == self._name:
            for lost in list(self._listeners):
                lost(TopicName.parse(topic))

    def _owner(self, topic: TopicName) -> str | None:
        found = self._owners.get(str(topic))
        return None if found is None else found[1]

    async def owner_of(self, topic: TopicName) -> Owner:
        owner = self._owner(topic)
        if owner is None:
            raise ServiceNotReadyError(f"no broker serves {topic}")
        if owner == self._name:
            return Owner(self._address, is_here=True)
        return Owner(
            BrokerAddress(f"{owner}:0", f"http://{owner}:0", {PULSAR: f"pulsar://{owner}:{PORT}"}), is_here=False
        )

    def owns(self, topic: TopicName) -> bool:
        return self._owner(topic) == self._name

    def listen(self, lost: Lost) -> Callable[[], None]:
        self._listeners[lost] = None

        def stop() -> None:
            self._listeners.pop(lost, None)

        return stop
