"""What columns and rewards may read of nested rows, from the text of a file to its value."""

from types import SimpleNamespace

import pytest

from forgedsl.api import load_text
from forgedsl.emit.python import emit_program
from forgedsl.errors import SourceError
from forgedsl_runtime.data_types import Prompt, Rollout
from forgedsl_runtime.modules import load_module
from forgedsl_runtime.program import Row, RowError
from forgedsl_runtime.tracebacks import described

TEXT = """
import "std/rl" as rl
param systems : list = ["short", "long"]
fn asked(r: Row) -> str = r.meta.q
model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256 }
dataset sums { source = jsonl("forgedsl:data/arithmetic.jsonl"), prompt = PROMPT, target = TARGET }
service trainer : titan(policy) { device = cpu, optimizer.lr = 1e-4, batch { seq_len = 64 } }
service generator : vllm(policy) { device = cpu, sampling { max_tokens = systems[2 - 2] } }
reward own(r: Rollout) -> f32 = REWARD
flow train {
  prompt  = sums.draw(8)
  rollout = generator.sample(prompt, n = 4)
  score   = own(rollout, prompt.target)
  trainer.step(replay(rollout, adv = rl.rloo(score)), loss = rl.reinforce)
  sync trainer -> generator
}
schedule sync { steps = 1 }
""".replace('["short", "long"]', "[16, 32]")
ROW = {
    "meta": {"q": "1+1=", "tags": ["a", "b"]},
    "messages": [{"role": "user", "content": "2+2="}],
    "choices": ["3", "4"],
    "label": 1,
    "items": "columns may be called like methods",
    "said": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}],
    "odd": [{"from": "narrator", "value": "once"}],
    "nothing": None,
}


def program_of(prompt="row.meta.q", target="row", reward="1.0"):
    text = TEXT.replace("PROMPT", prompt).replace("TARGET", target).replace("REWARD", reward)
    loaded = load_text(text, "sums.forge")
    return emit_program(loaded.checked, loaded.sources)


def module_of(prompt="row.meta.q", target="row", reward="1.0"):
    names: dict[str, object] = {}
    exec(compile(program_of(prompt, target, reward), "<program>", "exec"), names)
    return SimpleNamespace(**{k: v for k, v in names.items() if not k.startswith("__")})


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("row.meta.q", "1+1="),
        ('row.meta["q"]', "1+1="),
        ('row["meta"].q', "1+1="),
        ('row["meta"]["q"]', "1+1="),
        ("row.messages[0].content", "2+2="),
        ('row.messages[-1]["content"]', "2+2="),
        ("row.choices[row.label]", "4"),
        ('row.meta.tags[0] + "!"', "a!"),
        ("row.items", ROW["items"]),
        ("asked(row)", "1+1="),
    ],
)
def test_nested_columns_and_indices(expression, value):
    assert module_of(prompt=expression).dataset_sums_prompt(Row(ROW)) == value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ('"no. " + text(row.label)', "no. 1"),
        ("text(row.label * 0.5) + text(row.label == 1)", "0.5true"),
        ('strip(row.meta.q + row.items) + "!"', "1+1=columns may be called like methods!"),
        ("text(row.meta.q)", "1+1="),
        ('row.choices[1 if row.meta.q != "2+2=" else 0]', "4"),
    ],
)
def test_text_is_joined_with_numbers_by_text(expression, value):
    assert module_of(prompt=expression).dataset_sums_prompt(Row(ROW)) == value


