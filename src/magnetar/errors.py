"""The error tree: every failure a caller may handle, one class per situation.

Invariant: the policy is an attribute, so callers branch on `retryable` or `outcome_unknown` and never on message text.
           A message says what happened and, where a user can do something about it, what to do next. Foreign
           exceptions (`OSError`, ZooKeeper's, SQLite's) are translated where they enter; a broken invariant is an
           assertion, not an error from here.
"""

from __future__ import annotations

from typing import ClassVar


class MagnetarError(Exception):
    """Root of every error a caller may handle."""

    retryable: ClassVar[bool] = False
    """The same call may succeed later, and repeating it does no harm."""
    outcome_unknown: bool = False
    """The operation may or may not have been done; only a look shows it. For some classes only the instance knows."""
    wire_code: ClassVar[int | None] = None
    """The number of this situation in its protocol, where one exists."""
    asked_wrongly: bool = False
    """The request itself is invalid, whatever the state of the system: it has to be changed."""


class ConfigError(MagnetarError):
    """A setting is unknown, malformed or out of range; the message names it and where it came from."""

    asked_wrongly = True


class ArgumentError(ConfigError):
    """A command has an invalid argument; the message says which values it takes."""


class InputLineError(MagnetarError):
    """A line of the input, or a message given as an argument, cannot be sent; the message names it."""


class LineTooLongError(InputLineError):
    """A line of the input is longer than an entry or a message may be; `number` counts lines from 1."""

    def __init__(self, number: int, bytes_max: int) -> None:
        super().__init__(f"line {number} of the input is longer than {bytes_max:,} bytes: make shorter lines")
        self.number = number


class ListenError(MagnetarError):
    """A server cannot listen on its port; the message names the port and the option that chooses another one."""


class MissingDependencyError(MagnetarError):
    """An optional package or program is not installed; the message says how to get it."""


class ClosedError(MagnetarError):
    """The disk, file or lane was closed by its owner; nothing was done."""


class ProcessFailedError(MagnetarError):
    """A program we started ended or did not become ready; the message ends with the tail of its log."""


# --- disk -------------------------------------------------------------------------------------------------------------


class DiskError(MagnetarError):
    """A file operation failed; the message names the file."""


class DiskFullError(DiskError):
    """The device has no room left; freeing some helps."""

    retryable = True


class FileMissingError(DiskError):
    """The named file or directory does not exist."""


class FileCutError(DiskError):
    """A file ends before the end it had when it was opened. A File that is opened again has the present end."""


class FileLockedError(DiskError):
    """Another process holds the lock of this directory or file."""


class SyncFailedError(DiskError):
    """The device refused to make data durable. Data since the last sync is lost: never retried."""


# --- wire -------------------------------------------------------------------------------------------------------------


class ProtocolError(MagnetarError):
    """A wire rule was broken; the subclass names the side."""


class RemoteProtocolError(ProtocolError):
    """The peer broke a rule: close the connection."""


class LocalProtocolError(ProtocolError):
    """We broke a rule, and nothing was sent. A bug, or a value that the protocol version in use has no room for."""


class MalformedEntryError(MagnetarError):
    """A stored entry, or a message inside one, is not in Pulsar's format, or does not decompress."""


class DigestMismatchError(MagnetarError):
    """An entry is not what its writer sealed: damaged, of another entry, or sealed with another digest or password."""

    wire_code = -5


# --- metadata ---------------------------------------------------------------------------------------------------------


class MetadataError(MagnetarError):
    """An operation on the metadata store failed. `wire_code` is ZooKeeper's."""


class NoNodeError(MetadataError):
    """The node, or the parent it needs, does not exist."""

    wire_code = -101


class NodeExistsError(MetadataError):
    """The node to create exists already."""

    wire_code = -110


class BadVersionError(MetadataError):
    """Another client changed the node: read it again before deciding."""

    wire_code = -103


class NotEmptyError(MetadataError):
    """The node to delete has children."""

    wire_code = -111


class NoChildrenForEphemeralsError(MetadataError):
    """An ephemeral node cannot have children."""

    wire_code = -108


