"""Two tools for agents, the same for every framework; each framework's module only wraps them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from . import _json, _show
from ._request import Content, Network, owner_metadata
from .client import AsyncClient, Client
from .errors import DependencyFailed, InvalidRequest, Refused
from .result import Artifact, Result

if TYPE_CHECKING:
    import os

    from ._request import RunOptions

PYTHON_NAME = "execute_python_code_in_sandbox"
PYTHON_ABOUT = (
    "Runs Python code in a fresh sandbox without network, for at most 30 seconds, and returns what it printed. "
    "If arguments are given, the code's function main is called with them by name, and its return value is returned. "
    "Nothing is kept between calls. Files that the code writes to ./artifacts are returned to the user, "
    "and figures that matplotlib shows or leaves open."
)
COMMAND_NAME = "run_terminal_command_in_sandbox"
COMMAND_ABOUT = (
    "Runs a shell command in a fresh sandbox, for at most 120 seconds, and returns its output and exit code. "
    "Nothing is kept between calls."
)
#: Arguments of ``main``. Frameworks read this type when the program runs.
Arguments = Optional[dict[str, Any]]
_PYTHON_SECONDS = 30.0
_COMMAND_SECONDS = 120.0
#: Characters of an output stream or a return value that a model gets: the beginning and the end.
_SHOWN_CHARACTERS = 16_000
#: Number of results kept in ``Toolbox.results``.
_KEPT_RESULTS = 100
#: Errors that a model can react to.
_REPORTED_TO_MODEL = (InvalidRequest, DependencyFailed, Refused, _json.NotJson, UnicodeEncodeError)


@dataclass
class Toolbox:
    """The two tools and their settings. ``files`` exist in every run; ``results`` holds the latest results."""

    network: Network = False
    files: Mapping[str, Content] = field(default_factory=dict)
    dependencies: Sequence[str] | None = None
    profile: str | None = None
    #: Folder in which artifacts are saved; None saves none.
    artifacts: str | os.PathLike[str] | None = None
    client: Client | None = None
    async_client: AsyncClient | None = None
    results: deque[Result] = field(default_factory=lambda: deque(maxlen=_KEPT_RESULTS))
    #: Ids of the agent and of its user, in the metadata of every run. A model cannot change them.
    agent_id: str | None = None
    user_id: str | None = None

    def __post_init__(self) -> None:
        owner_metadata(self.agent_id, self.user_id)

    def python(self, code: str, arguments: Arguments = None) -> str:
        return self._run(code, self._for_python(arguments))

    async def apython(self, code: str, arguments: Arguments = None) -> str:
        return await self._arun(code, self._for_python(arguments))

    def command(self, command: str) -> str:
        return self._run(None, self._for_command(command))

    async def acommand(self, command: str) -> str:
        return await self._arun(None, self._for_command(command))

    def _for_python(self, arguments: Arguments) -> RunOptions:
        return {
            **self._common(),
            "arguments": arguments,
            "network": False,
            "timeout": _PYTHON_SECONDS,
            "dependencies": self.dependencies,
        }

    def _for_command(self, command: str) -> RunOptions:
        return {**self._common(), "command": command, "network": self.network, "timeout": _COMMAND_SECONDS}

    def _common(self) -> RunOptions:
        ids = owner_metadata(self.agent_id, self.user_id)
        return {"files": self.files, "profile": self.profile, "metadata": ids}

    def _run(self, code: str | None, options: RunOptions) -> str:
        try:
            with nullcontext(self.client) if self.client is not None else Client() as client:
                result = client.run(code, **options)
                saved = [each.save(self._folder()) for each in map(client.download, self._to_save(result))]
                return self._answer(result, saved, is_command=code is None)
        except _REPORTED_TO_MODEL as error:
            return _nothing_ran(error)

    async def _arun(self, code: str | None, options: RunOptions) -> str:
        client = self.async_client or AsyncClient()
        try:
            result = await client.run(code, **options)
            saved = [(await client.download(each)).save(self._folder()) for each in self._to_save(result)]
            return self._answer(result, saved, is_command=code is None)
        except _REPORTED_TO_MODEL as error:
            return _nothing_ran(error)
        finally:
            if self.async_client is None:
                await client.close()

    def _to_save(self, result: Result) -> tuple[Artifact, ...]:
        return () if self.artifacts is None else result.artifacts

    def _answer(self, result: Result, saved: Sequence[Path], *, is_command: bool) -> str:
        """Returns the text for the model. ``saved`` has the paths of the saved artifacts, if they are saved."""
        self.results.append(result)
        parts = [_section("STDOUT", result.stdout), _section("STDERR", result.stderr)]
        if result.has_value:
            parts.append(_section("RETURN VALUE", _json.dumps(result.value)))
        if not result.success:
            parts.append(f"The execution did not succeed ({result.status}): {result.error or 'it gave no reason'}")
        elif not any(parts) and not result.artifacts:
            parts.append("The execution succeeded and printed nothing.")
        if is_command:
            parts.append(f"Exit code: {_exit_code(result)}")
        for number, artifact in enumerate(result.artifacts):
            place = f", saved as {saved[number]}" if saved else ""
            parts.append(f"Artifact {artifact.name} ({artifact.mime_type}, {artifact.size} bytes){place}")
        parts += _show.hints(result.findings, success=result.success)
        return "\n".join(part for part in parts if part)

    def _folder(self) -> Path:
        folder = Path(self.artifacts or ".")
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _exit_code(result: Result) -> str:
    if result.exit_code is not None:
        return str(result.exit_code)
    return f"none (killed by {result.signal})" if result.signal else f"none ({result.status})"


def _nothing_ran(error: Exception) -> str:
    findings = error.findings if isinstance(error, Refused) else ()
    return "\n".join([f"Nothing ran: {error}", *_show.hints(findings, success=False)])


def _section(name: str, text: str) -> str:
    if not text:
        return ""
    if len(text) > _SHOWN_CHARACTERS:
        half = _SHOWN_CHARACTERS // 2
        text = f"{text[:half]}\n… {len(text) - _SHOWN_CHARACTERS} characters left out …\n{text[-half:]}"
    return f"--- {name} ---\n{text.rstrip()}"
