"""vLLM's worker, whose decode steps of the same requests go through `decode_steps`.

vLLM loads this module in the process of an engine, by the name of the worker class.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from vllm.v1.worker.gpu_worker import Worker

if TYPE_CHECKING:
    from forgedsl_runtime.services.vllm.upstream.decode_steps import DecodeSteps


class EngineWorker(Worker):
    """vLLM's worker on a GPU."""

    @cached_property
    def decode_steps(self) -> DecodeSteps | None:
        """None if all steps go through vLLM's runner."""
        if not self.use_v2_model_runner:
            return None
        from forgedsl_runtime.services.vllm.upstream.decode_steps import DecodeSteps

        return DecodeSteps.of(self.model_runner)

    def execute_model(self, scheduler_output: Any) -> Any:
        steps = self.decode_steps
        if steps is None:
            return super().execute_model(scheduler_output)
        if steps.takes(scheduler_output):
            with self.annotate_profile(scheduler_output):  # type: ignore[no-untyped-call]
                steps.execute(scheduler_output)
            return None
        found = super().execute_model(scheduler_output)
        steps.remember()
        return found

    def sample_tokens(self, grammar_output: Any) -> Any:
        steps = self.decode_steps
        if steps is not None and grammar_output is None and steps.can_sample:
            return steps.sample()
        return super().sample_tokens(grammar_output)

    def execute_dummy_batch(self) -> None:
        if self.decode_steps is not None:
            self.decode_steps.forget()  # a dummy step overwrites the inputs that are kept
        super().execute_dummy_batch()
