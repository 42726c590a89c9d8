"""A stop string that begins in text from before the loss, and ends in text from after it.

Where the prompt took that text, vLLM does not look for it there. Only in an answer that is sampled without a seed:
others bring the text again.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm.outputs import CompletionOutput


class WatchedTail:
    """The end of the text that the prompt took, held until no stop string can begin in it any more.

    Args:
        text: that end.
        num_sent_chars: of it, those that the client has.
        stops: vLLM's stop strings.
        includes_stop: the stop string belongs to the answer.
    """

    def __init__(self, text: str, num_sent_chars: int, stops: Sequence[str], includes_stop: bool) -> None:
        self._length = len(text)
        self._text = text
        self._num_sent = num_sent_chars
        self._stops = stops
        self._includes_stop = includes_stop
        self._longest = max(map(len, stops), default=0)
        self.is_over = not text

    def read(self, output: CompletionOutput) -> bool:
        """Gives `output` the text that can be sent with it. True: a stop string ended the answer here.

        vLLM holds text back too, so it is found some tokens late: these stay in the answer's count.
        """
        self._text += output.text
        if (found := self._first_stop()) is not None:
            start, stop = found
            output.text = self._text[self._num_sent : start + len(stop) * self._includes_stop]
            output.finish_reason, output.stop_reason = "stop", stop
            self.is_over = True
            return True
        self.is_over = output.finish_reason is not None or len(self._text) >= self._length + self._longest - 1
        end = len(self._text) if self.is_over else self._num_sent
        output.text = self._text[self._num_sent : end]
        return False

    def _first_stop(self) -> tuple[int, str] | None:
        """That begins in the tail and ends after it; of several the one that ends first, as in vLLM."""
        found = []
        for stop in self._stops:
            earliest, last_end = max(0, self._length - len(stop) + 1), self._length + len(stop) - 1
            if (start := self._text.find(stop, earliest, last_end)) >= 0:
                found.append((start, stop))
        return min(found, key=lambda each: each[0] + len(each[1]), default=None)
