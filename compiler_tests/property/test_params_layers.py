"""Overrides commute, with each other and with profiles; folding agrees with Python."""

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from forgedsl import api

DEEP = os.environ.get("FORGE_DEEP") == "1"
NAMES = ("a", "b", "c", "d")
TEXT = """\
param a : int = 1
param b : int = 2
param c : int = a + b
param d : int = c * 2
profile p { a = 10, c = b + 100 }
"""


def values(overrides, profile):
    program = api.load_text(TEXT, profile=profile, overrides=overrides).checked
    return {name: program.params[name].value for name in NAMES}


assignments = st.dictionaries(st.sampled_from(NAMES), st.integers(-1000, 1000))


@settings(max_examples=1000 if DEEP else 60, deadline=None)
@given(assignments, st.randoms(use_true_random=False), st.sampled_from(["none", "p"]))
def test_the_order_of_overrides_of_different_names_does_not_matter(given_values, rng, profile):
    overrides = [f"{name}={value}" for name, value in given_values.items()]
    shuffled = list(overrides)
    rng.shuffle(shuffled)
    assert values(shuffled, profile) == values(overrides, profile)


@settings(max_examples=1000 if DEEP else 60, deadline=None)
@given(assignments)
def test_overrides_win_over_profiles_and_derived_params_follow(given_values):
    expected = {"a": 10, "b": 2} | given_values
    expected.setdefault("c", expected["b"] + 100)
    expected.setdefault("d", expected["c"] * 2)
    found = values([f"{name}={value}" for name, value in given_values.items()], "p")
    assert found == expected


numbers = st.integers(1, 99)


@settings(max_examples=5000 if DEEP else 150, deadline=None)
@given(
    st.recursive(
        numbers.map(str),
        lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        max_leaves=12,
    )
)
def test_folding_agrees_with_python(text):
    try:
        expected = float(eval(text))
    except ZeroDivisionError:
        loaded = api.load_text(f"param x : float = {text}\n")
        assert {d.code for d in loaded.reporter} == {"F113"}, "one for each division by zero"
        return
    program = api.load_text(f"param x : float = {text}\n").checked
    assert program.params["x"].value == expected
