"""A judge behind an OpenAI-compatible HTTP endpoint.

    rollout --template--> prompt --chat/completions--> {"grade": 4} or "4" --> value

The client retries with growing pauses if the endpoint is busy, fails or is not reached. After an
answer without a grade it asks once more. The last error is the error of the call.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl.lower import job
from forgedsl_runtime.data_types import Rollout
from forgedsl_runtime.rewards.inputs import RequestCache, mean_grade, questions
from forgedsl_runtime.rewards.requests import count

SHOWN = 80
SLOW_PART = 0.5
"""fraction of the timeout above which a request counts as slow"""
RETRY = "x-stainless-retry-count"
"""header with the retry count that the OpenAI client sends"""


class NoGradeError(ValueError):
    """The answer holds no grade, or there is no answer."""


class Endpoint:
    """Computes a reward by requests to a judge: `await endpoint(rollout, target)` is its value.

    Raises:
        LaunchError: the environment variable with the key is not set.
    """

    def __init__(self, reward: job.Reward) -> None:
        from openai import AsyncOpenAI

        args, key = reward.args, reward.args["key"]
        if key is not None and not os.environ.get(key):
            raise LaunchError(
                f"the environment variable {key} is not set; it must hold the API "
                f"key for {args['url']}"
            )
        self._reward, self._args = reward, args
        self._client = AsyncOpenAI(
            base_url=args["url"],
            api_key=os.environ[key] if key is not None else "none",
            timeout=args["timeout"],
            max_retries=args["retries"],
            http_client=_client(args["timeout"]),
        )
        least, most = args["scale"]
        self._grades = range(least, most + 1)
        self._once = (
            RequestCache(self._grade_with_retry)
            if "other" in reward.inputs.values()
            else self._grade_with_retry
        )

    async def __call__(self, rollout: Rollout, target: Any) -> float:
        asked = questions(self._reward, rollout, target)
        return await mean_grade(self._reward, asked, self._once)

    async def _grade_with_retry(self, question: str) -> float:
        """Return the grade. If the first answer has none, ask once more."""
        try:
            return self._grade(await self._answer(question))
        except NoGradeError:
            count(failed=1, again=1)
        try:
            return self._grade(await self._answer(question))
        except NoGradeError:
            count(failed=1)
            raise

    async def _answer(self, question: str) -> str:
        """Return the endpoint's answer.

        Raises:
            TimeoutError: no answer in time.
            ConnectionError: the endpoint is not reached.
            ValueError: it answered with an error.
            NoGradeError: its answer is no chat completion.
        """
        from openai import APIConnectionError, APIStatusError, APITimeoutError

        url = self._args["url"]
        try:
            answer: Any = await self._client.chat.completions.create(
                model=self._args["model"],
                messages=[{"role": "user", "content": question}],
                extra_body=self._fields(),
            )
        except APITimeoutError as error:
            raise TimeoutError(
                f"no answer from {url} within {self._args['timeout']:g} s"
            ) from error
        except APIConnectionError as error:
            raise ConnectionError(f"{url} cannot be reached: {error.__cause__ or error}") from error
        except (APIStatusError, ValueError) as error:
            raise ValueError(f"{url}: {error}") from error
        choices = getattr(answer, "choices", None)
        if not choices:
            raise NoGradeError(
                f"the answer of {url} is not a chat completion: {_shortened(str(answer))}"
            )
        return choices[0].message.content or ""

    def _fields(self) -> dict[str, Any]:
        """Return the request fields besides model and messages, renamed or omitted for this
        endpoint."""
        found: dict[str, Any] = {"max_tokens": self._args["max_tokens"], "temperature": 0.0}
        if self._args["structured"]:
            found["response_format"] = self._schema()
        names = dict(text.split("=", 1) for text in self._args.get("rename") or ())
        omitted = self._args.get("omit") or ()
        return {names.get(key, key): v for key, v in found.items() if key not in omitted}

    def _grade(self, text: str) -> int:
        found: Any = None
        if self._args["structured"]:
            try:
                answer = json.loads(text)
            except ValueError:
                answer = None
            found = answer.get("grade") if isinstance(answer, dict) else None
        elif match := re.fullmatch(r"\s*(\d+)\s*", text):
            found = int(match[1])
        if type(found) is not int or found not in self._grades:  # true would be 1
            scale = f"{self._grades[0]} to {self._grades[-1]}"
            raise NoGradeError(
                f"the judge answered {_shortened(text)}, which is not a grade from {scale}"
            )
        return found

    def _schema(self) -> dict[str, Any]:
        grade = {"type": "integer", "enum": list(self._grades)}
        schema = {
            "type": "object", "properties": {"grade": grade}, "required": ["grade"],
            "additionalProperties": False,
        }  # fmt: skip
        named = {"name": "grade", "strict": True, "schema": schema}
        return {"type": "json_schema", "json_schema": named}


def _client(timeout: float) -> Any:
    """Return an HTTP client for the OpenAI client that counts its requests."""
    from openai import DefaultAsyncHttpxClient

    class Counted(DefaultAsyncHttpxClient):
        async def send(self, request: Any, **options: Any) -> Any:
            began, failed = time.monotonic(), True
            try:
                response = await super().send(request, **options)
                failed = response.is_error
                return response
            finally:
                slow = time.monotonic() - began > SLOW_PART * timeout
                again = request.headers.get(RETRY, "0") != "0"
                count(made=1, again=again, slow=slow, failed=failed)

    return Counted()


def _shortened(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
