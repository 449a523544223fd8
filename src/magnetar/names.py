"""Names of topics and namespaces, and every form in which Pulsar writes them down.

Format:    full: `persistent://tenant/namespace/local`, or `non-persistent://…`.
           Short: `local` is in `public/default`; `tenant/namespace/local` is persistent.
           Partition: `local-partition-3` is partition 3 of `local`; `-partition-03` and `-partition--1` are plain.
           Encoded: the local name as a node's name, `application/x-www-form-urlencoded` as Java has it.
           Hash: unsigned CRC-32 of the full name, partition included; a bundle is a range of it.
Read next: broker/resources/paths.py, broker/resources/bundles.py
"""

from __future__ import annotations

import enum
import re
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Self
from urllib.parse import quote_plus, unquote_plus

from magnetar.errors import InvalidNameError

PARTITION_SUFFIX = "-partition-"
TOPIC_NAME_CHARACTERS_MAX = 10_000  # A node's path must carry it, and no store takes paths without end.
CHANGE_EVENTS = "__change_events"
"""Local name of the topic that holds a namespace's topic policies."""

_PARTITION_MAX = 2**31 - 1
_FORMS = "domain://tenant/namespace/topic, tenant/namespace/topic or topic"
_ALLOWED_IN_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_PARTITION = re.compile(r"(.*)-partition-(0|[1-9][0-9]{0,9})", re.ASCII | re.DOTALL)
_RELATIVE = (".", "..")  # They would be path segments of their own meaning.
_CACHED_NAMES_MAX = 20_000
_EVENT_TOPICS = (
    CHANGE_EVENTS,
    "__transaction_buffer_snapshot",
    "__transaction_buffer_snapshot_segments",
    "__transaction_buffer_snapshot_indexes",
)
_PENDING_ACKS_SUFFIX = "__transaction_pending_ack"
_TRANSACTION_PREFIXES = (
    "persistent://pulsar/system/transaction_coordinator_assign",
    "persistent://pulsar/system/__transaction_log_",
)


class Domain(enum.StrEnum):
    PERSISTENT = "persistent"
    NON_PERSISTENT = "non-persistent"


@lru_cache(maxsize=_CACHED_NAMES_MAX)
def encode_name(name: str) -> str:
    """A topic's or a subscription's name as a node's name."""
    return quote_plus(name, safe="*").replace("~", "%7E")


def decode_name(encoded: str) -> str:
    return unquote_plus(encoded)


def check_entity(name: str, what: str) -> str:
    """A tenant's, namespace's or cluster's name, if it is one."""
    if not _ALLOWED_IN_ENTITY.fullmatch(name) or name in _RELATIVE:
        raise InvalidNameError(f"{name!r} is not a name for a {what}: use letters, digits, and - = : . _")
    return name


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """`tenant/local`."""

    tenant: str
    local: str

    @classmethod
    def parse(cls, text: str) -> Self:
        parts = text.split("/")
        if len(parts) != 2:
            raise InvalidNameError(f"{text!r} is not a namespace: write tenant/namespace")
        return cls.of(*parts)

    @classmethod
    def of(cls, tenant: str, local: str) -> Self:
        return cls(check_entity(tenant, "tenant"), check_entity(local, "namespace"))

    def topic(self, local: str, domain: Domain = Domain.PERSISTENT) -> TopicName:
        return TopicName.of(domain, self, local)

    def __str__(self) -> str:
        return f"{self.tenant}/{self.local}"


