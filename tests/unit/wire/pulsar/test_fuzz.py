"""Every decoder of the protocol against a short deterministic run of mutated input; `make fuzz` has the long ones."""

from __future__ import annotations

import pytest

from fuzz.engine import run, try_one
from fuzz.pulsar_frames import targets

TARGETS = {target.name: target for target in targets()}
INPUTS = 1_000


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_input_ends_in_a_value_or_in_the_promised_error(name: str) -> None:
    report = run(TARGETS[name], seed=1, inputs=INPUTS)
    assert 0 < report.accepted < INPUTS
    assert report.past_header > INPUTS / 2


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_of_the_corpus_is_accepted(name: str) -> None:
    assert all(try_one(TARGETS[name], data) for data in TARGETS[name].corpus)
