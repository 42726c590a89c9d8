"""What continuing an answer relies on in vLLM. A failure names the point that has moved.

vLLM does not promise any of it. After an upgrade, read the changed point in vLLM's source, then change this file.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.inputs import engine as inputs
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.utils.async_utils import merge_async_iterators
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.outputs import LogprobsLists

from replicas.resumption.engine_client import _EXTENSIBLE_PROMPTS
from replicas.resumption.sampling import _EPSILON


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_engine_is_asked_by_prompt_parameters_and_id() -> None:
    assert parameters(AsyncLLM.generate)[:4] == ["self", "prompt", "sampling_params", "request_id"]
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    kinds = [p.kind for p in inspect.signature(AsyncLLM.generate).parameters.values()]
    assert kinds[:4] == [positional] * 4


@pytest.mark.parametrize(
    ("serving", "method", "call"),
    [
        (OpenAIServingChat, "_create_chat_completion", "self.engine_client.generate(\n"),
        (OpenAIServingCompletion, "_create_completion", "self.engine_client.generate(\n"),
    ],
)
def test_serving_class_asks_the_engine_in_the_call_and_not_in_its_stream(serving: type, method: str, call: str) -> None:
    source = inspect.getsource(getattr(serving, method))
    assert source.count(call) == 1
    sources = inspect.getsource(serving)
    assert sources.count("engine_client.generate(") == 1


async def test_single_stream_is_pulled_one_output_at_a_time() -> None:
    pulled = []

    async def outputs() -> AsyncGenerator[int, None]:
        for number in range(3):
            pulled.append(number)
            yield number

    merged = merge_async_iterators(outputs())
    assert await anext(merged) == (0, 0)
    assert pulled == [0], "an output was pulled ahead: its tokens would be told with the event before"
    await merged.aclose()


def test_chat_tells_the_role_before_it_looks_at_the_tokens() -> None:
    source = inspect.getsource(OpenAIServingChat.chat_completion_stream_generator)
    assert source.index("if first_iteration:") < source.index("for output in res.outputs:")


def test_chat_has_its_parser_class() -> None:
    assert "self.parser_cls = " in inspect.getsource(OpenAIServingChat.__init__)


def test_prompts_that_can_be_extended_are_token_ids() -> None:
    for owner, name in zip((inputs.TokensInput, inputs.MultiModalInput), _EXTENSIBLE_PROMPTS, strict=True):
        source = inspect.getsource(owner)
        assert f'    type: Literal["{name}"]' in source
        assert "    prompt_token_ids: list[int]" in source


def test_parameters_are_copied_by_clone() -> None:
    params = SamplingParams(max_tokens=5, stop=["x"], skip_clone=True)
    copy = params.clone()
    copy.max_tokens, copy.stop = 1, []
    assert (params.max_tokens, params.stop) == (5, ["x"])


def test_greedy_ends_at_the_known_temperature() -> None:
    just_greedy = SamplingParams(temperature=_EPSILON * 0.99, top_p=0.5)
    assert just_greedy.top_p == 1.0 or just_greedy.temperature > _EPSILON


def test_detokenizer_is_made_from_a_request_and_fed_by_tokens() -> None:
    assert parameters(IncrementalDetokenizer.from_new_request) == ["tokenizer", "request"]
    assert parameters(IncrementalDetokenizer.update) == ["self", "new_token_ids", "stop_terminated"]
    assert parameters(IncrementalDetokenizer.get_next_output_text) == ["self", "finished", "delta"]
    fields = EngineCoreRequest.__struct_fields__
    assert {"request_id", "prompt_token_ids", "sampling_params"} <= set(fields)


def test_text_that_may_begin_a_stop_string_is_held_back(tokenizer: Any) -> None:
    """The plan computes from the tokens alone how much of their text was sent."""
    request = EngineCoreRequest("", [5], None, SamplingParams(stop=["XYZ"]), None, 0.0, None, None, None)
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
    sent = ""
    for num_chars, letter in enumerate("abcdef", start=1):
        detokenizer.update([tokenizer.convert_tokens_to_ids(letter)], stop_terminated=False)
        sent += detokenizer.get_next_output_text(finished=False, delta=True)
        assert len(sent) == max(0, num_chars - 2)


def test_outputs_are_made_by_the_known_fields() -> None:
    names = ["index", "text", "token_ids", "cumulative_logprob", "logprobs"]
    assert parameters(CompletionOutput)[:5] == names
    assert {"request_id", "prompt", "prompt_token_ids", "prompt_logprobs", "outputs", "finished"} <= set(
        parameters(RequestOutput)
    )


def test_log_probabilities_are_read_from_lists_of_tokens() -> None:
    assert LogprobsLists._fields[:3] == ("logprob_token_ids", "logprobs", "sampled_token_ranks")
    assert {"request_id", "new_token_ids", "new_logprobs"} <= set(EngineCoreOutput.__struct_fields__)
    assert parameters(LogprobsProcessor.update_from_output) == ["self", "output"]