class InvalidPathError(MetadataError):
    """The path is not absolute and normalised, or has a character that is not allowed."""

    wire_code = -8


class ValueTooLargeError(MetadataError):
    """The value exceeds what every store accepts; nothing was sent."""


class AccessDeniedError(MetadataError):
    """The store refuses this operation to us, or refuses our credentials."""

    wire_code = -102


class TransactionFailedError(MetadataError):
    """No operation of the transaction was done; `cause` is the reason for the one at `index`."""

    def __init__(self, index: int, cause: MetadataError) -> None:
        super().__init__(f"operation {index} of the transaction: {cause}")
        self.index = index
        self.cause = cause


class MetadataUnavailableError(MetadataError):
    """The store could not be reached in time. The operation was not done."""

    retryable = True
    wire_code = -4


class OutcomeUnknownError(MetadataError):
    """The connection was lost after the operation was sent: it may or may not have been done."""

    outcome_unknown = True
    wire_code = -4


class SessionExpiredError(MetadataError):
    """The session this operation belonged to has ended, and its ephemeral nodes with it. The operation was not done."""

    wire_code = -112


class StoreClosedError(MetadataError):
    """The store was closed by its owner."""


class StoreLockedError(MetadataError):
    """Another process has this embedded store open."""


class StoreCorruptError(MetadataError):
    """The embedded store's file is damaged or is not a store at all."""


class MalformedMetadataError(MetadataError):
    """A stored value is truncated, damaged, or of a kind this version does not know."""


class UnsupportedLayoutError(MetadataError):
    """The cluster keeps its ledgers in a layout that we do not know: nothing in it may be touched."""


class ClusterExistsError(MetadataError):
    """The place for a new cluster is taken."""


class ClusterMissingError(MetadataError):
    """No cluster exists at this place; initialise one first."""


class NoSuchLedgerError(NoNodeError):
    """The ledger is not in the metadata: never made, or deleted."""


class LedgerExistsError(NodeExistsError):
    """Another client made a ledger with this id."""


class LedgerIdsExhaustedError(MetadataError):
    """No ledger id is left to give out."""


class CookieMismatchError(MetadataError):
    """A bookie does not match its cookie, or has lost something since; the message names the differences."""


class BookieRegisteredError(MetadataError):
    """Another process is registered under this bookie's id, and stays."""


class BrokerRegisteredError(MetadataError):
    """Another process is registered under this broker's id, and stays."""


class OtherLoadManagerError(MetadataError):
    """Brokers of this cluster agree on owners by other means than ours: both together would give a topic two owners."""


# --- a bookie's storage -----------------------------------------------------------------------------------------------


class StorageError(MagnetarError):
    """An operation on a bookie's stored ledgers failed."""


class EntryMissingError(StorageError):
    """The ledger is known here and the entry is certainly missing."""


class LedgerMissingError(StorageError):
    """This bookie has nothing of the ledger: no entry, no flag."""


class StorageDamagedError(StorageError):
    """Stored bytes are not those that were written: neither "yes" nor "no" is a safe answer. The message names the
    place."""


class LogDamagedError(StorageDamagedError):
    """An entry log is damaged; the message names file and offset."""


class IndexDamagedError(StorageDamagedError):
    """The location index is damaged; the message names the ledger. It can be rebuilt from the entry logs."""


class TombstonesFullError(StorageError):
    """Too many deleted ledgers still have to be remembered as fenced; the oldest expire with time."""

    retryable = True


class JournalError(StorageError):
    """The journal of a bookie cannot do the operation."""


class JournalDamagedError(JournalError):
    """Durable data of the journal is missing or wrong. Nothing was cut, removed or skipped."""

    def __init__(self, path: str, offset: int | None, what: str) -> None:
        """Without an offset it is about the directory of the files."""
        where = (
            f"the journal in {path} is damaged"
            if offset is None
            else f"journal file {path} is damaged at offset {offset}"
        )
        super().__init__(f"{where}: {what}")
        self.path = path
        self.offset = offset
        self.what = what


class JournalFailedError(JournalError):
    """A write or sync of the journal failed (`__cause__`): nothing is acknowledged until the process restarts."""


class JournalOverloadedError(JournalError):
    """The journal's queue is full: wait for room first."""

    retryable = True


