"""A backend for Deep Agents: the agent's file tools and its shell work in a session."""

from __future__ import annotations

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileOperationError, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from ..lib.errors import RedomaError
from .sandbox import MAX_TEXT, Sandbox

_REQUESTER = "deepagents"


class RedomaBackend(BaseSandbox):  # type: ignore[misc] # its types are not read
    """For `create_deep_agent(backend=RedomaBackend(sandbox))`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    @property
    def id(self) -> str:
        return self.sandbox.session.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a line of Bash. What was refused, or went wrong, is told as its output."""
        try:
            result = self.sandbox.run(command, "bash", requester=_REQUESTER, timeout=timeout or None)
        except RedomaError as error:
            return ExecuteResponse(output=str(error), exit_code=125)
        ran = result.status.ending == "ran" and result.status != "timeout"
        output = result.stdout + result.stderr if ran else result.to_text(MAX_TEXT)
        return ExecuteResponse(output=output, exit_code=result.shell_exit, truncated=bool(result.omitted))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files of the session; each for itself."""
        return [FileUploadResponse(path=path, error=self._write(path, content)) for path, content in files]

    def _write(self, path: str, content: bytes) -> FileOperationError | None:
        try:
            self.sandbox.session.files.write(path, content)
        except (RedomaError, OSError) as error:
            return _code(error)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files of the session; each for itself."""
        found = []
        for path in paths:
            try:
                found.append(FileDownloadResponse(path=path, content=self.sandbox.session.files.read(path)))
            except (RedomaError, OSError) as error:
                found.append(FileDownloadResponse(path=path, error=_code(error)))
        return found


def _code(error: Exception) -> FileOperationError:
    match error:
        case FileNotFoundError():
            return "file_not_found"
        case IsADirectoryError():
            return "is_directory"
        case PermissionError():
            return "permission_denied"
    return "invalid_path"
