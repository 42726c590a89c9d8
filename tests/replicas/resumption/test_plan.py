"""Mutations tried by hand, each found by a test here: a seed forgotten; penalties continued from the tokens; the
watched end of a sampled answer forgotten; half a character taken into the prompt; text that may begin a stop
string taken into the prompt; what the engine repeats sent twice.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.resumption.plan import Impossible, Plan, Sampling, choose_plan
from slo.messages import Recovery

FROM_TOKENS, AGAIN = Recovery.FROM_TOKENS, Recovery.AGAIN
GREEDY = Sampling(None, is_greedy=True, is_seeded=False)
SEEDED = Sampling(None, is_greedy=False, is_seeded=True)
SAMPLED = Sampling(None, is_greedy=False, is_seeded=False)
ENDS = (3, 5, 9)


def with_stop(sampling: Sampling, num_watched_chars: int, sends_watched: bool = False) -> Sampling:
    return Sampling(sampling.memory, sampling.is_greedy, sampling.is_seeded, num_watched_chars, sends_watched)


def remembering(sampling: Sampling) -> Sampling:
    return Sampling("a presence penalty", sampling.is_greedy, sampling.is_seeded)


@pytest.mark.parametrize(
    ("sampling", "ends", "plan"),
    [
        pytest.param(GREEDY, ENDS, Plan(FROM_TOKENS, 3, 3), id="greedy"),
        pytest.param(SAMPLED, ENDS, Plan(FROM_TOKENS, 3, 3), id="sampled"),
        pytest.param(SEEDED, ENDS, Plan(AGAIN, 3, 0, 9), id="seeded"),
        pytest.param(Sampling(None, True, True), ENDS, Plan(FROM_TOKENS, 3, 3), id="greedy, a seed changes nothing"),
        pytest.param(remembering(GREEDY), ENDS, Plan(AGAIN, 3, 0, 9), id="greedy with a penalty"),
        pytest.param(remembering(SEEDED), ENDS, Plan(AGAIN, 3, 0, 9), id="seeded with a penalty"),
        pytest.param(GREEDY, (), Plan(AGAIN, 0, 0), id="nothing but the role"),
        pytest.param(remembering(SAMPLED), (), Plan(AGAIN, 0, 0), id="nothing but the role, whatever the sampling"),
        pytest.param(GREEDY, (3, 5, 5), Plan(FROM_TOKENS, 3, 2), id="half a character: the engine brings it again"),
        pytest.param(SAMPLED, (3, 5, 5), Plan(FROM_TOKENS, 2, 2), id="half a character: another may follow"),
        pytest.param(GREEDY, (0, 0), Plan(FROM_TOKENS, 2, 0), id="no text yet"),
        pytest.param(SAMPLED, (0, 0), Plan(FROM_TOKENS, 0, 0), id="no text yet, sampled"),
        pytest.param(with_stop(GREEDY, 2), ENDS, Plan(FROM_TOKENS, 3, 2, 2), id="7 sent, settled at 5"),
        pytest.param(with_stop(GREEDY, 4), ENDS, Plan(FROM_TOKENS, 3, 2), id="5 sent, settled at 5"),
        pytest.param(with_stop(GREEDY, 20), ENDS, Plan(FROM_TOKENS, 3, 0), id="all is held back"),
        pytest.param(with_stop(GREEDY, 2, True), ENDS, Plan(FROM_TOKENS, 3, 2, 4), id="9 sent, settled at 5"),
        pytest.param(with_stop(SEEDED, 2), ENDS, Plan(AGAIN, 3, 0, 7), id="seeded with a stop string"),
        pytest.param(
            with_stop(SAMPLED, 4), ENDS, Plan(FROM_TOKENS, 3, 3, num_tail_chars=4), id="sampled with a stop string"
        ),
        pytest.param(
            with_stop(SAMPLED, 4, True), ENDS, Plan(FROM_TOKENS, 3, 3, num_tail_chars=4), id="and it is included"
        ),
        pytest.param(
            with_stop(SAMPLED, 20), (3, 5, 5), Plan(FROM_TOKENS, 2, 2, num_tail_chars=5), id="and longer than the text"
        ),
    ],
)
def test_plan_says_from_where_the_answer_goes_on(sampling: Sampling, ends: tuple[int, ...], plan: Plan) -> None:
    assert choose_plan(sampling, ends, can_extend_prompt=True) == plan


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        (remembering(SAMPLED), "sampling with a presence penalty and without a seed"),
        (remembering(with_stop(SAMPLED, 2)), "sampling with a presence penalty and without a seed"),
    ],
)
def test_plan_is_impossible_when_another_answer_would_follow(sampling: Sampling, reason: str) -> None:
    assert choose_plan(sampling, ENDS, can_extend_prompt=True) == Impossible(reason)


def test_plan_generates_again_when_the_prompt_is_not_made_of_tokens() -> None:
    assert choose_plan(GREEDY, ENDS, can_extend_prompt=False) == Plan(AGAIN, 3, 0, 9)
    refused = choose_plan(SAMPLED, ENDS, can_extend_prompt=False)
    assert refused == Impossible("sampling with a prompt that is not made of tokens and without a seed")


SAMPLINGS = st.builds(
    Sampling, st.sampled_from([None, "x"]), st.booleans(), st.booleans(), st.integers(0, 12), st.booleans()
)


@given(SAMPLINGS, st.lists(st.integers(0, 4), min_size=1, max_size=12), st.booleans())
def test_plan_sends_each_character_once(sampling: Sampling, lengths: list[int], can_extend: bool) -> None:
    ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
    plan = choose_plan(sampling, ends, can_extend)
    if isinstance(plan, Impossible):
        assert not sampling.is_greedy
        assert not sampling.is_seeded
        return
    num_sent = sampling.num_sent_chars(ends[-1])
    prompt_end = ends[plan.num_prompt - 1] if plan.num_prompt else 0
    assert 0 <= plan.num_prompt <= plan.num_replayed <= len(ends)
    if plan.num_tail_chars:
        assert plan.num_repeated_chars == 0
        assert prompt_end - plan.num_tail_chars <= num_sent <= prompt_end, "what was not sent is in the tail"
    else:
        assert prompt_end + plan.num_repeated_chars == num_sent, "the engine's text goes on where the client's ends"
    unwatched = max(0, ends[-1] - sampling.num_watched_chars)
    assert prompt_end - plan.num_tail_chars <= unwatched, "a stop string may begin in the prompt"
    if plan.num_replayed < len(ends):
        assert plan.num_replayed == plan.num_prompt
        assert prompt_end == ends[-1], "a token that shows is given up"
