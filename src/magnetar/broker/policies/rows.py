"""Rows: how a policy is declared, and what follows from the declaration.

Purpose:   A class of policies (registry.py) is a frozen dataclass whose fields carry their rows. Reading, merging, the
           admin API, the check of clients' documents and the table of docs/policies.md follow from the rows.
Order:     The topic's own policies, its global ones (which all clusters share), the namespace's, the broker's settings.
           The first level that has a policy set counts; kinds.py decides when it is set. Topics that brokers use for
           themselves may have another value, whatever the levels have.
Read next: kinds.py (the types of values), registry.py (the rows)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from magnetar.broker.policies.kinds import Form, Kind
from magnetar.broker.policies.values import Json, nested
from magnetar.config.root import KEYS, Config

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
P = TypeVar("P", bound="DataclassInstance")

_METADATA_KEY: Final = "magnetar.policy"
_UNSET: Final[Any] = object()


@dataclass(frozen=True, slots=True)
class Documents:
    """What is merged; None where a level has no document."""

    topic: Json | None = None
    topic_global: Json | None = None
    namespace: Json | None = None


# --- where a level keeps a policy -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where one level, topics or namespaces, keeps a policy, and how the admin API offers it there."""

    field: str
    """In the stored document."""
    path: str = ""
    """The end of the REST path; empty: the admin API does not offer the policy at this level."""
    what: str = ""
    """In words, where they differ from the row's."""
    _: dataclasses.KW_ONLY
    method: str = "POST"
    """The method that sets the policy."""
    can_remove: bool = True
    unset: Any = None
    """What the admin API answers while the policy is not set."""
    is_in_query: bool = False
    """Pulsar's clients send the value as a parameter of the query that is named like the path."""
    shows_applied: bool = True
    """`applied=true` answers the value that counts. Pulsar lacks it for a few policies."""
    sent_as: Kind[Any] | None = None
    """What clients send here, where it differs from the row's kind."""
    fits: Callable[[Json, Any], None] | None = None
    """Checks a new value against the document that it is to be stored in. InvalidPolicyError."""

    def fields(self, form: Form) -> dict[str, Form]:
        """The fields of a document that the policy uses, with their JSON types."""
        return {self.field: form}

    def stored(self, document: Json, form: Form, cluster: str) -> list[Any]:
        """What the document says, in the order in which it counts."""
        del cluster
        return [form(document, self.field)]

    def get(self, document: Json, cluster: str) -> Any:
        """As the admin API shows it; None if the document does not have it."""
        del cluster
        return document.get(self.field)

    def put(self, document: dict[str, Any], value: Any, cluster: str) -> dict[str, Any]:
        """The document with this value; None removes it."""
        del cluster
        return with_field(document, self.field, value)


