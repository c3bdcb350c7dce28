"""What the loss compiler says about mistakes: one message each, at the right word."""

from __future__ import annotations

import pytest

from forgedsl.api import load_functions
from forgedsl.diagnostics import Reporter
from forgedsl.errors import PipelineError, SourceError
from forgedsl.losses.infer import infer
from forgedsl_runtime.losses import compile_loss

HEAD = "loss l(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {\n"
SCAN = "advantage a(x: [B, T] f32, mask: [B, T] bool) -> [B, T] f32"
GROUP = "advantage a(r: [G] f32) -> [G] f32 = "
FILTER = "filter f(r: [G] f32) -> bool = "


def problems(text):
    functions, sources = load_functions(f"forge 1\n{text}\n")
    reporter = Reporter()
    tree = infer(functions[list(functions)[-1]], reporter)
    found = [(d.code, sources[d.span.file].text[d.span.start : d.span.end]) for d in reporter]
    assert (tree is None) == bool(found)
    return found


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        ("minimize token_mean(adv, mask)", "T701", "adv"),
        ("minimize seq_mean(mean(adv, T, mask))", "T701", "adv"),
        ("minimize token_mean(mask * logprob, mask)", "T702", "mask"),
        ("minimize token_mean(logprob if adv else 0.0, mask)", "T702", "adv"),
        ("minimize token_mean(-logprob, behavior)", "T702", "behavior"),
        ("minimize seq_mean(sum(logprob, T))", "L401", "sum(logprob, T)"),
        ("minimize seq_mean(logprob)", "L401", "logprob"),
        ("minimize token_mean(-logprob, adv > 0)", "L401", "adv > 0"),
        ("minimize -sum(logprob, B)", "L403", "sum(logprob, B)"),
        ("minimize token_mean(behavior * adv, mask)", "L404", None),
        ("minimize token_mean(stop(logprob), mask)", "L404", None),
        ("minimize token_mean(logprob / (1 - 1), mask)", "L407", "(1 - 1)"),
        ("minimize token_mean(logprob + log(0.0), mask)", "L407", "log(0.0)"),
        ("minimize logprob", "L416", "logprob"),
        ("minimize exp(token_mean(logprob, mask))", "L416", "token_mean(logprob, mask)"),
        ("minimize token_mean(logprob, mask) + 1.0", "L416", "1.0"),
        ("minimize token_mean(logprob, mask) * adv", "L416", "adv"),
        ("minimize token_mean(logprob, mask and logprob > -5)", "L417", "mask and logprob > -5"),
        ("minimize token_mean(clamp(behavior, logprob, 1.0), mask)", "T702", "logprob"),
        (
            "minimize token_mean(logprob + next(behavior, T, mask), mask)",
            "T701",
            "next(behavior, T, mask)",
        ),
    ],
)
def test_one_mistake_one_message(body, code, word):
    found = problems(f"{HEAD}  {body}\n}}")
    assert [c for c, _ in found] == [code]
    assert word is None or found[0][1] == word


@pytest.mark.parametrize(
    ("declaration", "code"),
    [
        ("behavior: diff [B, T] f32", "L406"),
        ("behavior: [B] f32", "T701"),
        ("behavior: [B, T] i64", "T702"),
        ("behavior: [G] f32", "T704"),
        ("behavior: [B, T, G] f32", "T701"),
        ("seq_id: [B, T] f32", "F102"),
    ],
)
def test_fields(declaration, code):
    body = "minimize token_mean(-logprob, mask)"
    text = f"loss l(logprob: diff [B, T] f32, {declaration}, mask: [B, T] bool) {{ {body} }}"
    assert [c for c, _ in problems(text)] == [code]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (FILTER + "r > 0", "T701"),
        (FILTER + "mean(r, G)", "T702"),
        (GROUP + "r > mean(r, G)", "T702"),
        (GROUP + "sum(r, T)", "T701"),
        (GROUP + "r / (1 - 1)", "L407"),
        (GROUP + "mean(r, B)", "T704"),
        (GROUP + "r - mean(r, G, r > 0)", "F114"),
        ("filter f(r: [B] f32) -> bool = mean(r, G) > 0.0", "T704"),
        ("advantage a(r: [P, T] f32) -> [B] f32 = r", "T704"),
        ("advantage a(r: [B, T] f32) -> [B] f32 = r", "T701"),
        ("advantage a(r: [B, T] f32) -> [B, T] f32 = r - mean(r, B)", "T701"),
        (f"{SCAN} = scan_back(x, 0.9, G, mask)", "T701"),
        (f"{SCAN} = scan_back(x, x, T, mask)", "T701"),
        (f"{SCAN} = scan_back(x, 1.5, T, mask)", "F113"),
        (f"{SCAN} = next(x, T, x > 0.0 and x)", "T702"),
        ("advantage a(r: [B] f32) -> [B] f32 = sum(r, P)", "L403"),
        ("advantage a(group: [B] f32) -> [B] f32 = group", "F102"),
    ],
)
def test_advantages_and_filters(text, code):
    assert [c for c, _ in problems(text)] == [code]


def test_sides_of_a_pair_have_their_own_tokens():
    text = (
        "loss l(logprob: diff [P, T] f32, mask: [P, T] bool) {\n"
        "  minimize pair_mean(sum(logprob.chosen - logprob.rejected, T, mask.chosen))\n}"
    )
    assert [c for c, _ in problems(text)] == ["T701"]


