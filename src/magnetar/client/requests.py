"""Requests of one connection that wait for their answers, by their ids, and a broker's refusals as our errors.

Each request has a timer of its own. A refusal that is not in the table may be transient, as in Apache's client.
"""

from __future__ import annotations

import asyncio
from typing import Any

from magnetar.errors import (
    BrokerError,
    BrokerTimeoutError,
    BrokerUnavailableError,
    ConsumerAssignError,
    ConsumerBusyError,
    IncompatibleSchemaError,
    InvalidNameError,
    MagnetarError,
    NotAllowedError,
    ProducerBusyError,
    ProducerFencedError,
    ServiceNotReadyError,
    TooManyRequestsError,
    TopicNotFoundError,
    TopicTerminatedError,
    UnsupportedRequestError,
)
from magnetar.wire.pulsar.proto import pulsar_api_pb2 as api
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand

_CLASSES: dict[int, type[MagnetarError]] = {
    api.AuthenticationError: BrokerError,
    api.AuthorizationError: BrokerError,
    api.ConsumerBusy: ConsumerBusyError,
    api.ServiceNotReady: ServiceNotReadyError,
    api.ChecksumError: BrokerError,
    api.UnsupportedVersionError: UnsupportedRequestError,
    api.TopicNotFound: TopicNotFoundError,
    api.SubscriptionNotFound: BrokerError,
    api.ConsumerNotFound: BrokerError,
    api.TooManyRequests: TooManyRequestsError,
    api.TopicTerminatedError: TopicTerminatedError,
    api.ProducerBusy: ProducerBusyError,
    api.InvalidTopicName: InvalidNameError,
    api.IncompatibleSchema: IncompatibleSchemaError,
    api.ConsumerAssignError: ConsumerAssignError,
    api.TransactionCoordinatorNotFound: BrokerError,
    api.InvalidTxnStatus: BrokerError,
    api.NotAllowedError: NotAllowedError,
    api.TransactionConflict: BrokerError,
    api.TransactionNotFound: BrokerError,
    api.ProducerFenced: ProducerFencedError,
}
_ENDS_OPENING = (ConsumerBusyError, ProducerBusyError)
"""Refusals after which only the application may try again: another client holds the place, and may keep it."""


def refusal(code: int, message: str) -> MagnetarError:
    """Returns the error for the number and text in a broker's answer."""
    name = api.ServerError.Name(code) if code in api.ServerError.values() else f"error {code}"
    return _CLASSES.get(code, BrokerUnavailableError)(f"{name}: {message}" if message else name)


def is_worth_another_try(error: MagnetarError, *, is_opening: bool) -> bool:
    return error.retryable and not (is_opening and isinstance(error, _ENDS_OPENING))


ANSWERS: dict[int, str] = {
    BaseCommand.SUCCESS: "success",
    BaseCommand.ERROR: "error",
    BaseCommand.PRODUCER_SUCCESS: "producer_success",
    BaseCommand.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
    BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
    BaseCommand.CONSUMER_STATS_RESPONSE: "consumerStatsResponse",
    BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: "getLastMessageIdResponse",
    BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE: "getTopicsOfNamespaceResponse",
    BaseCommand.GET_SCHEMA_RESPONSE: "getSchemaResponse",
    BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE: "getOrCreateSchemaResponse",
    BaseCommand.ACK_RESPONSE: "ackResponse",
}
"""Commands that answer a request, and the field that has its id."""


# --- requests in progress ---------------------------------------------------------------------------------------------


class _Request:
    __slots__ = ("answer", "timer")

    def __init__(self, answer: asyncio.Future[Any], timer: asyncio.TimerHandle) -> None:
        self.answer = answer
        self.timer = timer


class Requests:
    def __init__(self, address: str) -> None:
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _Request] = {}

    async def wait_answer(self, request_id: int, timeout_s: float) -> Any:
        """Returns the answer's own message, such as CommandSuccess. Raises the broker's refusal."""
        timer = self._loop.call_later(timeout_s, self._on_timeout, request_id, timeout_s)
        request = self._waiting[request_id] = _Request(self._loop.create_future(), timer)
        try:
            return await request.answer
        finally:
            request.timer.cancel()
            del self._waiting[request_id]

    def on_answer(self, command: BaseCommand) -> None:
        answer = getattr(command, ANSWERS[command.type])
        request = self._waiting.get(answer.request_id)
        if request is None or request.answer.done():
            return  # Its timer was faster.
        if command.type == BaseCommand.ERROR:
            request.answer.set_exception(refusal(answer.error, answer.message))
        elif command.type == BaseCommand.PRODUCER_SUCCESS and not answer.producer_ready:
            request.timer.cancel()  # It waits for its turn as the only producer, however long that takes.
        else:
            request.answer.set_result(answer)

    def fail_all(self, error: MagnetarError) -> None:
        for request in self._waiting.values():
            if not request.answer.done():
                request.answer.set_exception(error)

    def _on_timeout(self, request_id: int, timeout_s: float) -> None:
        request = self._waiting[request_id]
        if not request.answer.done():
            message = f"broker {self._address} did not answer within {timeout_s:g} s"
            request.answer.set_exception(BrokerTimeoutError(message))
