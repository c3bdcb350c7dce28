"""Tool calls in five forms: what is written is read, and what is cut is never taken for a call."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from written_calls import CALLS, SAID, WRITERS, fits, schemas

from forgedsl import tool_calls as forms
from forgedsl.environment import Call
from forgedsl.tool_calls import FORMS, calls_in, chosen, form_of, read

ALL = sorted(WRITERS)
DEEP = os.environ.get("FORGE_DEEP") == "1"
patient = settings(
    max_examples=1000 if DEEP else 50, suppress_health_check=[HealthCheck.too_slow], deadline=None
)
B, E, S, AB, AE = forms.BEGIN, forms.END, forms.SEPARATOR, forms.ALL_BEGIN, forms.ALL_END


def form(writer: str) -> str:
    return writer.removesuffix("_v11")


def one_schema(calls: Any) -> bool:
    return len({name for name, _ in calls}) == len(calls)


@pytest.mark.parametrize("writer", ALL)
@patient
@given(said=SAID, calls=CALLS)
@example(said="", calls=[("f", {"a": "caf\u00e9 \U0001f600", "b": {"c": [1, {"d": None}]}})])
@example(said="So:", calls=[("f", {}), ("f", {})])
def test_what_a_template_writes_is_read(writer: str, said: str, calls: Any) -> None:
    assume(fits(writer, calls) and one_schema(calls))
    text = "a thought</think>" + said + WRITERS[writer](calls)
    before, found = read(text, form(writer), schemas(calls))
    assert before == "a thought</think>" + said
    assert found == tuple(Call(name=name, arguments=arguments) for name, arguments in calls)


@pytest.mark.parametrize("writer", ALL)
@patient
@given(calls=CALLS, data=st.data())
def test_calls_that_are_cut_are_never_ok(writer: str, calls: Any, data: st.DataObject) -> None:
    assume(fits(writer, calls) and one_schema(calls))
    text = WRITERS[writer](calls)
    end = data.draw(st.integers(0, len(text)))
    cut = calls_in(text[:end], form(writer), schemas(calls))
    whole = [Call(name=name, arguments=arguments) for name, arguments in calls]
    ok = [call for call in cut if call.status == "ok"]
    assert ok == whole[: len(ok)]
    assert all(call.status == "unclosed" for call in cut[len(ok) :])
    assert len(cut) <= len(calls)


@pytest.mark.parametrize("writer", ALL)
@patient
@given(text=st.text(), calls=CALLS, at=st.integers(0, 400))
def test_no_text_raises(writer: str, text: str, calls: Any, at: int) -> None:
    written = WRITERS[writer](calls)
    for each in (text, written[:at] + text + written[at:], written[at:]):
        before, found = read(each, form(writer), schemas(calls))
        assert each.startswith(before)
        assert before == each or found
        assert {call.status for call in found} <= {
            "ok", "invalid_json", "missing_name", "unclosed", "unread",
        }  # fmt: skip


@pytest.mark.parametrize(("name", "text", "status"), [
    ("hermes", "<tool_call>{}</tool_call>", "missing_name"),
    ("hermes", "<tool_call>{'name'}</tool_call>", "invalid_json"),
    ("hermes", '<tool_call>{"name": "f", "arguments": 3}</tool_call>', "invalid_json"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "invalid_json"),
    ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>", "invalid_json"),
    ("qwen3_coder", '<tool_call>{"name": "f"}</tool_call>', "unread"),
    ("qwen3_coder", "<function=></function>", "missing_name"),
    ("qwen3_coder", "<function=f>a = 1</function>", "unread"),
    ("qwen3_coder", "<function=f><parameter=a>1</function>", "unread"),
    ("qwen3_coder", "<function=f</function>", "unread"),
    ("qwen3_coder", "<tool_call>\n<funct", "unclosed"),
    ("llama3_json", '<|python_tag|>search.call(query="x")', "unread"),
    ("llama3_json", '{"name": "f", "parameters": {"a" 1}}', "invalid_json"),
    ("llama3_json", '{"parameters": {}}', "missing_name"),
    ("llama3_json", "<|python_tag|>", "unclosed"),
    ("mistral", "[TOOL_CALLS]I do not know.", "unread"),
    ("mistral", '[TOOL_CALLS][{"arguments": {}}]', "missing_name"),
    ("mistral", "[TOOL_CALLS]f[ARGS]{x}", "invalid_json"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": "x"}]', "invalid_json"),
    ("mistral", "[TOOL_CALLS]f[ARG", "unclosed"),
    ("deepseek_v3", f"{AB}no{AE}", "unread"),
    ("deepseek_v3", f"{B}function{S}f\n```\n{{}}\n```{E}", "unread"),
    ("deepseek_v3", f"{B}function{S}f\n```json\n{{x\n```{E}", "invalid_json"),
    ("deepseek_v3", f"{B}function{S}\n```json\n{{}}\n```{E}", "missing_name"),
    ("deepseek_v3", f"{AB}{B}fun", "unclosed"),
])  # fmt: skip
def test_a_call_that_is_not_valid_has_a_status(name: str, text: str, status: str) -> None:
    before, (call,) = read("So: " + text, name)
    assert (before, call.status) == ("So: ", status)


@pytest.mark.parametrize(("name", "text"), [
    ("llama3_json", '{"name": "Bob", "type": "person"}'),
    ("llama3_json", "the set {1, 2}"),
    ("hermes", "I use no tool_call."),
    ("mistral", '[{"name": "f", "arguments": {}}]'),
])  # fmt: skip
def test_an_answer_is_no_call(name: str, text: str) -> None:
    assert read(text, name) == (text, ())


@pytest.mark.parametrize(("schema", "text", "value"), [
    ({"type": "integer"}, "3", 3),
    ({"type": "integer"}, "3.5", "3.5"),
    ({"type": ["integer", "null"]}, "null", None),
    ({"type": "number"}, "2.0", 2),
    ({"type": "number"}, "1e999", "1e999"),
    ({"type": "boolean"}, "True", True),
    ({"anyOf": [{"type": "array"}, {"type": "string"}]}, "[1]", [1]),
    ({"type": "string"}, "3", "3"),
    ({}, "3", 3),
    (None, "3", "3"),
])  # fmt: skip
def test_arguments_of_qwen3_coder_get_the_types_of_the_schema(
    schema: Any, text: str, value: Any
) -> None:
    properties = {} if schema is None else {"a": schema}
    tool = {"function": {"name": "f", "parameters": {"properties": properties}}}
    said = f"<function=f><parameter=a>\n{text}\n</parameter></function>"
    (call,) = calls_in(said, "qwen3_coder", [tool])
    assert call.arguments == {"a": value}
    assert type(call.arguments["a"]) is type(value)


QWEN3 = '{{- \'<tool_call>\\n{"name": "\' }}{{- \'", "arguments": \' }}'
CODER = "{{- '\\n<tool_call>\\n<function=' + name + '>\\n' }}{{- '<parameter=' + args_name }}"
LLAMA = '<|start_header_id|>{{- \'{"name": "\' }}{{- \'", "parameters": \' }}'
GLM = "<tool_call>{{ name }}<arg_key>{{ k }}</arg_key> arguments"


@pytest.mark.parametrize(("template", "name"), [
    (QWEN3, "hermes"), (CODER, "qwen3_coder"), (LLAMA, "llama3_json"), (GLM, None), ("", None),
    ("{{- '[TOOL_CALLS][' }}", "mistral"), (f"{AB}{B}" + "```json", "deepseek_v3"),
])  # fmt: skip
def test_the_form_is_that_of_the_template(template: str, name: str | None) -> None:
    assert form_of(template) == name
    assert chosen(None, template) == name or (name is None and chosen(None, template) == "hermes")
    assert chosen("mistral", template) == "mistral"


def test_the_setting_names_all_forms() -> None:
    from forgedsl.schema.kinds import FORMS as NAMES

    assert {*NAMES} == {*FORMS} == {form(writer) for writer in WRITERS}
