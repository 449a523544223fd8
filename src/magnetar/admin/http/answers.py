"""Answers of any size: made and sent piece by piece, without holding the event loop or keeping the whole in memory.

An answer that fits into one piece is sent with its length. `Members` is an object whose members are made while it is
sent. Large dictionaries and lists are encoded in groups, with a turn for other tasks after each (runtime/slices.py).

Order:     After the first piece the status is sent, and the rest follows in chunks. A later failure can only end the
           connection, so handlers look up and load what may be missing before they return.
Limits:    A client that reads slowly holds its own answer, and nothing else; the time of a request bounds it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from magnetar.runtime.slices import Slices

if TYPE_CHECKING:
    from starlette.types import Send

JSON: Final = "application/json"
_PIECE_CHARACTERS: Final = 64 * 1024
_GROUP_VALUES_MAX: Final = 400  # Encoded at once: about a tenth of a millisecond.

_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Members:
    """Is a JSON object whose members come one after the other. Each name comes once."""

    items: AsyncIterator[tuple[str, Any]]


class Answer:
    """Writes one answer: `text` as often as there is more, then `end`."""

    def __init__(self, send: Send, slices: Slices, content_type: str, status: int = 200) -> None:
        self.slices = slices
        self.is_begun = False
        """Whether the status was sent."""
        self._send = send
        self._status = status
        self._headers = [(b"content-type", content_type.encode())] if content_type else []
        self._parts: list[str] = []
        self._characters = 0

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Adds headers with the exact letters of their names: Pulsar's Java client depends on them."""
        self._headers += [(name.encode(), value.encode()) for name, value in headers.items()]

    async def text(self, text: str) -> None:
        """Writes a few kilobytes at most, made with about as much work as sending them: other tasks get a turn
        afterwards."""
        self._parts.append(text)
        self._characters += len(text)
        if self._characters >= _PIECE_CHARACTERS:
            piece = self._taken()
            await self._begin()
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        await self.slices.turn()

    async def end(self, body: bytes | None = None) -> None:
        """Ends the answer, with a body that was made as a whole, if nothing was written before."""
        last = self._taken() if body is None else body
        if not self.is_begun:
            self._headers.append((b"content-length", str(len(last)).encode()))
        await self._begin()
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    def _taken(self) -> bytes:
        parts, self._parts, self._characters = self._parts, [], 0
        return "".join(parts).encode()

    async def _begin(self) -> None:
        if not self.is_begun:
            self.is_begun = True
            await self._send({"type": "http.response.start", "status": self._status, "headers": self._headers})


@dataclass(frozen=True, slots=True)
class Streamed:
    """Is the result of a handler whose answer is text that it writes itself."""

    write: Callable[[Answer], Awaitable[None]]
    content_type: str


async def write_json(answer: Answer, value: Any) -> None:
    if isinstance(value, Members):
        await _write_members(answer, value)
    elif _is_one_group(value):
        await answer.text(_encode(value))
    elif isinstance(value, dict):
        await _write_object(answer, value)
    else:
        await _write_list(answer, value)


async def _write_members(answer: Answer, members: Members) -> None:
    opening = "{"
    async for name, value in members.items:
        await answer.text(f"{opening}{_encode(name)}:")
        await write_json(answer, value)
        opening = ","
    await answer.text("{}" if opening == "{" else "}")


async def _write_object(answer: Answer, value: Mapping[str, Any]) -> None:
    opening = "{"
    for group in _groups(value.items(), lambda item: item[1]):
        if len(group) == 1:
            name, member = group[0]
            await answer.text(f"{opening}{_encode(name)}:")
            await write_json(answer, member)
        else:
            await answer.text(opening + _encode(dict(group))[1:-1])
        opening = ","
    await answer.text("}")


async def _write_list(answer: Answer, value: Iterable[Any]) -> None:
    opening = "["
    for group in _groups(value, lambda item: item):
        if len(group) == 1:
            await answer.text(opening)
            await write_json(answer, group[0])
        else:
            await answer.text(opening + _encode(group)[1:-1])
        opening = ","
    await answer.text("]")


def _groups(items: Iterable[Any], value_of: Callable[[Any], Any]) -> Iterable[list[Any]]:
    """Yields neighbours that are encoded together; a large value is alone."""
    group: list[Any] = []
    room = _GROUP_VALUES_MAX
    for item in items:
        size = _values_in(value_of(item), _GROUP_VALUES_MAX)
        if group and size > room:
            yield group
            group, room = [], _GROUP_VALUES_MAX
        group.append(item)
        room -= size
    if group:
        yield group


def _is_one_group(value: Any) -> bool:
    return _values_in(value, _GROUP_VALUES_MAX) <= _GROUP_VALUES_MAX


def _values_in(value: Any, enough: int) -> int:
    """Counts the values in it, itself included, until there are more than enough.

    A value that is not made yet counts as more than any number.
    """
    if isinstance(value, Members):
        return enough + 1
    if not isinstance(value, dict | list | tuple):
        return 1
    count = 1 + len(value)
    for member in value.values() if isinstance(value, dict) else value:
        if count > enough:
            return count
        if isinstance(member, dict | list | tuple | Members):
            count += _values_in(member, enough) - 1
    return count
