"""`draw(..., weight = f)` and `observe`: what the job says, what is refused."""

from pathlib import Path

import pytest
from forge_texts import edited

import forgedsl.pipelines

FOLDER = Path(forgedsl.pipelines.__file__).parent
TEXT = (FOLDER / "curriculum_math.forge").read_text()
OBSERVE = "  sums.observe(prompt, score)\n"
SECOND = "  more    = sums.draw(8)\n  extra   = generator.sample(more, n = 4)\n"


def lowered(*changes):
    return edited(TEXT, *changes, folder=FOLDER)


def test_the_draw_has_its_weight_and_the_score_that_it_learns_from():
    made, problems = lowered()
    assert problems == []
    draw = next(node for node in made.job.nodes if node.op == "draw")
    assert (draw.weight, draw.observe) == ("fn_frontier", "score")
    assert made.job.datasets["sums"].level == "dataset_sums_level"


def test_the_weight_is_a_function_of_the_program():
    made, _ = lowered()
    names: dict = {}
    exec(made.job.program, names)
    weigh = names["fn_frontier"]
    assert [weigh(0.0, 0.0), weigh(0.5, 8.0), weigh(1.0, 8.0)] == [1.0, 1.0, 0.1]


def test_a_function_of_a_library_is_a_weight():
    made, problems = lowered(("weight = frontier", "weight = rl.frontier"))
    assert problems == []
    assert "def fn_std_rl_frontier(mean, count, least=0.05):" in made.job.program


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ([(OBSERVE, "")], "F114", "`prompt` is weighted, but the flow passes it no scores"),
        ([(", weight = frontier", "")], "F119", "`prompt` is drawn without a weight"),
        ([("weight = frontier", "weight = 0.5")], "F109", "a weight must be a function of"),
        ([("weight = frontier", "weight = frontir")], "F101", "undefined function `frontir`"),
        ([("weight = frontier", "weight = rl.mixed")], "F109", "a weight must be a function of"),
        ([("count: float)", "level: float)")], "F114", "`frontier` takes `level`"),
        ([("prompt, score)\n", "prompt, rollout)\n")], "F109", "`rollout` is not a score"),
        ([("observe(prompt, score)", "observe(score, prompt)")], "F109", "`score` was not drawn"),
        ([("observe(prompt, score)", "observe(prompt)")], "F114", "`sums.observe` takes a draw"),
        ([("observe(prompt, score)", "observe(prompt, scor)")], "F101", "undefined stream"),
        ([("  sums.observe", "  seen    = sums.observe")], "F119", "`observe` has no result"),
        ([(OBSERVE, 2 * OBSERVE)], "F102", "`prompt` is observed twice"),
        (
            [(OBSERVE, SECOND + "  told    = grade(extra, more.target)\n"
              "  sums.observe(prompt, told)\n")],
            "F112", "the weight of `prompt` observes `told`, which is a score for `more`",
        ),
    ],
)  # fmt: skip
def test_mistakes_have_their_message(changes, code, message):
    _, problems = lowered(*changes)
    assert [(c, m[: len(message)]) for c, m in problems][:1] == [(code, message)]
