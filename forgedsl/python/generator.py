"""Handle of a generator in a Session: prompts --sample--> groups of completions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from forgedsl.python.arguments import change_sampling, check_count, check_messages, list_prompts
from forgedsl.python.groups import Group
from forgedsl.python.handles import Handle
from forgedsl.python.pages import PipelineError
from forgedsl.python.speaking import all_speak_python
from forgedsl.python.work import Work
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    from forgedsl_runtime.data_types import Prompt


@all_speak_python
class Generator(Handle):
    """An engine that samples completions."""

    version = 0
    """version of its weights"""
    _tokenizer: Any = None

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse an unknown attribute; `play` of the flow is `sample` here."""
        hint = ": `sample` plays, where the flow has `play`" if name == "play" else ""
        raise AttributeError(f"a Generator has no `{name}`{hint}", name=name, obj=self)

    def sample(
        self,
        prompts: Prompt | Sequence[Prompt],
        n: int = 1,
        *,
        seed: int | None = None,
        **sampling: Any,
    ) -> Work[list[Group]]:
        """Sample `n` completions of each prompt: a group per prompt. `sampling` changes the file's
        settings, such as `temperature=0.7`; this is refused if the generator plays in an
        environment."""
        from forgedsl_runtime.endpoints import seed_of

        asked, n = list_prompts(prompts), check_count("n", n, 1)
        if seed is not None:
            check_count("seed", seed, 0)
        settings = self._sampling(sampling)
        nodes = self.session._nodes(Role.SAMPLES, self.name)
        played = nodes[0] if nodes and nodes[0].env is not None else None
        if played is not None and sampling:
            raise PipelineError(f"{self.name} plays in an environment, with the file's sampling")
        self.session._samples += 1
        root = (self.session.job.seed, self.session._samples) if seed is None else (seed,)

        async def one(group: int, prompt: Prompt, sibling: int) -> Any:
            ask, number = self._services.ask, seed_of(*root, group, sibling)
            if played is not None:
                return await ask.sample(played, prompt, sibling, number)
            client = ask.samplers[self.name]
            return await ask.complete(client, settings, prompt, sibling, number)

        async def run() -> list[Group]:
            calls = [one(g, p, k) for g, p in enumerate(asked) for k in range(n)]
            found = await asyncio.gather(*calls)
            return [
                Group(prompt=prompt, rollouts=found[g * n : (g + 1) * n])
                for g, prompt in enumerate(asked)
            ]

        return self.session.submit(run, handle=self.name)

    def chat(self, messages: str | Sequence[Mapping[str, Any]], **sampling: Any) -> Work[str]:
        """The answer to a chat, or to a plain text: the model's chat template is applied."""
        from forgedsl_runtime.data.reader import load_tokenizer
        from forgedsl_runtime.data_types import Prompt

        job, folder = self.session.job, self.session.folder
        settings = self._sampling(sampling)
        said = check_messages(messages)
        self.session._samples += 1
        number = self.session._samples

        async def run() -> str:
            if self._tokenizer is None:
                model = job.services[self.name].model
                self._tokenizer = await asyncio.to_thread(
                    load_tokenizer, job, model, folder, folder
                )
            text = self._tokenizer.prompt_text(said)
            tokens = self._tokenizer.prompt_tokens(said, text)
            prompt = Prompt(group=0, row=0, text=text, token_ids=tokens, target=None)
            ask = self._services.ask
            done = await ask.complete(ask.samplers[self.name], settings, prompt, 0, number)
            return done.text

        return self.session.submit(run, handle=self.name)

    def _sampling(self, given: Mapping[str, Any]) -> Any:
        """The file's sampling settings with some of them changed."""
        return change_sampling(self.session.job.samplers[self.name].sampling, given)
