"""The class with which a run plays an environment of gymnasium. Imports the package `gymnasium`.

    environment lake = gymnasium("FrozenLake-v1", is_slippery = false)

    space             as text
    Text              itself
    Discrete          an action has a name, an observation is a number
    Tuple, Dict       the texts of their parts, with commas; `{0}` or `{key}` is one of them
    render mode ansi  `{render}`: what the environment prints; [x] is highlighted

The action is the text in the last <answer> tag of an answer, or the whole answer if it has no tag.
If this text is no action, the environment does not change, and the observation lists the actions.

The compiler checks such an environment without importing the package: hir.gymnasium_calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from forgedsl.environment import Environment, Start, Step, Task, Turn

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.envs.registration import load_env_creator
except ImportError as error:
    raise ImportError(
        'environments of gymnasium need a package: pip install "forgedsl[gymnasium]"'
    ) from error

TAG = re.compile(r"<answer>(.*?)</answer>", re.S)
PLACEHOLDER = re.compile(r"\{(\w+)\}")
COLOURED = re.compile(r"\x1b\[([\d;]+)m([^\x1b]*)\x1b\[0m")
ESCAPE = re.compile(r"\x1b\[[\d;]*m")
ANSI = "ansi"
WORDS: Mapping[str, Sequence[str]] = {
    "BlackjackEnv": ("stick", "hit"),
    "CliffWalkingEnv": ("up", "right", "down", "left"),
    "FrozenLakeEnv": ("left", "down", "right", "up"),
    "TaxiEnv": ("south", "north", "east", "west", "pickup", "dropoff"),
}
"""names of the actions 0, 1, ... of classes that ship with gymnasium; others have their numbers"""


class Gymnasium(Environment):
    """An environment that is registered as `id`. `options` are the arguments of its class."""

    parts = ("reward", "invalid")

    def __init__(
        self,
        *,
        id: str,
        actions: Sequence[str] | None = None,
        observation: str | None = None,
        max_episode_steps: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the environment.

        Raises:
            gymnasium.error.Error: there is no such environment, or it cannot be made.
            ValueError: its observations or actions cannot be written as text, or `actions` or
                `observation` do not fit them.
        """
        given = dict(options or {})
        if max_episode_steps is not None:
            given["max_episode_steps"] = max_episode_steps
        self._renders = ANSI in _modes(id)
        self._env = gymnasium.make(id, render_mode=ANSI if self._renders else None, **given)
        space = self._env.observation_space
        if not self._renders and (bad := _not_text(space)):
            raise ValueError(f"observations of {id} are of {bad}, which cannot be shown as text")
        shown = "{message}{render}" if self._renders else "{message}{observation}"
        self._template = shown if observation is None else observation
        inner = _inner(space, None)
        known = {"observation", "actions", "message", *inner, *(["render"] * self._renders)}
        for word in PLACEHOLDER.findall(self._template):
            if word not in known:
                raise ValueError(f"observations of {id} have no {{{word}}}")
        self._actions = _actions(self._env, id, actions)
        self._seen: Any = None

    def reset(self, task: Task, rng: Random) -> Start:
        """Begin an episode; all trajectories of a prompt begin in the same state."""
        self._seen, _ = self._env.reset(seed=rng.getrandbits(31))
        return Start(self._text(""))

    def step(self, turn: Turn) -> Step:
        """Act."""
        tagged = TAG.findall(turn.text)
        said = (tagged[-1] if tagged else turn.text).strip()
        action = self._action(said)
        if action is None:
            return Step(self._text(self._no_action(said)), {"invalid": 1.0})
        self._seen, reward, terminated, truncated, _ = self._env.step(action)
        return Step(self._text(""), {"reward": float(reward)}, done=terminated or truncated)

    def close(self) -> None:
        """End the episode."""
        self._env.close()

    def _action(self, said: str) -> Any:
        """Return the action that a text names, or None."""
        space = self._env.action_space
        if isinstance(space, spaces.Text):
            return said if space.contains(said) else None
        assert isinstance(space, spaces.Discrete)
        found = self._actions.get(said.lower())
        return None if found is None else int(space.start) + found

    def _no_action(self, said: str) -> str:
        listed = f"; actions are: {', '.join(self._actions)}" if self._actions else ""
        return f"`{said[:60]}` is no action{listed}\n"

    def _text(self, message: str) -> str:
        values = {
            "observation": _shown(self._env.observation_space, self._seen),
            "actions": ", ".join(self._actions),
            "message": message,
            **_inner(self._env.observation_space, self._seen),
        }
        if self._renders:
            values["render"] = _plain(str(self._env.render()))
        return PLACEHOLDER.sub(lambda found: values[found[1]], self._template)


