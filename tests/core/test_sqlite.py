"""Several processes and one new file."""

import multiprocessing
from pathlib import Path

from linglue.core.sqlite import SqliteFile


class Things(SqliteFile):
    SCHEMA = "CREATE TABLE IF NOT EXISTS things (name TEXT PRIMARY KEY);"


def _open_many(folder: Path, barrier) -> None:
    for number in range(20):
        barrier.wait()
        Things(folder / f"{number}.db").close()


def test_processes_that_open_a_new_file_at_once_all_succeed(tmp_path):
    """One makes it; the others neither take it for another program's nor find it locked."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3, timeout=30)
    processes = [context.Process(target=_open_many, args=(tmp_path, barrier)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with Things(tmp_path / "0.db") as file:
        assert list(file._read("SELECT name FROM sqlite_master")) != []
