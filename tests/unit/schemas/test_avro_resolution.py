"""Every pair of a hundred schemas, compared with what Apache's broker says about it."""

from __future__ import annotations

import pytest

from magnetar.errors import InvalidSchemaError
from magnetar.schemas.avro.parser import DEPTH_MAX, parse_schema
from magnetar.schemas.avro.resolution import mismatch
from tests.rows import every_row
from tests.unit.broker import golden

PAIRS = golden.avro()["pairs"]
READS = golden.avro()["reads"]
SCHEMAS = {name: parse_schema(text) for name, text in PAIRS.items()}

# Where Apache stumbles over the writer's schema when it applies the reader's aliases to it: it builds it again, and is
# stricter about defaults and names then than when it read it. Nothing would be wrong with reading.
APACHE_STUMBLES = {("r_c_alias_a", "r_a_badef"), ("r_alias", "r_a_badef"), ("r_alias", "dollar")}


@every_row("reader", SCHEMAS)
def test_schema_reads_exactly_what_apache_lets_it_read(reader: str) -> None:
    ours = [writer for writer in SCHEMAS if mismatch(SCHEMAS[reader], SCHEMAS[writer]) is None]
    apache = [writer for writer in SCHEMAS if writer in READS[reader] or (reader, writer) in APACHE_STUMBLES]
    assert ours == apache


@every_row("name", SCHEMAS)
def test_every_schema_reads_itself(name: str) -> None:
    assert mismatch(SCHEMAS[name], parse_schema(PAIRS[name])) is None


@pytest.mark.parametrize(
    ("reader", "writer", "message"),
    [
        ("r_ab", "r_a", "at b: the reader needs this field, the writer lacks it, and it has no default"),
        ("r_nested_more", "r_nested", "at n.b: the reader needs this field"),
        ("r_nested_arr_more", "r_nested_arr", r"at n\[\].b: the reader needs"),
        ("r_a_string", "r_a", "at a: int cannot be read as string"),
        ("r_a_badef", "r_a", "at b: .*default 5 does not fit"),
        ("u_null_int", "string", "union of null, int"),
        ("enum_other", "enum_ab", "E is read as one of another name, E2"),
        ("fixed8", "fixed4", "4 bytes of fixed F are read as 8"),
    ],
)
def test_mismatch_says_what_does_not_fit_and_where(reader: str, writer: str, message: str) -> None:
    found = mismatch(SCHEMAS[reader], SCHEMAS[writer])
    with pytest.raises(ValueError, match=message):
        raise ValueError(str(found))


def test_schemas_with_many_records_are_compared_in_bounded_time() -> None:
    def layered(kind: str) -> str:
        """Each record has two fields of the record below: two to the thirtieth paths."""
        below = f'"{kind}"'
        for level in range(30):
            first = f'{{"name":"a","type":{below}}}'
            second = f'{{"name":"b","type":{below if level == 0 else f"{chr(34)}R{level - 1}{chr(34)}"}}}'
            below = f'{{"type":"record","name":"R{level}","fields":[{first},{second}]}}'
        return below

    assert mismatch(parse_schema(layered("long")), parse_schema(layered("int"))) is None
    assert mismatch(parse_schema(layered("int")), parse_schema(layered("long"))) is not None


# --- definitions ------------------------------------------------------------------------------------------------------

TEXTS = golden.avro()["texts"]
VALID = golden.avro()["valid"]
STRICTER = {"redefine", "comment"}  # Apache takes a record inside itself of the same name, and comments in JSON.
ELSEWHERE = {"top_union"}  # Refused for topics (validation.py), not by the parser.


@every_row("name", [name for name in TEXTS if name not in STRICTER | ELSEWHERE])
def test_definition_is_accepted_or_refused_as_by_apache(name: str) -> None:
    try:
        parse_schema(TEXTS[name])
        is_valid = True
    except InvalidSchemaError:
        is_valid = False
    assert is_valid is VALID[name]


@pytest.mark.parametrize("name", sorted(STRICTER))
def test_definitions_that_only_apache_takes_are_refused(name: str) -> None:
    assert VALID[name]
    with pytest.raises(InvalidSchemaError):
        parse_schema(TEXTS[name])


def nested_arrays(depth: int) -> str:
    return '{"type":"array","items":' * depth + '"int"' + "}" * depth


def test_nesting_has_a_limit() -> None:
    parse_schema(nested_arrays(DEPTH_MAX))
    with pytest.raises(InvalidSchemaError, match="deeper"):
        parse_schema(nested_arrays(DEPTH_MAX + 1))
    with pytest.raises(InvalidSchemaError):
        parse_schema("[" * 100_000)
    with pytest.raises(InvalidSchemaError):
        parse_schema(nested_arrays(100_000))


def test_definition_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(InvalidSchemaError):
        parse_schema(b'"\xff"')
