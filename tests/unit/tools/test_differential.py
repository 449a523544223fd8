"""Programs of the differential part: made by seed, written and read as text, made shorter."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.differential.generate import generate
from interop.differential.intended import TABLE, Leaf, table_markdown, unintended
from interop.differential.pair import Difference
from interop.differential.program import Program, Step, parse
from interop.differential.shrink import shrink
from interop.differential.test_programs import PROGRAMS

DOCS = Path(__file__).resolve().parents[3] / "docs" / "interop.md"


def test_a_seed_is_one_program_and_its_text_is_the_same_program() -> None:
    for seed in range(50):
        program = generate(seed)
        assert str(program) == str(generate(seed))
        assert parse(str(program), program.name) == program


def test_programs_that_once_differed_can_be_read() -> None:
    assert [parse(path.read_text(), path.stem).steps for path in PROGRAMS.glob("*.txt")]


def test_a_line_that_is_no_step_is_named() -> None:
    with pytest.raises(ValueError, match="send 3"):
        parse("setup()\nsend 3")


def test_a_program_is_shortened_to_the_steps_and_arguments_that_make_it_differ() -> None:
    def run(program: Program) -> Difference | None:
        verbs = [step.verb for step in program.steps]
        if "send" in verbs and "seek" in verbs[verbs.index("send") :]:
            return Difference(verbs.index("seek"), "seek()", "received", ())
        return None

    steps = [Step("ack", {"sub": "s0"})] * 5 + [Step("send", {"n": 8, "batch": True}), Step("unload"), Step("seek")]
    program = Program(Step("setup", {"partitions": 3}), (*steps, Step("finish")))
    difference = run(program)
    assert difference is not None
    shortest, _ = shrink(program, difference, run)
    assert str(shortest) == "setup()\nsend()\nseek()"


def test_only_what_a_rule_covers_is_intended() -> None:
    step, setup = Step("expire", {"sub": "s0"}), Step("setup")
    assert unintended(step, setup, "outcome", 409, 204) == []
    assert unintended(step, setup, "outcome", 204, 409) == [Leaf(("outcome",), 204, 409)]
    assert unintended(step, setup, "statistics", {"t": {"backlog": 1}}, {"t": {"backlog": 2}}) == [
        Leaf(("statistics", "t", "backlog"), 1, 2)
    ]


def test_the_page_on_interoperability_has_the_table_of_intended_differences() -> None:
    assert TABLE
    assert table_markdown() in DOCS.read_text(), f"docs/interop.md should have this table:\n{table_markdown()}"