@pytest.mark.parametrize(
    ("expression", "message", "help_text"),
    [
        ('"no. " + 1', "text is needed here, but this is a number", ("`text(...)` converts it to "
                                                                     "text")),
        ('row.a + ("1" if "2" == 2 else "3")', "text and a number are never equal",
         "`text(...)` converts it to text"),
    ],
)  # fmt: skip
def test_text_and_numbers_are_told_apart(expression, message, help_text):
    with pytest.raises(SourceError) as caught:
        program_of(prompt=expression)
    assert (message, help_text) in [(d.message, d.help) for d in caught.value.diagnostics]


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("row.meta.q + row.label", "`row.meta.q + row.label`: `row.meta.q` is text, `row.label` is "
         "a number; `text(row.label)` converts it to text (at sums.forge:6:"),
        ("row.label + row.choices[0]", "`text(row.label)` converts it to text"),
        ("-row.items", "`-row.items`: `row.items` is text (at"),
        ("abs(row.nothing)", "`abs(row.nothing)`: `row.nothing` is null (at"),
        ("text(row.choices)", ("RowError: `text` reads a number, true or false, but this is a list "
                               "(at")),
        ('row.items if "1" == row.label else row.meta.q',
         "RowError: text never equals the number 1: convert the number with `text(...)` (at"),
    ],
)  # fmt: skip
def test_operands_that_do_not_go_together_are_named_at_run(expression, why):
    module = load_module("program", program_of(target=expression))
    with pytest.raises((TypeError, RowError)) as caught:
        module.dataset_sums_target(Row(ROW))
    assert why in described(caught.value)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("chat(none, row.meta.q)", [("user", "1+1=")]),
        ("chat(user = row.meta.q)", [("user", "1+1=")]),
        ('chat(user = row.meta.q, assistant = "2", system = "s")',
         [("system", "s"), ("user", "1+1="), ("assistant", "2")]),
        ("sharegpt(row.said)", [("user", "hi"), ("assistant", "ho")]),
        ('chat("s", paragraphs(row.meta.q, row.nothing, "", "b"))',
         [("system", "s"), ("user", "1+1=\n\nb")]),
    ],
)  # fmt: skip
def test_messages_of_columns(expression, value):
    found = module_of(prompt=expression).dataset_sums_prompt(Row(ROW))
    assert [(message["role"], message["content"]) for message in found] == value


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("chat(user = row.nothing)", "the user's turn of `chat` is null"),
        ("chat(user = row.meta.q, assistant = row.nothing)", "the assistant's turn of `chat`"),
        ("sharegpt(row.meta.q)", "`sharegpt` reads a list of turns, but this is text"),
        ("sharegpt([row.said[1], row.meta])", "has no `from`; it has q, tags"),
        ("sharegpt(row.odd)", "turn 0 is from 'narrator'; `from` must be one of human, user, gpt"),
    ],
)
def test_turns_that_cannot_be_read(expression, why):
    with pytest.raises(RowError, match=why):
        module_of(prompt=expression).dataset_sums_prompt(Row(ROW))


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ('chat(assistant = "2")', "`chat` needs its `user`"),
        ("chat(row.meta.q)", "`chat` needs its `user`"),
        ("paragraphs(row.meta.q)", "`paragraphs` takes 2 arguments, not 1"),
    ],
)
def test_arguments_of_messages(expression, message):
    loaded = load_text(TEXT.replace("PROMPT", expression).replace("TARGET", "row"), "sums.forge")
    assert [d.message for d in loaded.reporter if d.code == "F114"] == [message]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("row", ROW),
        ("row.meta", ROW["meta"]),
        ("[row.label, row.choices]", [1, ["3", "4"]]),
        ("record(answer = row.choices[1], id = row.label)", {"answer": "4", "id": 1}),
        ("record(all = row)", {"all": ROW}),
    ],
)
def test_targets_are_plain_data(expression, value):
    target = module_of(target=expression).dataset_sums_target(Row(ROW))
    assert (type(target), target) == (type(value), value)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("row.meta.a", "`meta` has no `a`; it has q, tags"),
        ("row.meta.q.a", "`q` is text and has no `a`"),
        ("row.choices[2]", r"`choices` has no \[2\]: its length is 2"),
        ("row.label[0]", r"`label` is a number and has no \[0\]"),
        ('row.messages["role"]', "`messages` is a list and has no `role`"),
        ("row.mesages[0]", "the row has no column `mesages`"),
    ],
)
def test_what_a_row_lacks_is_named(expression, why):
    with pytest.raises(RowError, match=why):
        module_of(prompt=expression).dataset_sums_prompt(Row(ROW))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1.0 if r.target.answer == r.response else 0.0", 1.0),
        ('1.0 if r.target["all"].choices[1] == "4" else 0.0', 1.0),
        ("1.0 * len(r.prompt)", 4.0),
        ("0.5 * r.turns", 0.5),
    ],
)
def test_rewards_read_parts_of_the_target_the_prompt_and_the_one_turn(expression, value):
    prompt = Prompt(group=0, row=0, text="1+1=", token_ids=[1], target={"answer": "4", "all": ROW})
    rollout = Rollout(
        group=0, sibling=0, prompt=prompt, token_ids=[1], logprobs=[0.0], mask=[True], text="4",
        truncated=False, version_min=0, version_max=0, started=0.0, finished=0.0,
    )  # fmt: skip
    assert module_of(reward=expression).reward_own(rollout) == value


def test_params_that_are_lists_have_entries():
    loaded = load_text(
        TEXT.replace("PROMPT", "row.q").replace("TARGET", "row.a").replace("REWARD", "1.0"),
        "a.forge",
    )
    assert loaded.checked.services["generator"].settings["sampling.max_tokens"].value == 16
