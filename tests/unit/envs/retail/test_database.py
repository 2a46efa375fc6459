"""The records of the shop that many episodes share."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.tiny_shop import write_shop

from temper.envs.retail.database import Database, open_database, open_shop

THREADS = 8


def test_threads_that_open_a_folder_share_its_records(tmp_path: Path) -> None:
    folder, together = write_shop(tmp_path), threading.Barrier(THREADS)

    def open_one(_: int) -> Database:
        together.wait(timeout=60)
        return open_database(folder)

    with ThreadPoolExecutor(THREADS) as pool:
        databases = list(pool.map(open_one, range(THREADS)))
    assert all(each.records is databases[0].records for each in databases)


def test_an_episode_is_compared_with_its_first_records(tmp_path: Path) -> None:
    database = open_database(write_shop(tmp_path))
    open_shop.cache_clear()
    assert database.is_same_state(database.copy_initial())
    database.edit("users", "ann_lee_1")["name"] = {}
    assert not database.is_same_state(database.copy_initial())
