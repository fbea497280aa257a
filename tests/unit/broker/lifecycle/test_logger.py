"""What the log shows of an exception: its traceback, and no values of variables."""

from __future__ import annotations

import io

import pytest

from lowtide.broker.lifecycle.logger import make_logger


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "JSON"])
def test_a_traceback_has_no_values(stream: io.StringIO) -> None:
    """Also where rich is installed, whose tracebacks have them."""
    pytest.importorskip("rich")
    log = make_logger(1, stream=stream)

    def log_in(password: str) -> None:
        log.info("trying")
        raise ValueError(len(password))

    try:
        log_in("marker-" + "6c1f")
    except ValueError as error:
        log.error("failed", exc_info=error)
    assert "ValueError" in stream.getvalue()
    assert "log_in" in stream.getvalue()
    assert "marker-6c1f" not in stream.getvalue()


def test_a_line_is_one_write() -> None:
    """Processes may share standard error: a line break that is written separately would end the line of another one."""

    class Stream(io.StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.writes: list[str] = []

        def write(self, text: str) -> int:
            self.writes.append(text)
            return len(text)

    stream = Stream()
    logger = make_logger(1, stream=stream)
    logger.info("one", number=1)
    logger.warning("two")
    assert [text[-2:] for text in stream.writes] == ["}\n", "}\n"]
