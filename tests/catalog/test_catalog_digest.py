"""Digests and canonical JSON."""

import hashlib
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.digest import canonical_json, digest_bytes, digest_file, digest_json, is_digest, short

NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_the_order_of_keys_does_not_change_a_digest(value: dict[str, object]) -> None:
    backwards = dict(reversed(list(value.items())))
    assert canonical_json(value) == canonical_json(backwards)
    assert digest_json(value) == digest_json(backwards)


@pytest.mark.parametrize("bad", [math.nan, math.inf, {"a": [1, -math.inf]}, {1: "x"}])
def test_values_without_one_json_form_are_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="canonical JSON refuses"):
        canonical_json(bad)


def test_a_digest_is_the_sha256_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    expected = "sha256:" + hashlib.sha256(b"abc").hexdigest()
    assert digest_bytes(b"abc") == digest_file(tmp_path / "f") == expected
    assert is_digest(expected)
    assert not is_digest(expected.upper())
    assert short(expected) == expected[7:15]
