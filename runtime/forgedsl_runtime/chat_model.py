"""A model in this process that answers prompts, for `forgec try`, with transformers.

folder in Hugging Face format --ChatModel.load--> ChatModel.answer(prompt or messages) --> text
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime.data.chat import ChatTokenizer, Message
from forgedsl_runtime.data.unknown_text import UnknownText


class ChatModel:
    """A loaded model with its tokenizer."""

    def __init__(self, model: Any, tokenizer: ChatTokenizer) -> None:
        self._model = model
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, folder: Path) -> ChatModel:
        """Load the model of a folder.

        Raises:
            LaunchError: transformers cannot load it.
        """
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        quiet: Any = logging.disable_progress_bar
        quiet()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            tokenizer = ChatTokenizer.load(str(folder))
            model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
            model = model.to(device).eval()
        except (OSError, ValueError) as error:
            why = str(error).strip().partition("\n")[0]
            raise LaunchError(f"{folder} cannot be loaded: {why}") from error
        return cls(model, tokenizer)

    @property
    def chats(self) -> bool:
        """True if it has a chat template; otherwise it continues text."""
        return bool(self._tokenizer.tokenizer.chat_template)

    def unknown_text(self, prompt: str) -> str:
        """Return the characters of a text that the tokenizer does not know: `"W" and "h"`."""
        found = UnknownText(self._tokenizer)
        if self._tokenizer.unknown is not None:
            found.add(prompt)
        return found.characters

    def answer(
        self,
        prompt: str | Sequence[Message],
        sampling: spec.Sampling,
        *,
        seed: int | None = None,
        streams: bool = False,
    ) -> str:
        """Return the answer to a text or a chat; with `streams`, also print its tokens as they are
        generated."""
        import torch
        from transformers import TextStreamer

        if seed is not None:
            torch.manual_seed(seed)
        tokenizer = self._tokenizer.tokenizer
        tokens = torch.tensor([self._tokenizer.prompt_tokens(prompt)], device=self._model.device)
        hot = sampling.temperature > 0
        chosen = {
            "temperature": sampling.temperature, "top_p": sampling.top_p,
            "top_k": sampling.top_k or 0, "min_p": sampling.min_p,
        } if hot else {"temperature": None, "top_p": None, "top_k": None}  # fmt: skip
        stops = {"stop_strings": list(sampling.stop), "tokenizer": tokenizer}
        streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        with torch.inference_mode():
            found = self._model.generate(
                tokens, attention_mask=torch.ones_like(tokens), do_sample=hot, **chosen,
                max_new_tokens=sampling.max_tokens, pad_token_id=tokenizer.eos_token_id,
                streamer=streamer if streams else None, **(stops if sampling.stop else {}),
            )  # fmt: skip
        return str(tokenizer.decode(found[0, tokens.shape[1] :], skip_special_tokens=True))


def base_folder(job: spec.Job, run_dir: Path) -> Path:
    """The folder of the model that a run began with."""
    from forgedsl_runtime.models import weights_folder

    return weights_folder(job, job.services[job.trained_service].model, run_dir, run_dir)
