"""Run with `python -m pytest`."""

from grading import correct


def test_the_last_number_counts():
    assert correct("6+7=", "<think>6+6=12</think><answer>13</answer>", "13") == 1.0


def test_another_number_does_not():
    assert correct("6+7=", "<answer>12</answer>", "13") == 0.0


def test_no_number_does_not():
    assert correct("6+7=", "thirteen", "13") == 0.0


def test_thousands_may_be_separated():
    assert correct("", "It is 1,234.", "1234") == 1.0
