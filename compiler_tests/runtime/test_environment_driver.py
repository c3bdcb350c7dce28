"""The driver of a trajectory: tokens, masks, ends, failures; engine and session are ours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fake_endpoints import run

from forgedsl.environment import Environment, Start, Step, Task, Turn, tool, tools_of
from forgedsl.lower import job as spec
from forgedsl.tool_calls import calls_in
from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.data_types import Prompt
from forgedsl_runtime.endpoints import RolloutError, seed_of
from forgedsl_runtime.environments.bridge import Bridge, Conversation
from forgedsl_runtime.environments.driver import Crash, Driver, Late, Limits

TOKENIZER = Path(__file__).parents[2] / "pipelines/tokenizers/arithmetic"
EOS = 2
APPENDS = (
    "{% for m in messages %}<{{ m['content'] }}>"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}={% endif %}"
)
QWEN = (
    "{% if tools %}[{{ tools[0]['function']['name'] | length }}]{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'assistant' %}:{{ m['content'] }}{{ eos_token }}\n"
    "{% else %}({{ m['content'] }})\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}:{% endif %}"
)
DROPS = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}:"
    "{{ m['content'].split('+')[-1] }}{{ eos_token }}\n"
    "{% else %}({{ m['content'] }})\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}:{% endif %}"
)
REWRITES = (
    "{{ messages | length }}{% for m in messages %}({{ m['content'] }}){% endfor %}"
    "{% if add_generation_prompt %}:{% endif %}"
)


def tokenizer(template: str | None = None) -> ChatTokenizer:
    return ChatTokenizer.load(str(TOKENIZER), template)


def ids(text: str) -> list[int]:
    return list(tokenizer().tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass(slots=True, kw_only=True)
class Done:
    """What an engine gives back."""

    token_ids: list[int]
    logprobs: list[float]
    mask: list[bool]
    text: str
    truncated: bool
    versions: tuple[tuple[int, int], ...]
    started: float = 1.0
    finished: float = 2.0
    running: int = 3
    routes: None = None


@dataclass
class Engine:
    """Answers with `texts` in turn; what it was given is in `seen`."""

    texts: Sequence[str]
    seen: list[list[int]] = field(default_factory=list)
    asked: list[spec.Sampling] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    seconds: float = 0.0

    async def __call__(self, token_ids: list[int], sampling: spec.Sampling, seed: int) -> Done:
        text = self.texts[len(self.seen) % len(self.texts)]
        version = len(self.seen)
        self.seen.append(list(token_ids))
        self.asked.append(sampling)
        self.seeds.append(seed)
        await asyncio.sleep(self.seconds)
        assert sampling.max_tokens is not None
        tokens = [*ids(text), EOS]
        cut = len(tokens) > sampling.max_tokens
        tokens = tokens[: sampling.max_tokens]
        return Done(
            token_ids=tokens, logprobs=[-0.5] * len(tokens), mask=[True] * len(tokens), text=text,
            truncated=cut, versions=((version, len(tokens)),),
        )  # fmt: skip


class Session:
    """Gives `steps` in turn; an exception among them is raised."""

    def __init__(self, steps: Sequence[Step | Exception], start: Start | None = None) -> None:
        self.steps, self.start = list(steps), start or Start()
        self.turns: list[Turn] = []
        self.tasks: list[tuple[Task, int]] = []
        self.closed = 0

    async def reset(self, task: Task, seed: int) -> Start:
        self.tasks.append((task, seed))
        return self.start

    async def step(self, turn: Turn) -> Step:
        self.turns.append(turn)
        step = self.steps[min(turn.number, len(self.steps) - 1)]
        await asyncio.sleep(0)
        if isinstance(step, Exception):
            raise step
        return step

    def close(self) -> None:
        self.closed += 1


def environment(**more: Any) -> spec.Environment:
    parts: dict[str, Any] = {
        "type_name": "Desk",
        "path": "desk.py",
        "sha256": "",
        "parts": ("found",),
    }
    return spec.Environment(**parts | more)


def prompt(text: str = "1+1=", messages: list[dict[str, Any]] | None = None) -> Prompt:
    return Prompt(group=7, row=3, text=text, token_ids=ids(text), target="2", messages=messages)


def limits(**more: Any) -> Limits:
    given: dict[str, Any] = {
        "sampling": spec.Sampling(max_tokens=8),
        "turns": 9,
        "max_row_tokens": 99,
    }
    return Limits(**given | more)


def play(
    engine: Engine,
    *sessions: Session,
    of: spec.Environment | None = None,
    bridge: Bridge | None = None,
    at: Prompt | None = None,
    **more: Any,
) -> Any:
    """The rollout of one play; its tries take the sessions in turn."""
    left, failed = list(sessions), []
    driver = Driver(
        of or environment(), bridge or Bridge(tokenizer()), lambda: left.pop(0),
        lambda cause, prompt: failed.append(cause),
    )  # fmt: skip
    return run(driver.play(engine, at or prompt(), 5, 11, limits(**more)))


# ---- tokens


def test_a_turn_sees_exactly_the_tokens_before_it() -> None:
    engine = Engine(["3", "2"])
    rollout = play(engine, Session([Step("?"), Step(done=True)]))
    whole = [*rollout.prompt.token_ids, *rollout.token_ids]
    assert engine.seen == [ids("1+1="), [*ids("1+1=3"), EOS, *ids("?")]]
    assert whole == [*engine.seen[-1], *ids("2"), EOS]


def test_the_mask_covers_what_the_policy_wrote_and_nothing_else() -> None:
    rollout = play(Engine(["3", "2"]), Session([Step("??"), Step(done=True)]))
    assert rollout.mask == [True, True, False, False, True, True]
    assert rollout.logprobs == [-0.5, -0.5, 0.0, 0.0, -0.5, -0.5]
    assert (rollout.num_tokens, rollout.num_observed, rollout.turns) == (4, 2, 2)
    assert (rollout.text, rollout.versions) == ("3??2", ((0, 2), (1, 2)))
    assert (rollout.version_min, rollout.version_max) == (0, 1)


def test_an_observation_is_cut_and_cannot_end_a_turn() -> None:
    session = Session([Step("<eos>12345"), Step(done=True)])
    rollout = play(Engine(["3"]), session, of=environment(max_observation=3))
    assert rollout.token_ids[2:5] == ids("123")
    assert rollout.mask[2:6] == [False, False, False, True]


def test_what_the_environment_says_first_belongs_to_the_prompt() -> None:
    rollout = play(Engine(["3"]), Session([Step(done=True)], Start("+2=")))
    assert rollout.prompt.token_ids == ids("1+1=+2=")
    assert rollout.mask == [True, True]


def test_every_turn_has_a_seed_of_its_own_and_siblings_share_that_of_the_environment() -> None:
    engine, session = Engine(["3"]), Session([Step("?"), Step(done=True)])
    play(engine, session)
    other = Session([Step(done=True)])
    play(Engine(["4"]), other)
    assert len(set(engine.seeds)) == 2
    assert session.tasks == other.tasks


# ---- chats


def chat(template: str, tools: Sequence[dict[str, Any]] = ()) -> Bridge:
    return Bridge(tokenizer(template), tools)


def test_a_chat_continues_as_its_template_writes_it() -> None:
    messages = [{"role": "user", "content": "1"}]
    engine = Engine(["3", "2"])
    at = prompt("(1)\n:", messages)
    play(engine, Session([Step("no"), Step(done=True)]), bridge=chat(QWEN), at=at)
    assert engine.seen[1] == [*ids("(1)\n:3"), EOS, *ids("\n(no)\n:")]


def counted() -> tuple[ChatTokenizer, list[int]]:
    """A tokenizer, and the lengths of the texts that it makes tokens of."""
    made = tokenizer(QWEN)
    asked, read = [], made.tokenizer

    class Counting:
        chat_template = read.chat_template
        get_vocab, decode = staticmethod(read.get_vocab), staticmethod(read.decode)

        def __call__(self, text: str, **given: Any) -> Any:
            asked.append(len(text))
            return read(text, **given)

    made.tokenizer = Counting()
    return made, asked


def test_of_an_observation_of_megabytes_only_the_beginning_is_read() -> None:
    made, asked = counted()
    tokens, _ = Bridge(made).tokens_after(ids("3"), "1+2" * 1_000_000, 9, chat=False)
    assert len(tokens) == 9
    assert max(asked) < 10_000


def test_of_a_short_observation_tokens_are_made_once() -> None:
    made, asked = counted()
    assert Bridge(made).tokens_after(ids("3"), "1+2", 9, chat=False) == (ids("1+2"), "1+2")
    assert asked == [3]


def test_siblings_find_the_tokens_of_their_prompt_made() -> None:
    bridge, at = chat(QWEN), prompt("", [{"role": "user", "content": "1"}])
    first, second = (bridge.first_prompt(at, "+2", 9) for _ in range(2))
    assert (first.text, first.token_ids) == ("(1)\n(+2)\n:", ids("(1)\n(+2)\n:"))
    assert second is first
    assert bridge.first_prompt(at, "+3", 9).text == "(1)\n(+3)\n:"


def test_every_turn_has_the_seed_of_its_number() -> None:
    engine = Engine(["3"])
    play(engine, Session([Step("")]), turns=10)
    assert engine.seeds == [seed_of(11, number) for number in range(10)]


def test_a_turn_that_no_end_token_closed_is_closed_by_the_bridge() -> None:
    tokens, text = chat(QWEN).tokens_after(ids("3"), "no", 9, chat=True)
    assert tokens[0] == EOS
    assert text.endswith("\n(no)\n:")


def test_a_template_that_rewrites_what_was_said_is_told_where_it_is_not_followed() -> None:
    assert chat(QWEN).appends()
    assert not chat(REWRITES).appends()
    drivers = [
        Driver(environment(history=history), chat(REWRITES), lambda: Session([]), print)
        for history in ("append", "template")
    ]
    assert [bool(driver.template_warning()) for driver in drivers] == [True, False]


def published(name: str) -> str:
    """A published chat template, of those that TRL ships."""
    found = find_spec("trl")
    if found is None or found.origin is None:
        pytest.skip("trl is not installed")
    return (Path(found.origin).parent / f"chat_templates/{name}.jinja").read_text()


@pytest.mark.parametrize("name", ["qwen3_training", "qwen3_5_think_training", "qwen3_6_training"])
def test_templates_that_write_every_thought_append(name: str) -> None:
    template = published(name)
    assert chat(template).appends()
    assert chat(template, list(tools_of(Desk).values())).appends()


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "glm4moe", "diffusion_gemma"])
def test_templates_that_drop_earlier_thoughts_do_not_append(name: str) -> None:
    assert not chat(published(name)).appends()


def test_qwen3_keeps_thoughts_where_tool_results_follow() -> None:
    assert chat(published("qwen3"), list(tools_of(Desk).values())).appends()


# ---- rows: a template that drops what stands before the last "+" of earlier turns


def follows(*texts: str, **more: Any) -> tuple[Engine, Any]:
    """A play with `history = template`, in which every turn is followed by an observation."""
    engine = Engine(texts)
    steps = [Step("7") for _ in texts[1:]]
    rollout = play(
        engine, Session([*steps, Step(done=True)]), of=environment(history="template"),
        bridge=chat(DROPS), at=prompt("(1)\n:", [{"role": "user", "content": "1"}]), **more,
    )  # fmt: skip
    return engine, rollout


def test_what_a_template_rewrites_is_the_prompt_of_another_row() -> None:
    engine, rollout = follows("12+3", "45+6")
    assert engine.seen == [ids("(1)\n:"), [*ids("(1)\n:3"), EOS, *ids("\n(7)\n:")]]
    first, row = [*ids("12+3"), EOS], engine.seen[1]
    assert rollout.token_ids == [*first, *row, *ids("45+6"), EOS]
    assert rollout.row_starts == (len(first),)
    assert rollout.starts == (len(rollout.prompt.token_ids) + len(first),)


def test_every_answer_is_learned_once_with_its_log_probs_and_version() -> None:
    _, rollout = follows("12+3", "45+6", "2+8")
    written = [token for token, own in zip(rollout.token_ids, rollout.mask, strict=True) if own]
    assert written == [*ids("12+3"), EOS, *ids("45+6"), EOS, *ids("2+8"), EOS]
    pairs = zip(rollout.logprobs, rollout.mask, strict=True)
    assert all(value == (-0.5 if own else 0.0) for value, own in pairs)
    assert (rollout.versions, rollout.num_tokens) == (((0, 5), (1, 5), (2, 4)), len(written))
    assert rollout.play == {"turns": 3, "ended": "done", "rows": 3}


def test_a_turn_that_the_template_writes_as_it_was_goes_on_in_its_row() -> None:
    engine, rollout = follows("3", "45+6", "8")
    assert engine.seen[1] == [*engine.seen[0], *ids("3"), EOS, *ids("\n(7)\n:")]
    assert len(rollout.row_starts) == 1
    assert rollout.token_ids[rollout.row_starts[0] :][: len(engine.seen[2])] == engine.seen[2]


def test_rows_together_are_no_longer_than_what_the_trainer_holds() -> None:
    for max_total_tokens in range(13, 60):
        _, rollout = follows(
            "12+3", "45+6", "2+8", max_total_tokens=max_total_tokens, max_row_tokens=30
        )
        whole = [*rollout.prompt.token_ids, *rollout.token_ids]
        assert len(whole) <= max_total_tokens
        assert any(rollout.mask)
    assert rollout.ended == "done"


def test_qwen3_opens_a_row_behind_a_thought_and_goes_on_behind_a_tool() -> None:
    bridge = chat(published("qwen3"))
    at = prompt("", [{"role": "user", "content": "1"}])
    thought = "<think>\nso\n</think>\n\n2"
    talk = Conversation(bridge, at, (), 9)
    assert talk.new_row_prompt("2", "3") is None
    assert talk.new_row_prompt(thought, "3") is not None
    talk = Conversation(bridge, at, (), 9)
    assert talk.new_row_prompt(thought, [{"role": "tool", "content": "7"}]) is None


def test_tools_are_shown_by_the_template_and_their_results_are_messages() -> None:
    messages = [{"role": "user", "content": "1"}]
    bridge = chat(QWEN, list(tools_of(Desk).values()))
    engine = Engine(["3", "2"])
    step = Step([{"role": "tool", "name": "lookup", "content": "7"}])
    play(engine, Session([step, Step(done=True)]), bridge=bridge, at=prompt("", messages))
    assert engine.seen[0] == ids("[6](1)\n:")
    assert engine.seen[1][len(engine.seen[0]) + 2 :] == ids("\n(7)\n:")


# ---- ends


def test_the_ways_a_trajectory_ends() -> None:
    again = [Step("?")]
    assert play(Engine(["3"]), Session([Step(done=True)])).ended == "done"
    assert play(Engine(["3"]), Session(again), turns=3).turns == 3
    assert play(Engine(["3"]), Session(again), turns=3).ended == "turns"
    assert play(Engine(["3"]), Session(again), max_row_tokens=10).ended == "tokens"
    assert play(Engine(["123456789"]), Session(again)).ended == "tokens"
    slow = Engine(["3"], seconds=4.0)
    late = play(slow, Session(again), of=environment(deadline=10.0))
    assert (late.ended, late.turns, late.truncated) == ("time", 2, False)


def test_no_trajectory_is_longer_than_what_holds_it() -> None:
    for max_row_tokens in range(5, 20):
        rollout = play(Engine(["3"]), Session([Step("?")]), max_row_tokens=max_row_tokens)
        assert len(rollout.prompt.token_ids) + len(rollout.token_ids) <= max_row_tokens


def test_a_turn_that_was_cut_is_not_shown_to_the_environment() -> None:
    session = Session([Step("?")])
    rollout = play(Engine(["123456789"]), session)
    assert (session.turns, rollout.truncated, session.closed) == ([], True, 1)


def test_rewards_add_up_over_the_turns() -> None:
    steps = [Step("?", {"found": 0.25}), Step(rewards={"found": 0.5}, done=True)]
    assert play(Engine(["3"]), Session(steps)).rewards == {"found": 0.75}


def test_a_reward_of_a_turn_stands_at_the_last_token_that_the_policy_wrote_in_it() -> None:
    steps = [Step("?", {"found": 0.25}), Step("?"), Step(rewards={"found": 0.5}, done=True)]
    rollout = play(Engine(["34", "5", "6"]), Session(steps))
    said = [tokenizer().decode([token]) for token in rollout.token_ids]
    assert said == ["3", "4", "<eos>", "?", "5", "<eos>", "?", "6", "<eos>"]
    assert rollout.part("found") == [0, 0, 0.25, 0, 0, 0, 0, 0, 0.5]


# ---- failures


def test_a_step_that_is_late_is_told_to_the_policy() -> None:
    engine = Engine(["3"])
    rollout = play(engine, Session([Late("no answer within 5 s"), Step(done=True)]))
    assert rollout.ended == "done"
    assert "no answer within 5 s" in rollout.text


def test_a_crash_is_tried_once_more_with_the_same_seeds() -> None:
    first, second = Session([Crash("gone")]), Session([Step(done=True)])
    engine = Engine(["3"])
    rollout = play(engine, first, second, of=environment(on_error=0.0))
    assert (rollout.ended, rollout.fixed) == ("done", None)
    assert engine.seeds[0] == engine.seeds[1]
    assert first.tasks == second.tasks
    assert (first.closed, second.closed) == (1, 1)


def test_a_second_crash_is_scored_as_on_error_says() -> None:
    sessions = Session([Step("?"), Crash("a")]), Session([Step("?"), Crash("b")])
    rollout = play(Engine(["3"]), *sessions, of=environment(on_error=0.25))
    assert (rollout.ended, rollout.fixed, rollout.turns) == ("error", 0.25, 2)


def test_what_another_trajectory_did_is_no_failure_of_this_one() -> None:
    lost = [Session([Crash("gone", collateral=True)]) for _ in range(3)]
    rollout = play(Engine(["3"]), *lost, Session([Step(done=True)]))
    assert rollout.ended == "done"


def test_a_crash_that_is_to_drop_is_left_to_the_controller() -> None:
    with pytest.raises(RolloutError, match="its environment failed: gone"):
        play(Engine(["3"]), Session([Crash("gone")]))


# ---- calls and tools


class Desk(Environment):
    @tool
    async def lookup(self, key: str, many: int = 1) -> str:
        """The price of a thing."""
        return f"{key} {many}"


def test_calls_are_read_behind_the_thinking_with_the_state_of_each() -> None:
    good = '<tool_call>\n{"name": "lookup", "arguments": {"key": "k"}}\n</tool_call>'
    text = f"<think><tool_call>{{}}</tool_call></think>{good}<tool_call>{{</tool_call>"
    text += '<tool_call>{"arguments": {}}</tool_call><tool_call>{"name": "l"'
    assert [c.status for c in calls_in(text)] == ["ok", "invalid_json", "missing_name", "unclosed"]
    assert (calls_in(good)[0].name, calls_in(good)[0].arguments) == ("lookup", {"key": "k"})


def test_the_schema_of_a_tool_is_its_annotations_and_docstring() -> None:
    schema = tools_of(Desk)["lookup"]["function"]
    assert schema["description"] == "The price of a thing."
    assert schema["parameters"] == {
        "type": "object",
        "properties": {"key": {"type": "string"}, "many": {"type": "integer"}},
        "required": ["key"],
    }


def test_by_default_calls_are_made_in_order_and_a_turn_without_one_is_the_last() -> None:
    good = '<tool_call>{"name": "lookup", "arguments": {"key": "k"}}</tool_call>'
    bad = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    step = asyncio.run(Desk().step(Turn(text="", calls=calls_in(good + bad))))
    told = [message["content"] for message in step.observation]
    assert told == ["k 1", "error: there is no tool look; there are lookup"]
    assert asyncio.run(Desk().step(Turn(text="so"))).done
