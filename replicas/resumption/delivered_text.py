"""The text that delivered tokens had, read again by vLLM's own detokenizer, as the lost replica's has read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from vllm.logprobs import SampleLogprobs
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import TokenizerLike
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.outputs import LogprobsLists


@dataclass(frozen=True, slots=True)
class DeliveredText:
    """The text of `token_ids`.

    Attributes:
        ends: its length up to each token, characters.
        logprobs: of each token its own, with the text that vLLM tells beside it, and no value: none of them is sent
            again, but where the next one begins is counted from them. None: the request has none.
    """

    token_ids: tuple[int, ...]
    text: str
    ends: tuple[int, ...]
    logprobs: SampleLogprobs | None = None


def read_again(
    token_ids: Sequence[int], prompt_token_ids: list[int] | None, params: SamplingParams, tokenizer: TokenizerLike
) -> DeliveredText:
    """What `token_ids` said after the prompt. Costs some microseconds a token."""
    plain = params.clone()
    plain.stop = []
    request = EngineCoreRequest(
        request_id="",
        prompt_token_ids=prompt_token_ids,
        mm_features=None,
        sampling_params=plain,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
    parts: list[str] = []
    ends: list[int] = []
    end = 0
    for token_id in token_ids:
        detokenizer.update([token_id], stop_terminated=False)
        part = detokenizer.get_next_output_text(finished=False, delta=True)
        parts.append(part)
        end += len(part)
        ends.append(end)
    return DeliveredText(tuple(token_ids), "".join(parts), tuple(ends), _logprobs(token_ids, request, tokenizer))


def _logprobs(token_ids: Sequence[int], request: EngineCoreRequest, tokenizer: TokenizerLike) -> SampleLogprobs | None:
    reader = LogprobsProcessor.from_new_request(tokenizer, request)
    if reader.logprobs is None:
        return None
    column = np.array(token_ids, dtype=np.int64).reshape(-1, 1)
    told = LogprobsLists(column, np.zeros(column.shape), np.ones(len(token_ids), dtype=np.int64))
    reader.update_from_output(EngineCoreOutput(request_id="", new_token_ids=list(token_ids), new_logprobs=told))
    return reader.logprobs
