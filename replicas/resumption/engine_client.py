"""The engine as vLLM's serving classes see it: the real one, but for `generate`.

Caller: the serving classes, in the replica's event loop, once for each prompt. A call that is streamed, with one
choice, leaves its tokens in its `CallProgress`; a call with a resumption is continued. All else passes through.

It relies on this of vLLM, which tests/replicas/resumption/test_contract.py holds: the serving classes call
`generate(prompt, sampling_params, request_id, ...)` in the task of the call, and pull an output only when all events of
the one before have been taken.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

from replicas.resumption.delivered_text import DeliveredText, read_again
from replicas.resumption.plan import Impossible, Plan, Sampling, choose_plan
from replicas.resumption.progress import CallProgress, current_progress, not_continued
from replicas.resumption.replay import Part, Repetition, replay_outputs, replayed_parts
from replicas.resumption.sampling import sampling_of
from replicas.resumption.tail import WatchedTail
from slo.messages import DELAY_ARGUMENT, Recovery, Resumed, Resumption

OTHER_TOKENS = "generated again, it went another way"
_EXTENSIBLE_PROMPTS = ("token", "multimodal")
"""vLLM's types of prompt that are token ids, to which more can be appended."""


class ResumableEngine:
    """Stands in for vLLM's engine client in the serving classes.

    Args:
        engine: the `AsyncLLM`.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """As vLLM's. Raises NotContinued: the call has a resumption, and cannot be continued."""
        progress = current_progress()
        if progress is not None and progress.adapter is not None:
            options["lora_request"] = progress.adapter
        if progress is not None and progress.resumption is not None:
            return self._resumed(progress, progress.resumption, prompt, sampling_params, request_id, options)
        outputs = self._engine.generate(
            prompt, _with_delay(sampling_params, 0.0 if progress is None else progress.delay_s), request_id, **options
        )
        can_be_noted = sampling_params.n == 1 and sampling_params.output_kind is RequestOutputKind.DELTA
        return outputs if progress is None or not can_be_noted else _noted(outputs, progress)

    def _resumed(
        self,
        progress: CallProgress,
        resumption: Resumption,
        prompt: Any,
        params: SamplingParams,
        request_id: str,
        options: dict[str, Any],
    ) -> AsyncGenerator[RequestOutput, None]:
        if progress.resumed is not None:
            raise not_continued("it has several prompts")
        if params.n > 1:
            raise not_continued("it has several choices")
        if params.prompt_logprobs is not None:
            raise not_continued("it has log probabilities of the prompt")
        prompt_ids = prompt.get("prompt_token_ids")
        sampling = sampling_of(params)
        delivered = read_again(resumption.token_ids, prompt_ids, params, self._engine.renderer.tokenizer)
        if resumption.finish_reason is not None:
            plan: Plan | Impossible = Plan(Recovery.FROM_TOKENS, len(delivered.ends), len(delivered.ends))
        else:
            plan = choose_plan(sampling, delivered.ends, prompt.get("type") in _EXTENSIBLE_PROMPTS)
        if isinstance(plan, Impossible):
            raise not_continued(plan.reason)
        progress.resumed = Resumed(plan.recovery, plan.num_replayed)
        replay = replay_outputs(
            request_id,
            prompt_ids,
            replayed_parts(delivered, sampling, plan, progress.has_parser),
            resumption.finish_reason,
        )
        rest = _after(plan.num_prompt, params)
        if resumption.finish_reason is not None:
            outputs = _only()
        elif rest.max_tokens is not None and rest.max_tokens < 1:
            end = Part(logprobs=None if params.num_logprobs is None else [])
            outputs = _only(*replay_outputs(request_id, prompt_ids, [end], "length"))
        else:
            ahead = delivered.token_ids[: plan.num_prompt]
            longer = {**prompt, "prompt_token_ids": [*prompt_ids, *ahead]} if ahead else prompt
            outputs = self._engine.generate(longer, _with_delay(rest, progress.delay_s), request_id, **options)
        repetition = Repetition(delivered.token_ids[plan.num_prompt : plan.num_replayed], plan.num_repeated_chars)
        return _continued(replay, outputs, repetition, _tail(delivered, sampling, plan, params), progress, prompt_ids)


def _with_delay(params: SamplingParams, delay_s: float) -> SamplingParams:
    """`params` with the delay that the gate has given, whatever the client has sent as one."""
    if not delay_s and DELAY_ARGUMENT not in (params.extra_args or ()):
        return params
    delayed = params.clone()
    delayed.extra_args = {**(params.extra_args or {}), DELAY_ARGUMENT: delay_s}
    return delayed


def _after(num_prompt: int, params: SamplingParams) -> SamplingParams:
    """`params` for the rest of the answer, when the prompt has taken `num_prompt` of its tokens."""
    rest = params.clone()
    if rest.max_tokens is not None:
        rest.max_tokens -= num_prompt
    rest.min_tokens = max(0, rest.min_tokens - num_prompt)
    return rest


def _tail(delivered: DeliveredText, sampling: Sampling, plan: Plan, params: SamplingParams) -> WatchedTail:
    end = delivered.ends[plan.num_prompt - 1] if plan.num_tail_chars else 0
    start = end - plan.num_tail_chars
    num_sent = sampling.num_sent_chars(delivered.ends[-1]) if delivered.ends else 0
    stops = params.stop if params.stop and params.min_tokens <= plan.num_prompt else []
    return WatchedTail(delivered.text[start:end], num_sent - start, stops, params.include_stop_str_in_output)


async def _only(*outputs: RequestOutput) -> AsyncGenerator[RequestOutput, None]:
    """In place of an engine that has nothing left to generate: it takes no request for no token."""
    for output in outputs:
        yield output


async def _noted(
    outputs: AsyncGenerator[RequestOutput, None], progress: CallProgress
) -> AsyncGenerator[RequestOutput, None]:
    async with aclosing(outputs):
        async for output in outputs:
            completion = output.outputs[0]
            progress.note(completion.token_ids, completion.finish_reason)
            yield output


async def _continued(
    replay: Iterator[RequestOutput],
    outputs: AsyncGenerator[RequestOutput, None],
    repetition: Repetition,
    tail: WatchedTail,
    progress: CallProgress,
    prompt_ids: list[int] | None,
) -> AsyncGenerator[RequestOutput, None]:
    async with aclosing(outputs):
        for output in replay:
            yield output
        progress.is_replaying = False
        async for output in outputs:
            output.prompt_token_ids = prompt_ids
            completion = output.outputs[0]
            if not repetition.is_over and not repetition.cut(completion):
                progress.failure = not_continued(OTHER_TOKENS)
                return
            if not tail.is_over and tail.read(completion):
                output.finished = True
            if completion.token_ids or completion.text or completion.finish_reason is not None:
                progress.note(completion.token_ids, completion.finish_reason)
                yield output
            if output.finished:
                return
