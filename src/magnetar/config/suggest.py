"""Suggestions: what somebody who wrote an unknown key probably meant."""

from __future__ import annotations

from magnetar.config.root import KEYS, SECTIONS


def nearest_key(section: str, name: str) -> str:
    """The known `section.key` nearest to an unknown one.

    A key written in the wrong section, and the name the knob has in BookKeeper, Pulsar or Kafka, count as nearest.
    """
    for path, key in KEYS.items():
        if name == key.name or name.lower() in (peer.lower() for peer in key.knob.peer_names):
            return path
    if section in SECTIONS:
        return f"{section}.{nearest(name, [key.name for key in KEYS.values() if key.section == section])}"
    return nearest(f"{section}.{name}", list(KEYS))


def nearest(word: str, known: list[str]) -> str:
    """The best match there is, however bad: the reader sees at least what names look like."""
    import difflib  # Needed for a mistake only; every command would pay for it.

    return difflib.get_close_matches(word, known, n=1, cutoff=0.0)[0]
