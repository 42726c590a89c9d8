"""Mutations tried by hand, each found by a test here: the block of a prompt's last token counted as one that could hit;
a first-time prompt counted as reusable; a block after an unknown one counted; more remembered than the bound; a request
watched after its end; what was known before a reset counted after it; a request that must not read the cache counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.scheduler.cache_reuse import CacheReuse
from tests.replicas.scheduler.harness import Driver, EngineShape, build_scheduler

BLOCK = 4


@dataclass
class FakeRequest:
    """What is read of vLLM's request. The hash of a block is the prompt up to its end."""

    request_id: str
    prompt: str
    skip_reading_prefix_cache: bool = False
    num_computed_tokens: int = 0
    block_hashes: list[bytes] = field(init=False)

    def __post_init__(self) -> None:
        ends = range(BLOCK, len(self.prompt) + 1, BLOCK)
        self.block_hashes = [self.prompt[:end].encode() for end in ends]

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt)


def make_reuse(max_known: int = 100) -> CacheReuse:
    return CacheReuse(BLOCK, max_known)


def admit(reuse: CacheReuse, request: FakeRequest, num_hit_tokens: int = 0) -> tuple[int, int]:
    """What one admission adds: blocks that could have hit, and that did."""
    before = (reuse.num_reusable_blocks, reuse.num_hit_blocks)
    reuse.note_first_step(request, num_hit_tokens)  # type: ignore[arg-type]
    reuse.check_invariants()
    return reuse.num_reusable_blocks - before[0], reuse.num_hit_blocks - before[1]


def run(reuse: CacheReuse, prompt: str, request_id: str = "first", num_tokens: int | None = None) -> FakeRequest:
    """A request from its admission to its end."""
    request = FakeRequest(request_id, prompt)
    admit(reuse, request)
    request.num_computed_tokens = len(prompt) if num_tokens is None else num_tokens
    reuse.sweep(alive=())
    return request


def test_reuse_counts_nothing_of_a_first_time_prompt() -> None:
    assert admit(make_reuse(), FakeRequest("a", "abcdefghijkl")) == (0, 0)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("abcdefghijkl", 2),
        ("abcdefghijklm", 3),
        ("abcdefghijkX", 2),
        ("abcdefghiX", 2),
        ("abcdefgh", 1),
        ("abcXefghijklm", 0),
        ("abcd", 0),
        ("abc", 0),
    ],
)
def test_reuse_counts_the_blocks_from_the_start_that_were_seen_but_for_the_last_token_s(
    prompt: str, expected: int
) -> None:
    reuse = make_reuse()
    run(reuse, "abcdefghijkl")
    assert admit(reuse, FakeRequest("b", prompt)) == (expected, 0)


def test_reuse_counts_no_block_behind_one_that_was_not_seen() -> None:
    reuse, request = make_reuse(), FakeRequest("b", "abcdefghijklm")
    run(reuse, "abcdefghijklm")
    request.block_hashes[0] = b"other"
    assert admit(reuse, request) == (0, 0)


def test_reuse_counts_as_hit_what_the_cache_gave() -> None:
    reuse = make_reuse()
    run(reuse, "abcdefghijkl")
    assert admit(reuse, FakeRequest("b", "abcdefghijklm"), num_hit_tokens=8) == (3, 2)


def test_reuse_takes_a_hit_of_a_block_that_is_not_known_yet_as_one_that_could_hit() -> None:
    reuse = make_reuse()
    admit(reuse, FakeRequest("a", "abcdefghijkl"))
    assert admit(reuse, FakeRequest("b", "abcdefghijkl"), num_hit_tokens=8) == (2, 2)


def test_reuse_knows_what_was_computed_and_no_more() -> None:
    reuse = make_reuse()
    run(reuse, "abcdefghijkl", num_tokens=7)
    assert admit(reuse, FakeRequest("b", "abcdefghijklm")) == (1, 0)


