"""Tests drive the real program: ``BELLJAR_BIN`` says where it is."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import belljar


def pytest_sessionstart() -> None:
    if not os.environ.get("BELLJAR_BIN"):
        pytest.exit("BELLJAR_BIN has to name the program: BELLJAR_BIN=target/debug/belljar", returncode=2)
    # What a person has set up is not what is tested.
    for name in ("BELLJAR_SERVER", "BELLJAR_API_KEY", "BELLJAR_CONFIG"):
        os.environ.pop(name, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what `./test` counts."""
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