@dataclass(frozen=True, slots=True)
class FieldThatIsFalseUnlessSet(Place):
    """Every document has a `false` here: only `true` counts as set."""

    def stored(self, document: Json, form: Form, cluster: str) -> list[Any]:
        del cluster
        return [form(document, self.field) or None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenamedField(Place):
    """Counts from its older field, too, as long as the newer one is not set."""

    older: str
    from_older: Callable[[Any], Any]

    def fields(self, form: Form) -> dict[str, Form]:
        return {self.field: form, self.older: form}

    def stored(self, document: Json, form: Form, cluster: str) -> list[Any]:
        del cluster
        older = document.get(self.older)
        return [form(document, self.field), None if older is None else self.from_older(older)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldOfClusters(Place):
    """A namespace has its rates for each cluster by name. An older field counts and is written, too."""

    older: str = ""

    def fields(self, form: Form) -> dict[str, Form]:
        del form
        return dict.fromkeys(self._names(), nested)

    def stored(self, document: Json, form: Form, cluster: str) -> list[Any]:
        return [form(nested(document, name) or {}, cluster) for name in self._names()]

    def get(self, document: Json, cluster: str) -> Any:
        return (document.get(self.field) or {}).get(cluster)

    def put(self, document: dict[str, Any], value: Any, cluster: str) -> dict[str, Any]:
        changed = {name: with_field(document.get(name) or {}, cluster, value) for name in self._names()}
        return document | changed

    def _names(self) -> tuple[str, ...]:
        return (self.field, self.older) if self.older else (self.field,)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldForEachPart(Place):
    """A topic has each part of the value in a field of its own; a namespace has one object with all parts."""

    parts: Mapping[str, tuple[str, Form]]
    """By the name of the part: the field, and its JSON type."""

    def fields(self, form: Form) -> dict[str, Form]:
        del form
        return dict(self.parts.values())

    def stored(self, document: Json, form: Form, cluster: str) -> list[Any]:
        del form, cluster
        return [{part: form_of_part(document, name) for part, (name, form_of_part) in self.parts.items()}]

    def get(self, document: Json, cluster: str) -> Any:
        del cluster
        return {part: document[name] for part, (name, _) in self.parts.items() if name in document} or None

    def put(self, document: dict[str, Any], value: Any, cluster: str) -> dict[str, Any]:
        del cluster
        for part, (name, _) in self.parts.items():
            document = with_field(document, name, (value or {}).get(part))
        return document


def with_field(document: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Returns the document with this value of a field; None removes the field."""
    if value is None:
        return {each: found for each, found in document.items() if each != name}
    return document | {name: value}


# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policy(Generic[T]):
    """One row. `policy` declares it as a field of a dataclass, which gives it its name."""

    kind: Kind[T]
    what: str
    """In words, as the end of "Get …" and "Set …"."""
    topic: Place | None = None
    namespace: Place | None = None
    settings: tuple[str, ...] = ()
    """Keys of the configuration; the kind makes the default of their values."""
    read_settings: tuple[Callable[[Config], Any], ...] = ()
    """Reads each of them."""
    default: T = _UNSET
    """Where no setting has it."""
    instead: tuple[str, ...] = ()
    """Keys of the configuration that count while the value is None, for the docs: the place of use applies them."""
    system: T = _UNSET
    """What counts for topics of the brokers; unset: as for others."""
    system_from: Callable[[T], T] | None = None
    """The same, made of what would count for others."""

    def merged(self, documents: Documents, config: Config, *, is_system: bool) -> T:
        value = self.kind.merged(self._stored(documents, config.broker.cluster), self._default(config))
        if not is_system:
            return value
        if self.system_from is not None:
            return self.system_from(value)
        return value if self.system is _UNSET else self.system

    def _stored(self, documents: Documents, cluster: str) -> list[Any]:
        found: list[Any] = []
        if self.topic is not None:
            if documents.topic is not None:
                found += self.topic.stored(documents.topic, self.kind.form, cluster)
            if documents.topic_global is not None:
                found += self.topic.stored(documents.topic_global, self.kind.form, cluster)
        if self.namespace is not None and documents.namespace is not None:
            found += self.namespace.stored(documents.namespace, self.kind.form, cluster)
        return found

    def _default(self, config: Config) -> T:
        if not self.settings:
            return self.default
        return self.kind.default(*[read(config) for read in self.read_settings])


def policy(
    kind: Kind[T],
    what: str,
    *,
    topic: Place | None = None,
    namespace: Place | None = None,
    settings: tuple[str, ...] = (),
    default: T = _UNSET,
    instead: tuple[str, ...] = (),
    system: T = _UNSET,
    system_from: Callable[[T], T] | None = None,
) -> T:
    """A dataclass field that carries its row. Its type is that of the kind."""
    assert bool(settings) != (default is not _UNSET), f"{what}: a default comes from settings, or is given"
    assert all(key in KEYS for key in (*settings, *instead)), (
        f"{what}: {settings} are not all keys of the configuration"
    )
    row = Policy(
        kind=kind,
        what=what,
        topic=topic,
        namespace=namespace,
        settings=settings,
        read_settings=tuple(attrgetter(key) for key in settings),
        default=default,
        instead=instead,
        system=system,
        system_from=system_from,
    )
    declared: Any = dataclasses.field(metadata={_METADATA_KEY: row})
    return cast("T", declared)


@cache
def rows_of(policies: type[DataclassInstance]) -> Mapping[str, Policy[Any]]:
    """Returns the rows of a class of policies by their names, in the order of their declaration."""
    return MappingProxyType({each.name: each.metadata[_METADATA_KEY] for each in dataclasses.fields(policies)})


def known_fields(policies: type[DataclassInstance]) -> dict[str, Form]:
    """Returns the fields of a namespace's document that the rows use, with their JSON types."""
    places = [(row.namespace, row.kind.form) for row in rows_of(policies).values() if row.namespace is not None]
    return {name: checked for place, form in places for name, checked in place.fields(form).items()}


def merge(policies: type[P], documents: Documents, config: Config, *, is_system: bool = False) -> P:
    """What counts after all levels were asked. MalformedMetadataError if a document has a value of another type."""
    values = {name: row.merged(documents, config, is_system=is_system) for name, row in rows_of(policies).items()}
    return policies(**values)