def test_reuse_learns_more_of_a_request_as_it_runs_and_nothing_after_its_end() -> None:
    reuse, request = make_reuse(), FakeRequest("a", "abcdefghijklm")
    admit(reuse, request)
    for num_tokens, expected in ((3, 0), (4, 1), (13, 3)):
        request.num_computed_tokens = num_tokens
        reuse.sweep(alive=("a",))
        assert admit(reuse, FakeRequest(f"b{num_tokens}", "abcdefghijklm")) == (expected, 0)
    reuse.sweep(alive=())
    request.block_hashes.append(b"later")
    request.num_computed_tokens = 17
    reuse.sweep(alive=())
    assert admit(reuse, FakeRequest("c", "abcdefghijklmnopq")) == (3, 0)


def test_reuse_keeps_what_it_knows_of_a_request_that_is_computed_again() -> None:
    reuse, request = make_reuse(), FakeRequest("a", "abcdefgh")
    admit(reuse, request)
    for num_tokens in (8, 0, 4):
        request.num_computed_tokens = num_tokens
        reuse.sweep(alive=("a",))
        reuse.check_invariants()
    assert admit(reuse, FakeRequest("b", "abcdefghi")) == (2, 0)


def test_reuse_forgets_what_was_used_least_recently_and_a_prefix_after_its_tail() -> None:
    reuse = make_reuse(max_known=4)
    run(reuse, "abcdefgh", "old")
    run(reuse, "ABCDEFGH", "new")
    run(reuse, "abcdefgh", "old-again")
    run(reuse, "1234", "one-more")
    assert admit(reuse, FakeRequest("b", "abcdefghi")) == (2, 0)
    assert admit(reuse, FakeRequest("c", "ABCDEFGHI")) == (1, 0)


def test_reuse_counts_nothing_from_before_a_reset() -> None:
    reuse, running = make_reuse(), FakeRequest("running", "ABCDEFGH", num_computed_tokens=8)
    run(reuse, "abcdefgh")
    admit(reuse, running)
    reuse.sweep(alive=("running",))
    reuse.note_reset()
    running.num_computed_tokens = 0
    reuse.sweep(alive=("running",))
    assert admit(reuse, FakeRequest("b", "abcdefghi")) == (0, 0)
    assert admit(reuse, FakeRequest("c", "ABCDEFGHI")) == (0, 0)
    running.num_computed_tokens = 8
    reuse.sweep(alive=("running",))
    assert admit(reuse, FakeRequest("d", "ABCDEFGHI")) == (2, 0)


def test_reuse_leaves_out_a_request_that_must_not_read_the_cache() -> None:
    reuse = make_reuse()
    run(reuse, "abcdefgh")
    assert admit(reuse, FakeRequest("b", "abcdefghi", skip_reading_prefix_cache=True)) == (0, 0)


@settings(derandomize=True, deadline=None, database=None)
@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=14), st.integers(0, 14)), max_size=25))
def test_reuse_never_counts_more_hits_than_could_be(prompts: list[tuple[str, int]]) -> None:
    reuse, alive = make_reuse(max_known=5), {str(number) for number in range(25)}
    for number, (prompt, num_tokens) in enumerate(prompts):
        request = FakeRequest(str(number), prompt)
        num_hit_tokens = min(num_tokens, len(prompt) - 1) // BLOCK * BLOCK
        reusable, hit = admit(reuse, request, num_hit_tokens)
        assert hit <= reusable <= (len(prompt) - 1) // BLOCK
        request.num_computed_tokens = min(num_tokens, len(prompt))
        alive -= {str(number)} if number % 3 == 0 else set()
        reuse.sweep(alive)
        reuse.check_invariants()
        assert len(reuse._known) <= 5


def test_vllm_request_has_what_is_read_of_it() -> None:
    request = Driver(build_scheduler(EngineShape(block_size=16))).add("a", 2, 40)
    assert (request.num_prompt_tokens, request.num_computed_tokens, len(request.block_hashes)) == (40, 0, 2)
    assert request.skip_reading_prefix_cache is False
