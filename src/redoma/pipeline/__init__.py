"""The path of a request, from the caller to its `Result`. Start reading at `executor.AsyncExecutor.submit`."""
