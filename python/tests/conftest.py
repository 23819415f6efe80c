"""Shared fixtures. Tests run the real program, named by ``BELLJAR_BIN``."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import belljar


def pytest_sessionstart() -> None:
    if not os.environ.get("BELLJAR_BIN"):
        pytest.exit("set BELLJAR_BIN to the program, for example: BELLJAR_BIN=target/debug/belljar", returncode=2)
    # Settings of the user must not affect the tests.
    for name in ("BELLJAR_SERVER", "BELLJAR_API_KEY", "BELLJAR_CONFIG"):
        os.environ.pop(name, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the summary line that `./test` parses."""
    passed, failed, errors = (len(terminalreporter.stats.get(each, [])) for each in ("passed", "failed", "error"))
    terminalreporter.write_line(f"test result: {passed} passed; {failed + errors} failed")


@pytest.fixture(scope="session")
def client() -> Iterator[belljar.Client]:
    with belljar.Client() as client:
        yield client


@pytest.fixture
def box(client: belljar.Client) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(client=client) as box:
        yield box