SYSTEM_NAMESPACE = NamespaceName("pulsar", "system")
DEFAULT_NAMESPACE = NamespaceName("public", "default")


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A checked name; made by `parse` or `of`."""

    domain: Domain
    namespace: NamespaceName
    local: str
    """As the user wrote it, partition suffix included."""
    partition: int = -1
    """The partition this topic is; −1 for a topic that is not a partition."""

    @staticmethod
    def parse(text: str) -> TopicName:
        """Any form of a name, short or full; anything else is an InvalidNameError that says what a name looks like."""
        return _parse(text)

    @classmethod
    def of(cls, domain: Domain, namespace: NamespaceName, local: str) -> TopicName:
        return cls(domain, namespace, _check_local(local), _partition_of(local))

    @property
    def tenant(self) -> str:
        return self.namespace.tenant

    @property
    def is_persistent(self) -> bool:
        return self.domain is Domain.PERSISTENT

    @property
    def is_partition(self) -> bool:
        return self.partition >= 0

    @property
    def is_change_events(self) -> bool:
        return self.without_partition().local == CHANGE_EVENTS

    @property
    def is_system(self) -> bool:
        """Made and used by brokers; no schema check, no deletion for being idle, no limit of a user's."""
        base = self.without_partition()
        return (
            base.local in _EVENT_TOPICS
            or base.local.endswith(_PENDING_ACKS_SUFFIX)
            or str(base).startswith(_TRANSACTION_PREFIXES)
        )

    def without_partition(self) -> TopicName:
        """The partitioned topic of a partition; any other topic itself."""
        if self.partition < 0:
            return self
        base = self.local[: self.local.rindex(PARTITION_SUFFIX)]
        return TopicName.of(self.domain, self.namespace, base)

    def with_partition(self, index: int) -> TopicName:
        assert 0 <= index <= _PARTITION_MAX
        return TopicName(self.domain, self.namespace, f"{self.local}{PARTITION_SUFFIX}{index}", index)

    @property
    def encoded(self) -> str:
        return encode_name(self.local)

    @property
    def log_name(self) -> str:
        """The managed ledger's name: what ledgers of this topic carry in their custom metadata."""
        return f"{self.namespace}/{self.domain}/{self.encoded}"

    @property
    def log_path(self) -> str:
        """The node of the topic's log; its cursors are below it."""
        return f"/managed-ledgers/{self.log_name}"

    @property
    def rest_path(self) -> str:
        """As the admin API and HTTP lookup write it."""
        return f"{self.domain}/{self.namespace}/{self.encoded}"

    @property
    def schema_name(self) -> str:
        """All partitions of a topic share one schema."""
        return f"{self.namespace}/{self.without_partition().encoded}"

    @property
    def bundle_hash(self) -> int:
        return zlib.crc32(str(self).encode())

    def __str__(self) -> str:
        return f"{self.domain}://{self.namespace}/{self.local}"


@lru_cache(maxsize=_CACHED_NAMES_MAX)
def _parse(text: str) -> TopicName:
    if len(text) > TOPIC_NAME_CHARACTERS_MAX:
        raise InvalidNameError(f"a topic's name has at most {TOPIC_NAME_CHARACTERS_MAX:_} characters, not {len(text)}")
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = Domain.PERSISTENT, text
    parts = rest.split("/")
    if len(parts) == 1 and not separator:
        parts = [*str(DEFAULT_NAMESPACE).split("/"), *parts]
    if len(parts) != 3:
        hint = " (names with a cluster in them are no longer supported)" if separator and len(parts) == 4 else ""
        raise InvalidNameError(f"{text!r} is not a topic's name: write {_FORMS}{hint}")
    tenant, namespace, local = parts
    return TopicName.of(_domain(domain, text), NamespaceName.of(tenant, namespace), local)


def _domain(text: str, whole: str) -> Domain:
    try:
        return Domain(text)
    except ValueError:
        raise InvalidNameError(f"{whole!r}: a topic is persistent or non-persistent, not {text!r}") from None


def _check_local(local: str) -> str:
    if not local.strip() or "/" in local or local in _RELATIVE:
        raise InvalidNameError(f"{local!r} is not a topic's local name: it is not blank, '.' or '..', and has no '/'")
    if not _is_encodable(local):
        raise InvalidNameError(f"{local!r} is not a topic's local name: it has characters that UTF-8 cannot carry")
    return local


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _partition_of(local: str) -> int:
    found = _PARTITION.fullmatch(local)
    if found is None or int(found[2]) > _PARTITION_MAX:
        return -1
    is_of_a_topic = found[1].strip() and found[1] not in _RELATIVE  # Else there is no topic this could be a part of.
    return int(found[2]) if is_of_a_topic else -1
