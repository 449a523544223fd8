"""Transactions: this broker has none yet, and answers every command of theirs with that error.

The code is `TransactionCoordinatorNotFound`, which clients report as a broker without transactions.
"""

from __future__ import annotations

from typing import Any

from magnetar.broker.pulsar.session import Session
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, ServerError

_WHY = "this broker has no transactions"


def handle_connect(session: Session, command: BaseCommand) -> None:
    answer = BaseCommand(type=BaseCommand.TC_CLIENT_CONNECT_RESPONSE)
    _refuse(session, answer, answer.tcClientConnectResponse, command.tcClientConnectRequest.request_id)


def handle_new(session: Session, command: BaseCommand) -> None:
    answer = BaseCommand(type=BaseCommand.NEW_TXN_RESPONSE)
    _refuse(session, answer, answer.newTxnResponse, command.newTxn.request_id)


def handle_add_partition(session: Session, command: BaseCommand) -> None:
    answer = BaseCommand(type=BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE)
    _refuse(session, answer, answer.addPartitionToTxnResponse, command.addPartitionToTxn.request_id)


def handle_add_subscription(session: Session, command: BaseCommand) -> None:
    answer = BaseCommand(type=BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE)
    _refuse(session, answer, answer.addSubscriptionToTxnResponse, command.addSubscriptionToTxn.request_id)


def handle_end(session: Session, command: BaseCommand) -> None:
    answer = BaseCommand(type=BaseCommand.END_TXN_RESPONSE)
    _refuse(session, answer, answer.endTxnResponse, command.endTxn.request_id)


def handle_end_on_partition(session: Session, command: BaseCommand) -> None:
    answer = BaseCommand(type=BaseCommand.END_TXN_ON_PARTITION_RESPONSE)
    _refuse(session, answer, answer.endTxnOnPartitionResponse, command.endTxnOnPartition.request_id)


def handle_end_on_subscription(session: Session, command: BaseCommand) -> None:
    answer = BaseCommand(type=BaseCommand.END_TXN_ON_SUBSCRIPTION_RESPONSE)
    _refuse(session, answer, answer.endTxnOnSubscriptionResponse, command.endTxnOnSubscription.request_id)


def _refuse(session: Session, answer: BaseCommand, response: Any, request_id: int) -> None:
    response.request_id = request_id
    response.error = ServerError.TransactionCoordinatorNotFound
    response.message = _WHY
    session.answer_command(answer)
