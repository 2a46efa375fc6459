"""The tools of the services with extreme numbers."""

import copy
import inspect
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.tiny_airline import ANN, DAY, write_airline
from support.tiny_shop import write_shop

from temper.envs.airline.database import fresh as fresh_airline
from temper.envs.airline.tools import TOOLS as AIRLINE
from temper.envs.core.turn_text import Call
from temper.envs.retail.database import fresh as fresh_shop
from temper.envs.retail.tools import TOOLS as SHOP
from temper.envs.service.tools import Refusal

NUMBERS = (int("9" + "0" * 4299), -int("9" * 4300), 10**400, 10**13, 1e308, -1e308, float("inf"), float("nan"))
PAYMENT = {"payment_id": "credit_card_1", "amount": 0.5}
CALLS: dict[str, dict[str, Any]] = {
    "update_reservation_baggages": {
        "reservation_id": "AAA",
        "total_baggages": 1,
        "nonfree_baggages": 1,
        "payment_id": "credit_card_1",
    },
    "book_reservation": {
        "user_id": "ann_lee_1",
        "origin": "JFK",
        "destination": "SEA",
        "flight_type": "one_way",
        "cabin": "economy",
        "flights": [{"flight_number": "HAT1", "date": DAY}],
        "passengers": [ANN],
        "payment_methods": [PAYMENT, PAYMENT],
        "total_baggages": 0,
        "nonfree_baggages": 0,
        "insurance": "no",
    },
    "send_certificate": {"user_id": "ann_lee_1", "amount": 1},
}


def altered(value: Any, number: float) -> Iterator[Any]:
    """Yield the value with the number at each place inside it."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        for inner in (number, *altered(value[key], number)):
            made = copy.copy(value)
            made[key] = inner
            yield made


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{str(number)[:6]}")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_the_airline_with_a_number_that_it_can_not_reckon_with_is_refused(
    tmp_path: Path, name: str, number: float
) -> None:
    database = fresh_airline(write_airline(tmp_path))
    for arguments in altered(CALLS[name], number):
        view = database.before()
        with pytest.raises(Refusal):
            AIRLINE.run(view, Call(name=name, arguments=arguments))
        assert view.same_state(database)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{str(number)[:6]}")
def test_no_tool_fails_where_all_arguments_are_such_numbers(tmp_path: Path, number: float) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "airline").mkdir()
    shop, airline = fresh_shop(write_shop(tmp_path / "shop")), fresh_airline(write_airline(tmp_path / "airline"))
    for tools, database in ((SHOP, shop), (AIRLINE, airline)):
        for name, tool in tools.tools.items():
            for given in (number, [number], [{"amount": number, "payment_id": number}]):
                arguments = dict.fromkeys(inspect.signature(tool).parameters.keys() - {"database"}, given)
                with suppress(Refusal):
                    tools.run(database, Call(name=name, arguments=arguments))
