"""The engine client over an engine that answers from a script.

Mutations tried by hand, each found by a test here: max_tokens or min_tokens not counted down; the longer prompt told to
the serving class; the first output not a replay; the replay not ended before the engine is asked; another answer let
through; several prompts or choices continued; the engine asked for no token; the caller's parameters changed; a
client's delay left as it is; a delay that keeps an answer from being continued.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

from replicas.resumption.engine_client import OTHER_TOKENS, ResumableEngine
from replicas.resumption.progress import CallProgress, current
from slo.errors import NotContinued
from slo.messages import DELAY_ARGUMENT, Recovery, Resumed, Resumption

PROMPT_IDS = [40, 41]
PROMPT = {"type": "token", "prompt_token_ids": PROMPT_IDS, "cache_salt": "s"}
Step = tuple[list[int], str] | tuple[list[int], str, str]


class ScriptedEngine:
    """Gives each step of `script` as an output; notes what it is asked, and whether its generator was closed."""

    def __init__(self, tokenizer: Any, *script: Step) -> None:
        self.renderer = SimpleNamespace(tokenizer=tokenizer)
        self.errored = False
        self.script = script
        self.asked: list[tuple[Any, SamplingParams, str, dict[str, Any]]] = []
        self.num_begun = 0
        self.num_closed = 0

    def generate(
        self, prompt: Any, params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        self.asked.append((prompt, params, request_id, options))
        return self._outputs(prompt, request_id)

    async def _outputs(self, prompt: Any, request_id: str) -> AsyncGenerator[RequestOutput, None]:
        self.num_begun += 1
        try:
            for token_ids, text, *rest in self.script:
                finish = rest[0] if rest else None
                completion = CompletionOutput(0, text, token_ids, None, None, finish_reason=finish)
                prompt_ids = prompt["prompt_token_ids"]
                yield RequestOutput(request_id, None, prompt_ids, None, [completion], finish is not None)
        finally:
            self.num_closed += 1


def params_of(**changes: Any) -> SamplingParams:
    given = {"temperature": 0, "max_tokens": 10, "output_kind": RequestOutputKind.DELTA, **changes}
    return SamplingParams(**given)


@pytest.fixture
def said(tokenizer: Any) -> list[int]:
    """Tokens of "abcd", one for each letter."""
    return [tokenizer.convert_tokens_to_ids(letter) for letter in "abcd"]


def ask(
    engine: ScriptedEngine, progress: CallProgress | None, params: SamplingParams, prompt: Any = PROMPT
) -> AsyncGenerator[RequestOutput, None]:
    client = ResumableEngine(engine)
    if progress is None:
        return client.generate(prompt, params, "id", priority=1)
    with current(progress):
        return client.generate(prompt, params, "id", priority=1)


async def told(outputs: AsyncGenerator[RequestOutput, None]) -> list[tuple[list[int], str]]:
    """What the serving class is told, output by output."""
    all_outputs = [output async for output in outputs]
    assert all(output.prompt_token_ids == PROMPT_IDS for output in all_outputs)
    return [(list(c.token_ids), c.text) for output in all_outputs for c in output.outputs]


def test_client_passes_all_else_through(tokenizer: Any) -> None:
    engine = ScriptedEngine(tokenizer)
    client = ResumableEngine(engine)
    assert client.errored is False
    assert client.renderer is engine.renderer
    with pytest.raises(AttributeError):
        _ = client.no_such_thing


async def test_client_notes_the_tokens_of_a_streamed_call(tokenizer: Any, said: list[int]) -> None:
    engine, progress = ScriptedEngine(tokenizer, (said[:2], "ab"), (said[2:], "cd", "stop")), CallProgress()
    outputs = ask(engine, progress, params_of())
    taken = [progress.take() async for _ in outputs]
    assert taken == [(tuple(said[:2]), None), (tuple(said[2:]), "stop")]
    assert engine.asked[0][0] is PROMPT
    assert engine.asked[0][3] == {"priority": 1}


@pytest.mark.parametrize(
    "changes",
    [{"output_kind": RequestOutputKind.FINAL_ONLY}, {"n": 2, "temperature": 1}],
    ids=["not streamed", "several choices"],
)
async def test_client_notes_nothing_of_other_calls(tokenizer: Any, said: list[int], changes: dict[str, Any]) -> None:
    engine, progress = ScriptedEngine(tokenizer, (said, "abcd", "stop")), CallProgress()
    assert await told(ask(engine, progress, params_of(**changes))) == [(said, "abcd")]
    assert progress.take() == ((), None)


async def test_client_closes_the_engines_generator_when_it_is_closed(tokenizer: Any, said: list[int]) -> None:
    for progress in (CallProgress(), CallProgress(Resumption(()))):
        engine = ScriptedEngine(tokenizer, (said[:1], "a"), (said[1:], "bcd"))
        outputs = ask(engine, progress, params_of())
        await anext(outputs)
        if progress.resumption is not None:
            await anext(outputs)
        await outputs.aclose()
        assert (engine.num_begun, engine.num_closed) == (1, 1)


async def test_client_continues_from_the_tokens(tokenizer: Any, said: list[int]) -> None:
    engine = ScriptedEngine(tokenizer, (said[2:3], "c"), (said[3:], "d", "stop"))
    progress, params = CallProgress(Resumption(tuple(said[:2]))), params_of(min_tokens=3)
    outputs = ask(engine, progress, params)
    assert progress.resumed == Resumed(Recovery.FROM_TOKENS, 2)
    assert await told(outputs) == [(said[:2], "ab"), (said[2:3], "c"), (said[3:], "d")]
    ((prompt, asked, request_id, options),) = engine.asked
    assert prompt == {**PROMPT, "prompt_token_ids": [*PROMPT_IDS, *said[:2]]}
    assert (asked.max_tokens, asked.min_tokens, request_id, options) == (8, 1, "id", {"priority": 1})
    assert (params.max_tokens, params.min_tokens) == (10, 3)
    assert PROMPT["prompt_token_ids"] == [40, 41]
    assert progress.take() == (tuple(said[2:]), "stop"), "what was replayed is not noted again"


async def test_client_replays_until_the_engine_is_asked_for_more(tokenizer: Any, said: list[int]) -> None:
    engine = ScriptedEngine(tokenizer, (said[2:], "cd", "stop"))
    progress = CallProgress(Resumption(tuple(said[:2])), has_parser=True)
    seen = [(progress.is_replaying, o.outputs[0].text) async for o in ask(engine, progress, params_of())]
    assert seen == [(True, "a"), (True, "b"), (False, "cd")]


async def test_client_generates_again_what_a_seed_made(tokenizer: Any, said: list[int]) -> None:
    engine = ScriptedEngine(tokenizer, (said[:1], "a"), (said[1:3], "bc"), (said[3:], "d", "length"))
    progress = CallProgress(Resumption(tuple(said[:2])))
    outputs = ask(engine, progress, params_of(temperature=1, seed=5, min_tokens=4))
    assert progress.resumed == Resumed(Recovery.AGAIN, 2)
    assert await told(outputs) == [(said[:2], "ab"), (said[2:3], "c"), (said[3:], "d")]
    ((prompt, asked, _, _),) = engine.asked
    assert prompt is PROMPT
    assert (asked.max_tokens, asked.min_tokens, asked.seed) == (10, 4, 5)


async def test_client_finds_a_stop_string_that_had_begun_in_a_sampled_answer(tokenizer: Any, said: list[int]) -> None:
    engine = ScriptedEngine(tokenizer, (said[2:3], "c"), (said[3:], "d"), (said[:1], "a", "length"))
    progress = CallProgress(Resumption(tuple(said[:2])))
    outputs = [output async for output in ask(engine, progress, params_of(temperature=1, stop=["bcd"]))]
    assert [output.outputs[0].text for output in outputs] == ["", "", "a"]
    assert [output.finished for output in outputs] == [False, False, True]
    assert (outputs[-1].outputs[0].finish_reason, outputs[-1].outputs[0].stop_reason) == ("stop", "bcd")
    assert (engine.num_begun, engine.num_closed) == (1, 1), "the engine stops too"


async def test_client_sends_what_was_held_back_of_a_sampled_answer(tokenizer: Any, said: list[int]) -> None:
    engine = ScriptedEngine(tokenizer, (said[2:3], "c"), (said[3:], "d", "length"))
    progress = CallProgress(Resumption(tuple(said[:2])))
    outputs = ask(engine, progress, params_of(temperature=1, stop=["bcx"]))
    assert "".join([output.outputs[0].text async for output in outputs]) == "abcd"


async def test_client_fails_the_call_when_another_answer_comes(tokenizer: Any, said: list[int]) -> None:
    engine = ScriptedEngine(tokenizer, (said[:1], "a"), (said[2:3], "c"), (said[3:], "d", "length"))
    progress = CallProgress(Resumption(tuple(said[:2])))
    assert await told(ask(engine, progress, params_of(temperature=1, seed=5))) == [(said[:2], "ab")]
    assert progress.failure is not None
    assert OTHER_TOKENS in progress.failure.message
    assert engine.num_closed == 1


async def test_client_starts_over_when_only_the_role_was_sent(tokenizer: Any, said: list[int]) -> None:
    engine = ScriptedEngine(tokenizer, (said, "abcd", "stop"))
    progress = CallProgress(Resumption(()))
    outputs = [output async for output in ask(engine, progress, params_of(temperature=1))]
    assert [len(output.outputs) for output in outputs] == [0, 1]
    assert engine.asked[0][0] is PROMPT


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
async def test_client_asks_no_engine_when_the_answer_had_ended(
    tokenizer: Any, said: list[int], finish_reason: str
) -> None:
    engine, progress = ScriptedEngine(tokenizer), CallProgress(Resumption(tuple(said), None, finish_reason))
    (only,) = [output async for output in ask(engine, progress, params_of(temperature=1, presence_penalty=1))]
    assert only.outputs[0].finish_reason == finish_reason
    assert list(only.outputs[0].token_ids) == said
    assert not progress.is_replaying
    assert not engine.asked


async def test_client_ends_the_answer_when_no_token_is_left_to_generate(tokenizer: Any, said: list[int]) -> None:
    engine, progress = ScriptedEngine(tokenizer), CallProgress(Resumption(tuple(said)))
    seen = [(progress.is_replaying, o.outputs[0]) async for o in ask(engine, progress, params_of(max_tokens=4))]
    (replayed, _), (not_replayed, last) = seen
    assert (replayed, not_replayed, last.text, last.finish_reason) == (True, False, "", "length")
    assert progress.take() == ((), "length")
    assert not engine.asked


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"n": 2, "temperature": 1}, "several choices"),
        ({"prompt_logprobs": 1}, "log probabilities of the prompt"),
        ({"temperature": 1, "presence_penalty": 1}, "a presence penalty and without a seed"),
    ],
)
def test_client_refuses_what_cannot_be_continued(
    tokenizer: Any, said: list[int], changes: dict[str, Any], reason: str
) -> None:
    engine = ScriptedEngine(tokenizer)
    with pytest.raises(NotContinued, match=reason):
        ask(engine, CallProgress(Resumption(tuple(said))), params_of(**changes))
    assert not engine.asked


def test_client_refuses_the_second_prompt_of_a_call(tokenizer: Any) -> None:
    engine, progress = ScriptedEngine(tokenizer), CallProgress(Resumption(()))
    ask(engine, progress, params_of())
    with pytest.raises(NotContinued, match="several prompts"):
        ask(engine, progress, params_of())


async def test_client_generates_again_when_the_prompt_is_embeddings(tokenizer: Any, said: list[int]) -> None:
    engine = ScriptedEngine(tokenizer, (said, "abcd", "stop"))
    prompt = {"type": "embeds", "prompt_token_ids": PROMPT_IDS}
    outputs = ask(engine, CallProgress(Resumption(tuple(said[:2]))), params_of(), prompt)
    assert await told(outputs) == [(said[:2], "ab"), (said[2:], "cd")]
    assert engine.asked[0][0] is prompt


async def test_client_keeps_log_probabilities_in_shape(tokenizer: Any, said: list[int]) -> None:
    engine = ScriptedEngine(tokenizer, (said[2:], "cd", "stop"))
    outputs = ask(engine, CallProgress(Resumption(tuple(said[:2]))), params_of(logprobs=1))
    first = await anext(outputs)
    assert [list(position) for position in first.outputs[0].logprobs or []] == [[t] for t in said[:2]]
    await outputs.aclose()


@pytest.mark.parametrize(
    ("delay_s", "sent", "given"),
    [
        (0, None, None),
        (0, {"other": "x"}, {"other": "x"}),
        (0.3, None, {DELAY_ARGUMENT: 0.3}),
        (0.3, {"other": "x"}, {"other": "x", DELAY_ARGUMENT: 0.3}),
        (0, {DELAY_ARGUMENT: -9}, {DELAY_ARGUMENT: 0}),
        (0.3, {DELAY_ARGUMENT: -9}, {DELAY_ARGUMENT: 0.3}),
    ],
)
async def test_engine_is_told_the_delay_of_the_call_and_not_the_clients(
    tokenizer: Any, said: list[int], delay_s: float, sent: dict[str, Any] | None, given: dict[str, Any] | None
) -> None:
    engine, params, progress = (
        ScriptedEngine(tokenizer, (said, "abcd", "stop")),
        params_of(extra_args=sent),
        CallProgress(),
    )
    progress.delay_s = delay_s
    await told(ask(engine, progress, params))
    assert engine.asked[0][1].extra_args == given
    assert params.extra_args == sent


async def test_answer_with_a_delay_is_continued_with_it(tokenizer: Any, said: list[int]) -> None:
    engine, progress = ScriptedEngine(tokenizer, (said[2:], "cd", "stop")), CallProgress(Resumption(tuple(said[:2])))
    progress.delay_s = 0.5
    await told(ask(engine, progress, params_of()))
    assert progress.resumed == Resumed(Recovery.FROM_TOKENS, 2)
    assert engine.asked[0][1].extra_args == {DELAY_ARGUMENT: 0.5}
