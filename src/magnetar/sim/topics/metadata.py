"""The metadata of a world of topics: also each change of a topic's node is seen, at the moment it is made."""

from __future__ import annotations

from magnetar.broker.names import TopicName
from magnetar.config.metadata import MetadataConfig
from magnetar.metadata.local import Job, Outcome
from magnetar.metadata.store import Create, Delete, Put
from magnetar.runtime.entropy import Entropy
from magnetar.sim.ledgers.metadata import WatchedMetadata
from magnetar.sim.topics.watch import TopicChange, TopicWatch
from magnetar.topic.info import decode_info
from magnetar.topic.info_store import info_path


class TopicMetadata(WatchedMetadata):
    def __init__(self, entropy: Entropy, config: MetadataConfig, watch: TopicWatch) -> None:
        super().__init__(entropy, config, watch)
        self._topics = watch
        self._paths = {info_path(TopicName.parse(name).log_name): name for name in watch.topic_options.topic_names}

    def on_done(self, job: Job, outcome: Outcome) -> None:
        super().on_done(job, outcome)
        work = job.work
        if not isinstance(work, Create | Put | Delete):
            return
        topic = self._paths.get(work.path)
        if topic is None:
            return
        watch = self._topics
        before = watch.chains.get(topic)
        after = None if isinstance(work, Delete) else decode_info(work.value)
        if after is None:
            watch.chains.pop(topic, None)
        else:
            watch.chains[topic] = after
        by = self.author_of(job.session_id)
        ledgers = "gone" if after is None else ",".join(str(span.ledger_id) for span in after.spans)
        watch.note(f"{topic} by {by}: {ledgers}")
        watch.tell("on_topic_change", TopicChange(topic, before, after, by))