def _modes(id: str) -> Sequence[str]:
    """Return the render modes of a registered environment."""
    point = gymnasium.spec(id).entry_point
    creator: Any = load_env_creator(point) if isinstance(point, str) else point
    return tuple(getattr(creator, "metadata", {}).get("render_modes", ()))


def _actions(env: Any, id: str, names: Sequence[str] | None) -> dict[str, int]:
    """Return the names of actions, each with its number from 0; empty where any text is one.

    Raises:
        ValueError: an answer cannot be an action, or there are not as many names as actions.
    """
    space = env.action_space
    if isinstance(space, spaces.Text):
        if names is not None:
            raise ValueError(f"any text is an action of {id}: `actions` has no effect")
        return {}
    if not isinstance(space, spaces.Discrete):
        kind = type(space).__name__
        raise ValueError(f"actions of {id} are of {kind}: an answer can only be Discrete or Text")
    count, first = int(space.n), int(space.start)
    if names is None:
        names = WORDS.get(type(env.unwrapped).__name__, ())
        names = names if len(names) == count else [str(first + i) for i in range(count)]
    if len(names) != count:
        raise ValueError(f"{id} has {count} actions, but `actions` names {len(names)}")
    return {name.strip().lower(): index for index, name in enumerate(names)}


def _not_text(space: Any) -> str:
    """Return the class of the first space whose values cannot be text, inner ones too, or ""."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        inner = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return next((bad for each in inner if (bad := _not_text(each))), "")
    written = spaces.Text | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    return "" if isinstance(space, written) else type(space).__name__


def _inner(space: Any, value: Any) -> dict[str, str]:
    """Return the texts of the parts of a Tuple or Dict, by place or key."""
    pairs: list[tuple[str, Any, Any]]
    if isinstance(space, spaces.Tuple):
        pairs = [(str(i), each, i) for i, each in enumerate(space.spaces)]
    elif isinstance(space, spaces.Dict):
        pairs = [(key, each, key) for key, each in space.spaces.items()]
    else:
        return {}
    return {name: "" if value is None else _shown(each, value[at]) for name, each, at in pairs}


def _shown(space: Any, value: Any) -> str:
    """Return a value of a space as text."""
    if isinstance(space, spaces.Dict):
        return ", ".join(f"{name}: {text}" for name, text in _inner(space, value).items())
    if isinstance(space, spaces.Tuple):
        return ", ".join(_inner(space, value).values())
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return " ".join(str(int(each)) for each in value.flat)
    return str(value)


def _plain(text: str) -> str:
    """Return a rendering without colours: [x] was highlighted, (x) bold, and {x} of another colour.
    In FrozenLake and Taxi colours alone show where the player, the passenger and the goal are."""
    while COLOURED.search(text):  # marks may be nested: the inner ones first
        text = COLOURED.sub(_marked, text)
    return ESCAPE.sub("", text).strip("\n")


def _marked(found: re.Match[str]) -> str:
    codes = found[1].split(";")
    if any(40 <= int(code) < 50 for code in codes if code):
        return f"[{found[2]}]"
    return f"({found[2]})" if "1" in codes else f"{{{found[2]}}}"
