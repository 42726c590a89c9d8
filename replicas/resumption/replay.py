"""What vLLM's serving class is told of an answer that is continued: first what was delivered, then only what is new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vllm.logprobs import SampleLogprobs
from vllm.outputs import CompletionOutput, RequestOutput

from replicas.resumption.delivered_text import DeliveredText
from replicas.resumption.plan import Plan, Sampling


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens, and the text that was sent with them."""

    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: SampleLogprobs | None = None


def replayed_parts(delivered: DeliveredText, sampling: Sampling, plan: Plan, one_by_one: bool) -> list[Part]:
    """The delivered tokens that stay, with the text that was sent with them: in one part, or each by itself.

    Args:
        one_by_one: parsers read the answer: they were written for a few tokens at a time.
    """
    if not plan.num_replayed:
        return []
    ends = delivered.ends[: plan.num_replayed]
    sent = [sampling.num_sent_chars(end) for end in ends]
    step = 1 if one_by_one else len(ends)
    spans = [slice(start, start + step) for start in range(0, len(ends), step)]
    return [
        Part(
            delivered.token_ids[: len(ends)][span],
            delivered.text[sent[span.start - 1] if span.start else 0 : sent[span.stop - 1]],
            None if delivered.logprobs is None else delivered.logprobs[: len(ends)][span],
        )
        for span in spans
    ]


def replay_outputs(
    request_id: str, prompt_token_ids: list[int] | None, parts: Sequence[Part], finish_reason: str | None
) -> Iterator[RequestOutput]:
    """The outputs that an engine would have given for `parts`, and the end when the answer had ended.

    At least one, without a token where none was delivered: the serving class begins its answer with the first output.
    """
    if not parts and finish_reason is None:
        yield _request_output(request_id, prompt_token_ids, [])
        return
    parts = parts or [Part()]
    for number, part in enumerate(parts, start=1):
        completion = CompletionOutput(
            index=0,
            text=part.text,
            token_ids=list(part.token_ids),
            cumulative_logprob=None,
            logprobs=part.logprobs,
            finish_reason=finish_reason if number == len(parts) else None,
        )
        yield _request_output(request_id, prompt_token_ids, [completion])


class Repetition:
    """The tokens that the engine has to bring again, and the text that the client has of them.

    Args:
        token_ids: the tokens that the prompt did not take.
        num_chars: of the engine's text, so many characters were sent.
    """

    def __init__(self, token_ids: Sequence[int], num_chars: int) -> None:
        self._token_ids = token_ids
        self._num_chars = num_chars
        self._num_seen = 0

    @property
    def is_over(self) -> bool:
        """Whether all that comes now is new."""
        return self._num_seen == len(self._token_ids) and self._num_chars == 0

    def cut(self, output: CompletionOutput) -> bool:
        """Takes out of `output` what was delivered. False: it says something else than was delivered."""
        expected = self._token_ids[self._num_seen : self._num_seen + len(output.token_ids)]
        if tuple(output.token_ids[: len(expected)]) != tuple(expected):
            return False
        num_chars = min(self._num_chars, len(output.text))
        self._num_seen += len(expected)
        self._num_chars -= num_chars
        output.token_ids = output.token_ids[len(expected) :]
        output.text = output.text[num_chars:]
        if output.logprobs:
            output.logprobs = output.logprobs[len(expected) :]
        return self.is_over or (self._num_seen < len(self._token_ids) and output.finish_reason is None)


def _request_output(
    request_id: str, prompt_token_ids: list[int] | None, outputs: list[CompletionOutput]
) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        prompt=None,
        prompt_token_ids=prompt_token_ids,
        prompt_logprobs=None,
        outputs=outputs,
        finished=any(output.finish_reason is not None for output in outputs),
    )
