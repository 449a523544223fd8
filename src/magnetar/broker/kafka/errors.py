"""Which of Kafka's error codes a client gets for an error of the broker.

A client that gets a retriable code looks the topic up again, or waits, and sends again. It gives the request up after
any other code.
"""

from __future__ import annotations

from typing import Final

from magnetar.errors import (
    BacklogQuotaExceededError,
    EntryTooLargeError,
    InvalidNameError,
    InvalidPolicyError,
    KafkaRefusedError,
    LogBusyError,
    MagnetarError,
    MalformedEntryError,
    NotAllowedError,
    ProducerBusyError,
    ProducerFencedError,
    ResourceExistsError,
    ResourceLimitError,
    ServiceNotReadyError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from magnetar.wire.kafka.error_codes import ErrorCode

_CODES: Final[
    tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], ErrorCode], ...]
] = (  # The first that fits.
    (TopicNotFoundError, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (ServiceNotReadyError, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (LogBusyError, ErrorCode.NOT_ENOUGH_REPLICAS),
    (EntryTooLargeError, ErrorCode.MESSAGE_TOO_LARGE),
    (MalformedEntryError, ErrorCode.CORRUPT_MESSAGE),
    (InvalidNameError, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (ResourceExistsError, ErrorCode.TOPIC_ALREADY_EXISTS),
    (
        (TopicTerminatedError, ProducerBusyError, ProducerFencedError, BacklogQuotaExceededError, ResourceLimitError),
        ErrorCode.POLICY_VIOLATION,
    ),
    ((NotAllowedError, InvalidPolicyError), ErrorCode.POLICY_VIOLATION),
    (TimeoutError, ErrorCode.REQUEST_TIMED_OUT),
    (MagnetarError, ErrorCode.KAFKA_STORAGE_ERROR),
)


def code_of(error: BaseException) -> int:
    if isinstance(error, KafkaRefusedError):
        return error.code
    return next(code for kind, code in _CODES if isinstance(error, kind))


def group_code_of(error: BaseException) -> int:
    """Returns the same for a request to a coordinator, whose clients look for another one after other codes than a
    client of a topic."""
    if isinstance(error, KafkaRefusedError):
        return error.code
    if isinstance(error, TimeoutError):
        return ErrorCode.REQUEST_TIMED_OUT
    if isinstance(error, EntryTooLargeError):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
