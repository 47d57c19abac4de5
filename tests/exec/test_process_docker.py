"""The process interface in containers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from process_stage import KINDS, stage

from redoma import Executor

pytest.register_assert_rewrite("process_suite")

# Those that could differ here: each takes a container of its own, and those take their time.
from process_suite import (  # noqa: E402
    shell,
    test_a_dialogue,
    test_a_program_handles_a_signal,
    test_a_program_that_is_not_there_ends_as_in_a_shell,
    test_a_signal_is_for_the_program_and_not_for_its_children,
    test_an_entry_has_variables_a_directory_and_limits,
    test_bytes_go_in_as_they_are_and_the_input_of_the_request_comes_first,
    test_closing_wakes_whoever_reads,
    test_much_is_written_while_another_thread_reads,
    test_release_ends_all_processes_and_makes_no_more,
    test_two_at_once_have_nothing_to_do_with_each_other,
    test_what_it_prints_comes_while_it_runs_and_each_stream_by_itself,
    test_what_policy_refuses_is_not_started,
)

__all__ = [
    "shell",
    "test_a_dialogue",
    "test_a_program_handles_a_signal",
    "test_a_program_that_is_not_there_ends_as_in_a_shell",
    "test_a_signal_is_for_the_program_and_not_for_its_children",
    "test_an_entry_has_variables_a_directory_and_limits",
    "test_bytes_go_in_as_they_are_and_the_input_of_the_request_comes_first",
    "test_closing_wakes_whoever_reads",
    "test_much_is_written_while_another_thread_reads",
    "test_release_ends_all_processes_and_makes_no_more",
    "test_two_at_once_have_nothing_to_do_with_each_other",
    "test_what_it_prints_comes_while_it_runs_and_each_stream_by_itself",
    "test_what_policy_refuses_is_not_started",
]


@pytest.fixture(scope="module")
def executor(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    with stage(tmp_path_factory.mktemp("stage"), KINDS["docker"].format(engine=engine)) as executor:
        yield executor