def test_recursion_is_reported():
    text = (
        "fn f(x: [G] f32) -> [G] f32 = g(x)\nfn g(x: [G] f32) -> [G] f32 = f(x)\n" + GROUP + "f(r)"
    )
    functions, _ = load_functions(f"forge 1\n{text}\n")
    reporter = Reporter()
    assert infer(functions["a"], reporter) is None
    assert [d.code for d in reporter] == ["F105"]


@pytest.mark.parametrize(
    "text",
    [
        "loss l(logprob: diff [P, T] f32, ref: [P, T] f32, mask: [P, T] bool) {\n"
        "  kl = near(logprob.chosen, ref.chosen)\n"
        "  minimize pair_mean(sum(kl, T, mask.chosen) + once(sum(kl, T, mask.chosen)))\n}",
        "loss l(logprob: diff [P, T] f32, ref: [P, T] f32, mask: [P, T] bool) {\n"
        "  minimize pair_mean(sum(near(logprob, ref), T, mask))\n}",
        GROUP + "once(r)",
    ],
)
def test_functions_take_any_leading_axis(text):
    helpers = (
        "fn near(lp: [B, T] f32, ref: [B, T] f32) -> [B, T] f32 = 0.5 * (lp - ref) ** 2\n"
        "fn once(x: [B] f32) -> [B] f32 = 1.0 * x\n"
    )
    assert problems(helpers + text) == []


def test_a_function_of_sequences_takes_no_tokens():
    text = "fn once(x: [B] f32) -> [B] f32 = x\n"
    text += "loss l(logprob: diff [B, T] f32, mask: [B, T] bool) {\n"
    text += "  minimize token_mean(once(logprob), mask)\n}"
    assert [c for c, _ in problems(text)] == ["T701"]


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        ("dapo", "clip_hi", "did you mean `clip_high`?"),
        ("sft", "x", "the parameters are label_smoothing, z_loss"),
    ],
)
def test_compile_loss_names_the_parameters_there_are(source, name, said):
    with pytest.raises(SourceError) as refused:
        compile_loss(source, params={name: 0.3})
    assert str(refused.value).startswith(f"`{source}` has no parameter `{name}`")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "params", "said"),
    [
        (
            (3,),
            None,
            ("the loss must be a name of the library, .forge text, or a path, not 3"),
        ),
        (("dapo", 3), None, "`name` must be the name of a loss"),
        (
            ("dapo",),
            ["clip_high"],
            r'`params` must map names to values, params=\{"clip_high": 0.3\}',
        ),
        (("dapo",), {3: 1}, "`params` must map names to values"),
        (("dapo",), {"clip_high": [1]}, r"the parameter `clip_high` takes one value, not \[1\]"),
    ],
)
def test_an_argument_of_another_kind(arguments, params, said):
    with pytest.raises(TypeError, match=said):
        compile_loss(*arguments, params=params)


def test_a_source_that_is_nothing_is_no_text():
    with pytest.raises(PipelineError, match=r"^std/rll is neither a .forge file nor a module"):
        compile_loss("std/rll", "dapo")
    with pytest.raises(PipelineError, match=r"^no such file: losses.forge$"):
        compile_loss("losses.forge", "mine")


@pytest.mark.parametrize(
    ("reports", "word", "said"),
    [
        (
            ["tokens"],
            "tokens",
            "a report cannot be named `tokens`: the name is used for the number of tokens, which",
        ),
        (
            ["loss"],
            "loss",
            "a report cannot be named `loss`: the name is used for the value that is minimized",
        ),
        (
            ["entropy"],
            "entropy",
            "a report cannot be named `entropy`: the name is used for the mean entropy",
        ),
        (
            ["result"],
            "result",
            "a report cannot be named `result`: the name is used for the result of an advantage",
        ),
        (["kl", "kl"], "kl", "report `kl` is already defined"),
        (
            ["kl_last", "kl"],
            "kl_last",
            "a report cannot be named `kl_last`: the name is used for the last value of",
        ),
    ],
)
def test_names_that_a_report_cannot_have(reports, word, said):
    body = "".join(f"  report {name} = token_mean(behavior, mask)\n" for name in reports)
    text = f"forge 1\n{HEAD}  minimize token_mean(-logprob, mask)\n{body}}}\n"
    functions, sources = load_functions(text)
    reporter = Reporter()
    assert infer(functions["l"], reporter) is None
    (found,) = reporter
    assert found.code == "F102"
    assert sources[found.span.file].text[found.span.start : found.span.end] == word
    assert found.message.startswith(said)


def test_a_report_may_be_called_last_of_something_else():
    body = "minimize token_mean(-logprob, mask)  report kl_last = token_mean(behavior, mask)"
    assert problems(f"{HEAD}{body.replace('  ', chr(10))}\n}}") == []


def test_a_wrong_value_of_a_parameter_is_one_mistake_with_a_place():
    body = "minimize token_mean(-logprob * width, mask)"
    text = f"forge 1\nparam width : float = 0.2\n{HEAD}  {body}\n}}"
    with pytest.raises(PipelineError) as raised:
        compile_loss(text, params={"width": "x"})
    assert [d.code for d in raised.value.diagnostics] == ["F109"]
    assert 'width = "x"\n  |         ^^^' in str(raised.value)
