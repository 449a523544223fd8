"""Each prose rule catches the wrong sense of its words and leaves the right one alone; what is held is clean."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.rows import every_row
from tools import prose_rules
from tools.prose_rules import HELD, Kind, check_source, check_text, check_tree


def rules_broken_by(text: str) -> list[str]:
    return sorted({finding.rule for finding in check_text(text)})


BROKEN = {
    "behind": [
        "The position lies behind the end.",
        "Entries behind it are dropped.",
        "It is behind\n12:34, the last one.",
    ],
    "forever": ["It is kept for ever.", "It waits for\never."],
    "in-progress": ["A change is under way.", "Answers that are on their way."],
    "whoever": ["Whoever runs it again.", "It goes to whomever it belongs."],
    "who": ["Who comes late waits.", "It is closed. Who reads it gets an error.", "| Who asks again gets the same."],
    "he": ["A consumer gets what he asked for.", "The broker refuses him."],
    "fragment": ["Of the log: what is needed.", "Title. Of a report.", "Of what is stored: the order."],
    "continues": ["The writer goes on undisturbed.", "Run again, it went\non."],
    "exists": ["A cluster that is there already.", "The topic is not there.", "Files that are no longer there."],
    "number": ["A ledger with so many entries.", "After so long it fails.", "So much, so much later."],
    "otherwise": ["Close it, else it leaks.", "One of them; else none."],
    "anyway": ["It is read all the same."],
    "nobody": ["Nobody knows.", "A topic that somebody deleted.", "Everybody waits."],
    "told": ["A client that is told so.", "The broker tells the client."],
    "gone": ["The topic is gone.", "Ledgers that were\ngone."],
    "none": ["A port that is none."],
}

FINE = [
    "A bookie that lags behind the others.",
    "Consumers must not fall behind.",
    "Nothing is left behind.",
    "The broker runs behind a proxy.",
    "Who may read it? Everyone.",
    "The client, who is a person.",
    "There is no topic.",
    "Everything is still there.",
    "It goes on to the next one.",
    "Wait as long as the limit, so long as it is open.",
    "Nothing else is needed, or something else.",
    "Of all limits, this is the lowest.",
    "Each of the bookies.",
    "The header of the file.",
    "Use `for ever`, `so many` and `behind`.",
    "```\nit goes on for ever\n```\nA sentence.",
    "[A link](behind.md).",
]


@every_row("rule", BROKEN)
def test_every_rule_catches_the_wrong_sense(rule: str) -> None:
    for text in BROKEN[rule]:
        assert rules_broken_by(text) == [rule], text


def test_the_right_sense_and_code_are_left_alone() -> None:
    for text in FINE:
        assert rules_broken_by(text) == [], text


def test_every_rule_has_an_example() -> None:
    assert set(BROKEN) == {rule for rule, _, _ in prose_rules.RULES}


def test_a_finding_names_the_line_and_what_to_write() -> None:
    (finding,) = check_text("Fine.\n\nIt is kept for ever.\n", first_line=10)
    assert (finding.line, finding.rule) == (12, "forever")
    assert finding.message == "'for ever': write 'forever', or name the end"


def lines_of(kind: Kind, text: str) -> list[int]:
    return [finding.line for finding in check_source(dedent(text), kind)]


def test_texts_of_knobs_and_sections_are_held() -> None:
    module = '''
        class Section:
            """Kept for ever."""

            port: int = knob(
                1,
                "A port "
                "for ever.",
                pulsar="forever",
            )
            other: str = "for ever"
    '''
    assert lines_of(Kind.KNOBS, module) == [3, 7]


def test_help_of_options_commands_and_tables_is_held() -> None:
    module = '''
        COMMANDS = {"a": ("module", "Runs for ever.")}
        Option = Annotated[str, typer.Option("--for", help=f"Wait for ever, or {limit}.")]

        def command() -> None:
            """Run for ever."""
            x = "for ever"

        def _helper() -> None:
            """For ever and for ever."""
    '''
    assert lines_of(Kind.HELP, module) == [2, 3, 6]


def test_messages_of_errors_logs_and_notes_are_held() -> None:
    module = """
        raise ValueError(f"{position} lies behind {last}")
        log.warning("it goes on", extra={"why": "for ever"})
        note("kept for ever")
        raise ValueError("for ever" if long else "fine")
        other("for ever")
    """
    assert lines_of(Kind.MESSAGES, module) == [2, 3, 4, 5]


def test_docstrings_comments_and_labels_are_held() -> None:
    module = '''
        """A module: its first line is no label.

        Order:     it is kept for ever.
        Cost:      none.
        """

        LIMIT = 1  # The writer goes on.
        """Entries that lie behind it."""


        def function() -> None:
            """Whoever calls it."""
            x = "for ever"
    '''
    assert lines_of(Kind.DOCSTRINGS, module) == [4, 5, 8, 9, 13]


def test_every_row_of_the_table_names_files() -> None:
    for pattern, _ in HELD:
        assert list(prose_rules.ROOT.glob(pattern)), f"{pattern} names no file"


def test_what_is_held_is_clean() -> None:
    assert check_tree() == []


def test_the_tool_fails_where_a_text_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text("# Title\n\nIt is kept for ever.\n", encoding="utf-8")
    monkeypatch.setattr(prose_rules, "check_tree", lambda: check_tree(tmp_path))
    assert prose_rules.main() == 1
    assert "README.md:3: forever: 'for ever': write 'forever', or name the end" in capsys.readouterr().out
