"""Standard rewards on ordinary and hostile completions, and the loading of all kinds."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from forgedsl.errors import LaunchError
from forgedsl.lower import job
from forgedsl_runtime.data_types import Prompt, Rollout
from forgedsl_runtime.rewards import (
    answer_of,
    answers_equal,
    contains,
    exact,
    format_regex,
    load_reward,
    math_equal,
    overlong,
    think_tags,
)


def rollout(text: str, num_tokens: int = 3) -> Rollout:
    prompt = Prompt(group=0, row=0, text="37+85=", token_ids=[1], target="122")
    return Rollout(
        group=0,
        sibling=0,
        prompt=prompt,
        token_ids=[0] * num_tokens,
        logprobs=[0.0] * num_tokens,
        mask=[True] * num_tokens,
        text=text,
        truncated=False,
        version_min=0,
        version_max=0,
        started=0.0,
        finished=0.0,
    )


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>7+5=12</think><answer>122</answer>", "122"),
        ("<answer>1</answer> no: <answer> 122 </answer>", "122"),
        ("I use <answer> tags: <answer>122</answer>", "122"),
        ("<answer>122", None),
        ("122</answer>", "122"),
        ("</answer>122<answer>", None),
        ("<answer></answer>122", None),
        ("so \\boxed{\\frac{1}{2}} holds", "\\frac{1}{2}"),
        ("\\boxed{1} and \\boxed{2}", "2"),
        ("\\boxed{{{", None),
        ("37 + 85 is 1,122.50 in all", "1,122.50"),
        ("that makes 122, as you see", "122"),
        ("it is 5-3", "3"),
        ("it is -3.", "-3"),
        ("no digits", None),
        ("", None),
    ],
)
def test_answer_of(text: str, answer: str | None) -> None:
    assert answer_of(text) == answer


@pytest.mark.parametrize(
    ("answer", "target"),
    [
        ("122", "122"),
        ("122.0", "122"),
        ("+122.", "122"),
        ("1,234", "1234"),
        ("1e3", "1000"),
        ("$18", "18"),
        ("18 dollars", "18"),
        ("50%", "50"),
        ("\u22125", "-5"),
        ("$\\frac{1}{2}$", "0.5"),
        ("\\frac{2}{4}", "\\frac{1}{2}"),
        ("1/2", "0.5"),
        ("x = 5", "5"),
        ("2^3 \\cdot 5^2", "200"),
        ("\\sqrt{2}", "1.41421356"),
        ("0.33333333", "1/3"),
        ("1" * 5000, "1" * 5000),
        ("10!", "10!"),
    ],
)
def test_equal_answers(answer: str, target: str) -> None:
    assert answers_equal(answer, target)


@pytest.mark.parametrize(
    ("answer", "target"),
    [
        ("121", "122"),
        ("12 2", "122"),
        ("1,23", "123"),
        ("1_000", "1000"),
        ("", "0"),
        ("-", "0"),
        (".", "0"),
        ("(1,2)", "(2,1)"),
        (str(10**30 + 1), str(10**30)),
        ("9" * 5000, "9"),
        ("1e9999", "1e9998"),
        ("nan", "0"),
        ("__import__('os').getcwd()", "1"),
    ],
)
def test_unequal_answers(answer: str, target: str) -> None:
    assert not answers_equal(answer, target)


@pytest.mark.parametrize(
    "answer",
    [
        "9^9^9^9",
        "9**9**9**9",
        "2^{2^{2^{2^{2^2}}}}",
        "10^-(10^10)",
        "2^(99999999)",
        "((10^999)^999)^999",
        "99999!!",
        "\\binom{1000000000}{500000000}",
        "\\sum_{i=1}^{10000000} i",
        "(" * 250,
        "\\frac" * 50,
        "x" * 1_000_000,
    ],
)
def test_answers_that_explode_are_wrong_and_cheap(answer: str) -> None:
    began = time.monotonic()
    assert not answers_equal(answer, "1")
    assert time.monotonic() - began < 10.0


def test_tolerance_is_absolute() -> None:
    assert answers_equal("1.05", "1", tolerance=0.1)
    assert not answers_equal("12345679", "12345678", tolerance=1e-6)
    assert not answers_equal("1.05", "1", tolerance=0.0)


def test_math_equal_takes_numbers_as_target() -> None:
    assert math_equal(rollout("<answer>122</answer>"), 122) == 1.0
    assert math_equal(rollout("<answer>0.5</answer>"), 0.5) == 1.0


def test_math_equal_refuses_other_targets() -> None:
    with pytest.raises(TypeError, match="must be text or a number, not list"):
        math_equal(rollout("<answer>122</answer>"), [122])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>7+5=12</think><answer>12</answer>", 1.0),
        ("So: <think>7\n+5</think>\nthus <answer>12</answer>.", 1.0),
        ("<Think>7</THINK>< answer >12</ answer >", 1.0),
        ("<think>7+5=12</think>", 0.2),
        ("<answer>12</answer><think>7+5=12</think>", 0.2),
        ("<think> \n</think><answer>12</answer>", 0.2),
        ("<think>7+5=12</think><answer> </answer>", 0.2),
        ("<think>7</think><think>5</think><answer>12</answer>", 0.2),
        ("<think>7</think><answer>12</answer><answer>13</answer>", 0.2),
        ("<think>7+5", 0.2),
        ("</think>7<think>", 0.2),
        ("<thinking>7</thinking>", 0.0),
        ("", 0.0),
    ],
)
def test_think_tags(text: str, value: float) -> None:
    assert think_tags(rollout(text), None, partial=0.2) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>7+5=12</think>", 1.0),
        ("<think>first</think> so <think>second</think>", 1.0),
        ("<think>outer <think>inner</think> again</think>", 1.0),
        ("<think><think>inner</think></think>", 1.0),
        ("<think></think><think>7</think>", 1.0),
        ("< THINK\n>7</\tthink >12", 1.0),
        ("<think> \n\t</think>", 0.2),
        ("<think><think></think></think>", 0.2),
        ("<think>7+5", 0.2),
        ("7+5</think>", 0.2),
        ("a</think> b <think>", 0.2),
        ("<answer>12</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_any_think_block(text: str, value: float) -> None:
    assert think_tags(rollout(text), None, partial=0.2, which="any") == value


def test_think_tags_of_another_name() -> None:
    assert (
        think_tags(rollout("<\u601d\u8003>7</\u601d\u8003>"), None, which="any", tag="\u601d\u8003")
        == 1
    )
    assert think_tags(rollout("<think>7</think>"), None, which="any", tag="plan", partial=0.2) == 0
    both = rollout("<Plan>7</plan><answer>12</answer>")
    assert think_tags(both, None, tag="plan") == 1.0


@pytest.mark.parametrize(
    ("text", "which", "answer"),
    [
        ("<answer>1</answer> no: <answer>2</answer>", "first", "1"),
        ("<answer>1</answer> no: <answer>2</answer>", "first_tag", "1"),
        ("<answer>1</answer> no: <answer>2</answer>", "last_tag", "2"),
        ("I use <answer> tags: <answer>1</answer><answer>2</answer>", "first_tag", "1"),
        ("1</answer><answer>2</answer>", "first_tag", "2"),
        ("\\boxed{1} and \\boxed{2}", "first", "1"),
        ("\\boxed{1} and \\boxed{2}", "first_tag", None),
        ("1 and 2", "first", "1"),
        ("1 and 2", "last", "2"),
        ("1 and 2", "last_tag", None),
        ("", "first", None),
    ],
)
def test_which_answer_is_read(text: str, which: str, answer: str | None) -> None:
    assert answer_of(text, which) == answer


@pytest.mark.parametrize(
    ("text", "target", "value"),
    [
        ("<answer>42</answer>", "42", 1.0),
        ("<answer>\n42.0000001 </answer>", "42", 1.0),
        ("I found 42, and put <answer>43</answer>", "42", 0.1),
        ("42 + 1 = 43. <answer>43</answer>", "42", 0.1),
        ("so 117 <answer>118</answer>", "117.0", 0.1),
        ("so 1,170 <answer>118</answer>", "117", 0.0),
        ("so 1,170.0 <answer>118</answer>", "1170", 0.1),
        ("<answer>41</answer> <answer>42</answer>", "42", 0.0),
        ("<answer>none</answer> but 42", "42", 0.1),
        ("it is 42", "42", 0.1),
        ("it is", "42", 0.0),
        ("<answer>42</answer>", "100", 0.0),
        ("<answer>42</answer>", "", 0.0),
        ("a word <answer>42</answer>", "word", 0.0),
    ],
)
def test_a_number_elsewhere_is_a_part(text: str, target: str, value: float) -> None:
    assert math_equal(rollout(text), target, which="first_tag", partial=0.1) == value


def test_a_part_for_another_number_than_the_last() -> None:
    assert math_equal(rollout("42 or 43"), "42", partial=0.1) == 0.1
    assert math_equal(rollout("42 or 43"), "43", partial=0.1) == 1.0
    assert math_equal(rollout("42 or 43"), "42") == 0.0


def test_scans_are_linear() -> None:
    def spent(size: int) -> float:
        """Seconds of processor, the least of three."""
        spans = []
        for _ in range(3):
            began = time.process_time()
            think_tags(rollout("<think>" * size), None)
            answer_of("<answer>" * size + "</answer>" * size)
            answer_of("1," * size)
            think_tags(rollout("<think>" * size), None, which="any")
            math_equal(rollout("1 <answer>" * size + "</answer>" * size), "2", partial=0.1)
            spans.append(time.process_time() - began)
        return min(spans)

    assert spent(80_000) < 32 * spent(10_000)  # 8 where it is linear, 64 where it is square


def test_text_rewards() -> None:
    assert exact(rollout(" Paris\n"), "Paris") == 1.0
    assert exact(rollout("paris"), "Paris") == 0.0
    assert exact(rollout("paris"), "Paris", lower=True) == 1.0
    assert contains(rollout("it is Paris."), "Paris") == 1.0
    assert contains(rollout("it is Paris."), "") == 0.0
    assert contains(rollout("it is Paris."), None, text="IS", lower=True) == 1.0
    assert format_regex(rollout("<a>x\ny</a>\n"), None, pattern="<a>.*</a>") == 1.0
    assert format_regex(rollout("<a>x</a>, done"), None, pattern="<a>.*</a>") == 0.0


def test_overlong_falls_from_soft_to_hard() -> None:
    penalties = [overlong(rollout("", n), None, soft=10, hard=20) for n in (0, 10, 15, 20, 99)]
    assert penalties == [0.0, 0.0, -0.5, -1.0, -1.0]


EMPTY = ModuleType("program")


def python_reward(tmp_path: Path, text: str, function: str = "f", **extra: object) -> job.Reward:
    path = tmp_path / "inputs" / "user.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if "inputs" not in extra:
        extra.setdefault("positional", ("prompt", "response", "target"))
    return job.Reward(
        kind="python", function=function, path="inputs/user.py", sha256=digest, **extra
    )


def test_standard_reward_is_loaded_with_its_settings(tmp_path: Path) -> None:
    spec = job.Reward(kind="std", function="think_tags", args={"partial": 0.3})
    assert load_reward(spec, EMPTY, tmp_path)(rollout("<think>"), None) == 0.3


def test_program_reward_gets_the_rollout(tmp_path: Path) -> None:
    program = SimpleNamespace(brevity=lambda r, limit: 1.0 - r.num_tokens / limit)
    spec = job.Reward(kind="program", function="brevity", args={"limit": 4})
    assert load_reward(spec, program, tmp_path)(rollout("x", 1), None) == 0.75


def test_python_reward_gets_prompt_response_target(tmp_path: Path) -> None:
    text = "def f(prompt, response, target):\n    return (prompt, response, target) == "
    spec = python_reward(tmp_path, text + "('37+85=', 'x', 122)\n")
    assert load_reward(spec, EMPTY, tmp_path)(rollout("x"), 122) == 1.0


def test_python_reward_may_take_the_rollout(tmp_path: Path) -> None:
    text = "def f(r, target): return r.num_tokens + target\n"
    spec = python_reward(tmp_path, text, inputs={"r": "rollout", "target": "target"})
    assert load_reward(spec, EMPTY, tmp_path)(rollout("x", 4), 1) == 5.0


def test_async_python_reward_gives_a_checked_coroutine(tmp_path: Path) -> None:
    spec = python_reward(tmp_path, "async def f(p, r, t): return float(t)\n")
    reward = load_reward(spec, EMPTY, tmp_path)
    assert asyncio.run(reward(rollout("x"), 2)) == 2.0
    with pytest.raises(ValueError, match="f returned nan, which is not finite"):
        asyncio.run(reward(rollout("x"), "nan"))


def test_an_object_is_made_with_its_arguments_and_keeps_its_state(tmp_path: Path) -> None:
    text = (
        "class Judge:\n"
        "    def __init__(self, scale): self.scale, self.calls = scale, 0\n"
        "    def __call__(self, response):\n"
        "        self.calls += 1\n"
        "        return self.scale * self.calls\n"
    )
    named = {"response": "response"}
    spec = python_reward(tmp_path, text, "Judge", makes="class", args={"scale": 2}, inputs=named)
    judge = load_reward(spec, EMPTY, tmp_path)
    assert [judge(rollout("x"), None), judge(rollout("x"), None)] == [2.0, 4.0]


def test_an_object_that_cannot_be_made_is_a_launch_error(tmp_path: Path) -> None:
    text = "class Judge:\n    def __init__(self, scale): raise OSError('no weights')\n"
    spec = python_reward(tmp_path, text, "Judge", makes="class", args={"scale": 2})
    with pytest.raises(LaunchError, match=r"Judge\(scale = 2\) failed: OSError: no weights"):
        load_reward(spec, EMPTY, tmp_path)


def test_columns_come_by_name_and_defaults_stand_where_a_row_has_none(tmp_path: Path) -> None:
    text = "def f(response, level, bonus=5): return level + bonus\n"
    inputs = {"response": "response", "level": "column level", "bonus": "column? bonus"}
    reward = load_reward(python_reward(tmp_path, text, inputs=inputs), EMPTY, tmp_path)
    call = rollout("x")
    call.prompt.columns = {"level": 3}
    assert reward(call, None) == 8.0
    call.prompt.columns = {"bonus": 1}
    with pytest.raises(
        ValueError, match=r"no column `level`, .* parameter of the reward; it has bonus"
    ):
        reward(call, None)


def test_messages_are_those_of_the_chat_or_one_of_the_user(tmp_path: Path) -> None:
    text = "def f(response, messages): return len(messages) + (messages[0]['role'] == 'user')\n"
    inputs = {"response": "response", "messages": "messages"}
    reward = load_reward(python_reward(tmp_path, text, inputs=inputs), EMPTY, tmp_path)
    call = rollout("x")
    assert reward(call, None) == 2.0
    call.prompt.messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    assert reward(call, None) == 2.0


TRL = """
def f(prompts, completions, answer, **kwargs):
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(t == a and kwargs["level"] == [7]) for t, a in zip(texts, answer)]
"""


@pytest.mark.parametrize("chat", [None, [{"role": "user", "content": "37+85="}]])
def test_a_reward_of_trl_gets_lists_of_one(tmp_path: Path, chat: list[dict[str, str]]) -> None:
    inputs = {
        "prompts": "prompt", "completions": "response", "answer": "column answer", "**": "row",
    }  # fmt: skip
    spec = python_reward(tmp_path, TRL, inputs=inputs, lists=True)
    call = rollout("122")
    call.prompt.columns = {"answer": "122", "level": 7}
    call.prompt.messages = chat
    assert load_reward(spec, EMPTY, tmp_path)(call, None) == 1.0


def test_a_reward_of_trl_returns_a_list(tmp_path: Path) -> None:
    text = "def f(completions): return 1.0\n"
    spec = python_reward(tmp_path, text, inputs={"completions": "response"}, lists=True)
    with pytest.raises(ValueError, match="must return a list with one number for each, not float"):
        load_reward(spec, EMPTY, tmp_path)(rollout("x"), None)


def test_two_rewards_of_a_file_share_its_state(tmp_path: Path) -> None:
    text = (
        "seen = []\ndef f(*args): return seen.append(args) or 0\ndef g(*args): return len(seen)\n"
    )
    first = load_reward(python_reward(tmp_path, text, "f"), EMPTY, tmp_path)
    second = load_reward(python_reward(tmp_path, text, "g"), EMPTY, tmp_path)
    first(rollout("x"), None)
    assert second(rollout("x"), None) == 1.0


@pytest.mark.parametrize("value", ["None", "'1.0'", "[1.0]", "float('inf')", "float('nan')"])
def test_what_is_no_finite_number_is_refused(tmp_path: Path, value: str) -> None:
    spec = python_reward(tmp_path, f"def f(p, r, t): return {value}\n")
    with pytest.raises(ValueError, match=r"^f returned .*(expected a number.*|not finite)$"):
        load_reward(spec, EMPTY, tmp_path)(rollout("x"), None)


def test_a_reward_that_forgets_an_await_is_told(tmp_path: Path) -> None:
    text = "async def g(): return 1.0\nasync def f(p, r, t): return g()\n"
    found = load_reward(python_reward(tmp_path, text), EMPTY, tmp_path)(rollout("x"), None)
    with pytest.raises(ValueError, match=r"^f returned coroutine <.*: is an `await` missing\?$"):
        asyncio.run(found)


def test_changed_file_is_refused(tmp_path: Path) -> None:
    spec = python_reward(tmp_path, "def f(p, r, t): return 1\n")
    (tmp_path / "inputs" / "user.py").write_text("def f(p, r, t): return 2\n")
    with pytest.raises(LaunchError, match="is not the file the job was built with"):
        load_reward(spec, EMPTY, tmp_path)


def test_missing_file_missing_function_and_failing_import_are_launch_errors(tmp_path: Path) -> None:
    missing = job.Reward(kind="python", function="f", path="inputs/no.py", sha256="0")
    with pytest.raises(LaunchError, match=r"inputs/no\.py is missing"):
        load_reward(missing, EMPTY, tmp_path)
    with pytest.raises(LaunchError, match="has no function of this name"):
        load_reward(python_reward(tmp_path, "x = 1\n"), EMPTY, tmp_path)
    with pytest.raises(LaunchError, match="ModuleNotFoundError: No module named 'nowhere'"):
        load_reward(python_reward(tmp_path, "import nowhere\n"), EMPTY, tmp_path)
