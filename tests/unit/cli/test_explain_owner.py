from __future__ import annotations

from typing import Any

import pytest

from magnetar.cli.admin import explain
from magnetar.names import TopicName

TOPIC = TopicName.parse("orders")
OWNED: dict[str, Any] = {
    "topic": str(TOPIC),
    "bundle": "public/default/0x40000000_0x80000000",
    "owner": "b:8080",
    "owner_url": "http://b:8080",
    "since_ms": 0,
    "is_being_unloaded": False,
    "acquired": {"how": "chosen", "text": "another broker had chosen it"},
    "leader": "a:8080",
    "decision": {"by": "a:8080", "broker": "b:8080", "made_ms": 0, "why": "load", "text": "none had less load"},
    "not_asked": [],
}


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **changed: Any) -> list[str]:
    class Client:
        def __init__(self, url: str) -> None:
            del url

        def get(self, path: str) -> Any:
            return {"partitions": 0} if path.endswith("/partitions") else OWNED | changed

    monkeypatch.setattr(explain, "AdminClient", Client)
    explain.explain(topic=TOPIC)
    return capsys.readouterr().out.splitlines()


def test_the_owner_is_shown_with_the_time_and_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(monkeypatch, capsys) == [
        "persistent://public/default/orders, bundle public/default/0x40000000_0x80000000",
        "  owner: b:8080, since 1970-01-01T00:00:00+00:00",
        "  how it became the owner: another broker had chosen it",
        "  chosen by a:8080 at 1970-01-01T00:00:00+00:00: none had less load",
    ]


def test_what_no_broker_remembers_is_said_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(monkeypatch, capsys, acquired=None, decision=None, not_asked=["broker b:8080: no answer"])
    assert lines[2:] == [
        "  why this broker was chosen is not known: the owner and the leader do not remember a choice",
        "  not asked: broker b:8080: no answer",
    ]


def test_a_bundle_without_an_owner_is_shown_as_such(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (_, line) = shown(monkeypatch, capsys, owner=None)
    assert line == "  owner: none; a broker is chosen when a client looks up a topic of the bundle"