class MarkDamagedError(JournalError):
    """The file with the start of the replay is damaged."""


# --- quorums and placement --------------------------------------------------------------------------------------------


class InvalidQuorumError(MagnetarError):
    """Ensemble size, write quorum and ack quorum do not fit together; the message says which and what is allowed."""

    asked_wrongly = True


class NotEnoughBookiesError(MagnetarError):
    """Too few writable bookies for the ensemble, or for the placement rule that is enforced; more may come."""

    retryable = True
    wire_code = -6

    def __init__(
        self, *, needed: int, known: int, writable: int, quarantined: int, excluded: int = 0, rule: str = ""
    ) -> None:
        """`quarantined` and `excluded` are among the writable; `rule` is the rule that the existing bookies break."""
        what = f"not enough bookies: {needed} needed, {known} known, {writable} writable, {quarantined} quarantined"
        if excluded:
            what += f", {excluded} excluded because they failed or are in use"
        if rule:
            what += f"; {rule}"
        super().__init__(f"{what}: start more bookies or make read-only ones writable, or use a smaller ensemble")
        self.needed = needed
        self.known = known
        self.writable = writable
        self.quarantined = quarantined
        self.excluded = excluded


# --- ledgers, as a client sees them -----------------------------------------------------------------------------------


class LedgerError(MagnetarError):
    """An operation on a ledger failed."""


class BookieUnavailableError(LedgerError):
    """A bookie cannot be reached, or the connection to it was lost. The request may or may not be done."""

    retryable = True
    wire_code = -8


class RequestTimeoutError(BookieUnavailableError):
    """A bookie did not answer in time. The request may or may not be done."""

    wire_code = -23


class LedgerFencedError(LedgerError):
    """Another client took the ledger over; this writer is finished. The other may keep adds that were pending."""

    wire_code = -101


class LedgerClosedError(LedgerError):
    """The ledger, or this handle of it, is closed: open another."""

    wire_code = -11


class WriterFailedError(LedgerError):
    """The writer gave up; the message says why. Acknowledged entries stay: close it, and write to another ledger."""

    wire_code = -12


class AddTimeoutError(WriterFailedError):
    """Too few bookies have stored an entry in time."""

    wire_code = -21


class EnsembleChangesExceededError(WriterFailedError):
    """The writer's bookies failed more often than it may replace them in this time."""


class WriterBusyError(LedgerError):
    """The writer has reached its limit of adds in flight; nothing was sent."""

    retryable = True


class EntryTooLargeError(LedgerError):
    """The entry does not fit into a frame; nothing was sent."""


class DuplicateEntryError(LedgerError):
    """The entry id was given before; nothing was sent."""

    wire_code = -104


class WrongPasswordError(LedgerError):
    """The ledger was created with another password. `wire_code` is that of BookKeeper's clients, as below."""

    wire_code = -102


class EntryAbsentError(LedgerError):
    """No bookie has the entry: all that could have it answered so."""

    wire_code = -13


class EntryUnavailableError(LedgerError):
    """A bookie may have the entry and could not return it; the message says which and why."""

    retryable = True
    wire_code = -1


class EntryDamagedError(EntryUnavailableError):
    """Every bookie that has the entry has it damaged: a new try does not help."""

    retryable = False
    wire_code = -5


class EntryOutOfRangeError(LedgerError):
    """The entry is beyond the last one that is known to be committed; an open ledger may get there."""

    wire_code = -1


class LacUnknownError(LedgerError):
    """Too few bookies answered to know how far the ledger is committed; the message says which did not, and why."""

    retryable = True
    wire_code = -1


class LedgerRecoveryError(LedgerError):
    """Recovery could not decide where the ledger ends, or could not repair its end. It stays marked as in recovery."""

    retryable = True
    wire_code = -10


class ReplicationError(LedgerError):
    """The repair of a ledger's replicas cannot continue now; the ledger is as it was, and a later try may succeed."""

    retryable = True


class RepairOvertakenError(ReplicationError):
    """The ledger has changed since its repair began: what was decided does not count."""


