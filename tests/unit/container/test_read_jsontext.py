from __future__ import annotations

import pytest

from ckpt_tools.container.jsontext import duplicate_keys, line_of, parse, positions

TEXT = """{
  "a": 1,
  "b": {
    "c": [10,
          {"d": "x\\"}{"}
    ],
    "e/f~": null
  },
  "a": 2
}
"""


@pytest.mark.parametrize(
    ("pointer", "line"),
    [
        ("/a", 9),
        ("/b", 3),
        ("/b/c", 4),
        ("/b/c/0", 4),
        ("/b/c/1", 5),
        ("/b/c/1/d", 5),
        ("/b/e~1f~0", 7),
        ("/z", None),
    ],
)
def test_lines_of_pointers(pointer, line):
    assert line_of(TEXT, pointer) == line


def test_duplicate_keys_with_their_second_line():
    assert duplicate_keys(TEXT) == (("/a", 9),)
    assert duplicate_keys('{"a":{"x":1},\n"a":{"x":1,\n"x":2}}') == (("/a", 2), ("/a/x", 3))
    assert duplicate_keys('{"a":[{"x":1},{"x":1}]}') == ()
    assert duplicate_keys('{"\\u0061":1,"a":2}') == (("/a", 1),)


def test_parse_says_whether_a_key_repeats():
    assert parse('{"a":1,"a":2}') == ({"a": 2}, True)
    assert parse('{"a":{"b":1}}') == ({"a": {"b": 1}}, False)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse("[" * 100_000)
    with pytest.raises(ValueError, match="line 1"):
        parse("{")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "}",
        "{]",
        '{"a" 1',
        "{1:2}",
        '{"a',
        '"',
        "[1 2]",
        "1 2",
        '{"a":1}}',
        '{"\\x":1}',
        "[" * 3000,
        '{"a":}',
    ],
)
def test_damaged_texts_give_what_they_can(text):
    list(positions(text))
    assert line_of(text, "/nothing") is None


def test_a_pointer_of_absurd_length_ends_the_scan():
    assert list(positions('{"%s":1,"b":2}' % ("x" * 5000))) == []


def test_a_key_with_an_invalid_escape_is_taken_as_written():
    assert line_of('{"\\x":1}', "/\\x") == 1
