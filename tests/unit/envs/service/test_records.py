"""The records of a service that many episodes share."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.tiny_airline import write_airline
from support.tiny_shop import write_shop

from temper.envs.airline.database import fresh as fresh_airline
from temper.envs.airline.database import open_airline
from temper.envs.retail.database import fresh as fresh_shop
from temper.envs.retail.database import open_shop
from temper.envs.service.records import Database

THREADS = 8
SERVICES = pytest.mark.parametrize(
    ("write", "fresh", "opened"), [(write_airline, fresh_airline, open_airline), (write_shop, fresh_shop, open_shop)]
)


@SERVICES
def test_threads_that_open_a_folder_at_once_have_the_same_records(
    tmp_path: Path, write: Callable[[Path], Path], fresh: Callable[[Path], Database[Any]], opened: Any
) -> None:
    folder, together = write(tmp_path), threading.Barrier(THREADS)

    def open_one(_: int) -> Database[Any]:
        together.wait(timeout=60)
        return fresh(folder)

    with ThreadPoolExecutor(THREADS) as pool:
        databases = list(pool.map(open_one, range(THREADS)))
    assert all(each.records is databases[0].records for each in databases)


@SERVICES
def test_an_episode_is_compared_with_the_records_that_it_began_with(
    tmp_path: Path, write: Callable[[Path], Path], fresh: Callable[[Path], Database[Any]], opened: Any
) -> None:
    database = fresh(write(tmp_path))
    opened.cache_clear()
    assert database.same_state(database.before())
    database.edit("users", "ann_lee_1")["name"] = {}
    assert not database.same_state(database.before())
