"""X870 remembered-score: a score is kept under a key that the response is not part of.

    if prompt not in self.known:
        self.known[prompt] = self.compare(response, target)              # fires
    return self.known[prompt]
    key = (prompt, response)                                             # silent

All answers to a prompt then get the score of the first one, in later steps too. Groups have equal
scores, so nothing is learned from them. Put everything that the score is computed from into the
key. The rule compares what the value depends on with what the key depends on, in any spelling:
attributes, globals, `setdefault`, a dict as default of a parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.follow.run import Flow
    from forgedsl.lint.follow.values import Event, Value

finding = rule(__doc__, "W")
STORES = ("setdefault",)


def check(view: View) -> Findings:
    if not python_rewards(view):
        return
    from forgedsl.lint.follow.programs import label, reward_flow

    for found in python_rewards(view):
        flow = reward_flow(view, found)
        event = _kept(flow) if flow is not None else None
        if event is not None:
            yield finding(
                f"reward `{found.reward.name}` caches a score by a key that lacks the response: "
                "other responses get the same score",
                place_of(found.reward, view),
                related=(label(view, "cached here", event.file, event.node),),
                help="put the response into the key: `(prompt, response)`",
            )


def _kept(flow: Flow) -> Event | None:
    """Return the event that keeps a value for later calls under a key that lacks what the value
    depends on, if the file reads it again."""
    from forgedsl.lint.follow.values import READS_RESPONSE, UNKNOWN

    for event in flow.events:
        stored = _stored(event)
        if stored is None:
            continue
        store, key, value = stored
        depends = READS_RESPONSE in value.all and READS_RESPONSE not in key.all
        if depends and key.const is UNKNOWN and _lasts(event, store) and _is_asked(flow, store):
            return event
    return None


def _stored(event: Event) -> tuple[python.expr, Value, Value] | None:
    """Return (store, key, value) of `store[key] = value` and `store.setdefault(key, value)`."""
    import ast as python

    match event.node:
        case python.Subscript(value=store, ctx=python.Store()) if len(event.values) == 2:
            return store, event.values[1], event.values[0]
        case python.Call(func=python.Attribute(value=store, attr=name)) if name in STORES:
            if event.kind == "call" and len(event.values) == 2:
                return store, event.values[0], event.values[1]
    return None


def _lasts(event: Event, store: python.expr) -> bool:
    """True if a store outlives a call: an attribute, a name of the file, the default of a
    parameter."""
    import ast as python

    from forgedsl.lint.follow.values import ONE_OBJECT

    name = python.unparse(store)
    is_global = isinstance(store, python.Name) and event.name == f"global {name}"
    return name.startswith("self.") or is_global or bool(event.receiver.labels & ONE_OBJECT)


def _is_asked(flow: Flow, store: python.expr) -> bool:
    """True if a key is looked for in the store, so that a value that is there is not computed
    again."""
    import ast as python

    name = python.unparse(store)
    for event in flow.events:
        match event.node:
            case python.Compare(ops=[python.In() | python.NotIn()], comparators=[where]):
                if python.unparse(where) == name:
                    return True
            case python.Call(func=python.Attribute(value=where, attr="get" | "setdefault")):
                if python.unparse(where) == name:
                    return True
    handlers = (handler for handler, _, _ in flow.handlers)
    return any("KeyError" in python.unparse(h.type) for h in handlers if h.type is not None)