class CopyFailedError(ReplicationError):
    """A bookie did not take copies of entries. Another bookie may."""

    def __init__(self, bookie: str, message: str) -> None:
        super().__init__(message)
        self.bookie = bookie


# --- names, resources, policies and schemas of a broker ---------------------------------------------------------------


class InvalidNameError(MagnetarError):
    """A topic, namespace, tenant or cluster cannot have this name; the message says which names are valid."""

    asked_wrongly = True


class ResourceMissingError(NoNodeError):
    """The cluster, tenant, namespace or partitioned topic does not exist; the message names it."""


class ResourceExistsError(NodeExistsError):
    """A cluster, tenant, namespace or topic of this name exists already."""


class ResourceInUseError(NotEmptyError):
    """It cannot be deleted while something is in it; the message names that."""


class ResourceLimitError(MagnetarError):
    """The limit of tenants, namespaces, topics, partitions or subscriptions is reached; the message names it."""


class InvalidPolicyError(MagnetarError):
    """A policy has an invalid value, or one that does not fit another; the message says which and why."""


class PoliciesUnavailableError(MagnetarError):
    """A namespace's policies could not be read, or a change to them not be seen, in time; trying again may help."""

    retryable = True


class SchemaError(MagnetarError):
    """An operation on a topic's schema failed."""


class InvalidSchemaError(SchemaError):
    """The definition of a schema is malformed; the message names the error and its place."""


class IncompatibleSchemaError(SchemaError):
    """The schema does not fit those of the topic, by the strategy in force; the message names the difference."""


class SchemaMissingError(SchemaError):
    """The topic has no schema, or none of this version."""


class SchemaUnavailableError(SchemaError):
    """An existing schema could not be read, or a new one not be stored, now."""

    retryable = True


# --- topics' logs -----------------------------------------------------------------------------------------------------


class LogBusyError(MagnetarError):
    """A topic has reached its limit of appends that wait for its ledger; nothing was appended."""

    retryable = True


class LedgerOffloadedError(MagnetarError):
    """The ledger of a topic was moved out of the bookies, to a place from which we cannot read."""


class CompactionError(MagnetarError):
    """A topic could not be compacted; its data is unchanged."""


# --- topics' cursors --------------------------------------------------------------------------------------------------


class CursorError(MagnetarError):
    """An operation on a subscription's cursor failed; earlier durable acknowledgements stay."""


class CursorFencedError(CursorError):
    """Another owner of the topic took the cursor over, or changed it: nothing more may be stored. Unload the topic."""


class CursorClosedError(CursorError):
    """The cursor is closed or deleted; open the topic again."""


class CursorMissingError(CursorError):
    """The topic has no subscription of this name."""


class CursorExistsError(CursorError):
    """The topic has a subscription of this name already."""


class CursorNotStoredError(CursorError):
    """Neither a ledger nor the metadata store took the acknowledgements: they are kept, and stored with the next."""

    retryable = True


# --- a broker, as its clients see it ----------------------------------------------------------------------------------


class BrokerError(MagnetarError):
    """A request to a broker failed."""


class ServiceNotReadyError(BrokerError):
    """The broker does not serve this now: it starts, stops, or another broker owns the topic. Look up and try again."""

    retryable = True


class TooManyRequestsError(BrokerError):
    """The broker has reached its limit of requests of this kind in progress."""

    retryable = True


class NotAllowedError(BrokerError):
    """A policy, the configuration, or the type or state of the subscription forbids this; the message says which."""


class UnsupportedRequestError(BrokerError):
    """The request needs a feature that this broker lacks; the message names it."""


class TopicNotFoundError(BrokerError):
    """The topic does not exist, and may not be created by its use."""


class TopicTerminatedError(BrokerError):
    """The topic takes no more messages; this is final."""


class TopicFencedError(ServiceNotReadyError):
    """The topic is being closed, or was taken over: the request was not done."""


class ProducerBusyError(BrokerError):
    """The producer's name is taken, or the topic has its maximum of producers, or an exclusive one."""

    retryable = True


class ProducerFencedError(BrokerError):
    """An exclusive producer took over: this one is finished for good."""


class DuplicateUndecidedError(BrokerError):
    """A message with this sequence id is being stored: only when that is decided is this one a duplicate, or not."""

    retryable = True


