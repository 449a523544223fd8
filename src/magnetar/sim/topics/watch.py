"""Watch: what is seen of a world of topics, and told to its invariants; bookies and ledgers as in ledgers/watch.py.

Read next: invariants/
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.client import Message, MessageId
from magnetar.sim.ledgers.watch import Invariant, Watch
from magnetar.sim.topics.history import History, Progress, Sends
from magnetar.sim.topics.options import TopicOptions
from magnetar.sim.world import World
from magnetar.topic.info import TopicInfo

if TYPE_CHECKING:
    from magnetar.sim.topics.tap import WatchedTopic


@dataclass(frozen=True, slots=True)
class TopicChange:
    topic: str
    before: TopicInfo | None
    after: TopicInfo | None
    by: str
    """The node whose session made it."""


@dataclass(frozen=True, slots=True)
class Load:
    """A broker has opened a topic, and is about to serve it."""

    topic: WatchedTopic
    broker: str
    acked_before: dict[str, list[tuple[int, int]]]
    """Subscription → entries whose acknowledgement was confirmed when the load began."""
    marks_before: dict[str, tuple[int, int]]
    """Subscription → the furthest mark-delete position of loads that were done when this one began."""


class TopicInvariant(Invariant):
    """The events of topics. One that is not overridden costs nothing."""

    watch: TopicWatch

    @property
    def told(self) -> History:
        return self.watch.told

    def on_receipt(self, sends: Sends, sequence_id: int, message_id: MessageId) -> None:
        """A producer was told that its message is stored."""

    def on_received(self, progress: Progress, consumer: str, message: Message) -> None:
        """An application got a message."""

    def on_topic_change(self, change: TopicChange) -> None: ...
    def on_loaded(self, load: Load) -> None: ...

    def on_duplicate(self, topic: WatchedTopic, producer: str, sequence_id: int) -> None:
        """A broker answers that it had the message before."""

    def at_audit(self) -> None:
        """Everything in every topic was read: `told.audits`."""


_EVENTS: Final = [name for name in vars(TopicInvariant) if name.startswith(("on_", "at_"))]


class TopicWatch(Watch):
    def __init__(self, world: World, options: TopicOptions, invariants: Sequence[type[Invariant]]) -> None:
        super().__init__(world, options.base, invariants)
        self.topic_options = options
        self.told = History()
        self.chains: dict[str, TopicInfo] = {}
        """Topic → its node, as the metadata has it at this moment."""
        self.marks: dict[tuple[str, str], tuple[int, int]] = {}
        """Topic and subscription → the furthest mark-delete position that a broker found when it loaded the topic."""
        for name in _EVENTS:
            self._hears[name] = self._who_hears_of_topics(name)

    def look_at_disks(self) -> None:
        if self.hears("on_stored"):
            super().look_at_disks()

    def _who_hears_of_topics(self, event: str) -> list[Callable[..., None]]:
        return [
            getattr(invariant, event)
            for invariant in self.invariants
            if isinstance(invariant, TopicInvariant)
            and getattr(type(invariant), event) is not getattr(TopicInvariant, event)
        ]