class KafkaRefusedError(BrokerError):
    """A request of a Kafka client, or a part of it, is refused; `code` is the protocol's number of the reason."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class BacklogQuotaExceededError(BrokerError):
    """Subscriptions of the topic lag too far for more messages to be published; `policy` decides how clients learn
    it."""

    retryable = True

    def __init__(self, message: str, *, policy: str) -> None:
        super().__init__(message)
        self.policy = policy


class BrokerUnavailableError(BrokerError):
    """No broker could be reached, or the connection to it was lost. The request may or may not be done."""

    retryable = True


class BrokerTimeoutError(BrokerUnavailableError):
    """A broker did not answer in time. The request may or may not be done."""

    outcome_unknown = True


class MessageTooLargeError(BrokerError):
    """The message exceeds the broker's limit; nothing was sent."""


class InvalidMessageError(BrokerError):
    """A property of a message cannot be sent; nothing was."""


class SendQueueFullError(BrokerError):
    """The producer has its maximum of messages that wait for a receipt; wait for some."""

    retryable = True


class EndOfTopicError(BrokerError):
    """The topic was terminated, and everything in it has been received."""


# --- subscriptions and consumers --------------------------------------------------------------------------------------


class SubscriptionError(MagnetarError):
    """An operation on a subscription failed."""


class ConsumerBusyError(SubscriptionError):
    """The subscription takes no further consumer now: it is exclusive and has one, or has its maximum."""

    retryable = True


class SubscriptionTypeError(SubscriptionError):
    """The consumer asks for another type than the connected ones have; the message names both."""

    retryable = True


class SubscriptionFencedError(SubscriptionError):
    """A seek or an unsubscribe is in progress, or the subscription is closed; connecting again helps."""

    retryable = True


class ConsumerAssignError(SubscriptionError):
    """The key ranges of a Key_Shared consumer are malformed or overlap another consumer's."""


class InvalidCursorPositionError(SubscriptionError):
    """The topic has no such position to seek to."""


class MalformedPlaceError(InvalidCursorPositionError):
    """A text does not name a position in any topic; the message shows valid ones."""

    asked_wrongly = True


# --- Spark and staging ------------------------------------------------------------------------------------------------


class StagingError(MagnetarError):
    """Staged data could not be written, committed or published."""


class StagingRecordError(StagingError):
    """A record of staging in the metadata store, or a task's message, is damaged."""


class StagedLedgerGoneError(StagingError):
    """A staged ledger no longer exists, or is not as its task left it: nothing was committed, run the batch again."""


class JobAlreadyCommittedError(StagingError):
    """Another run of the job with this id was committed: this run's data is never seen."""


class EpochOrderError(StagingError):
    """An epoch cannot be committed or published: an earlier one is not done, or a later one was decided."""


class StillPublishingError(StagingError):
    """A broker is still copying a staged epoch into the topic: ask again."""

    retryable = True


class SparkFailedError(MagnetarError):
    """Spark did not start, or a job on it failed; the message says why and what can be done."""


class DataLossError(MagnetarError):
    """Messages for a query are missing; the message says which, why, and what can be done."""


class DataTrimmedError(DataLossError):
    """Retention or compaction removed them, as the topic's policies say: a gap, and nothing was lost."""


class GapUnknownError(DataLossError):
    """It is unknown now whether messages are missing, as the entry that would show it cannot be read."""

    retryable = True


class TopicRecreatedError(DataLossError):
    """The topic is not the one that the query had begun to read: deleted, made anew, or rolled back."""


class CheckpointMismatchError(MagnetarError):
    """The checkpoint of a query belongs to other topics, or to a newer release."""


class SinkDataError(MagnetarError):
    """Rows cannot be messages as they are; the message says what to change in the query."""


class EncryptedMessageError(MagnetarError):
    """A message is encrypted and cannot be opened here; `encrypted=raw` returns it as it is."""


class HttpRefusedError(BrokerError):
    """A broker refused a request to its HTTP port; `status` is its answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class AuditInputError(MagnetarError):
    """A log or an archive for an audit is missing or invalid; the message names it."""
