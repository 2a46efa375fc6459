"""The airline: its fourteen tools on a small database, and whole episodes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.bound import bound
from support.tiny_airline import ANN, BOB, DAY, FLIGHTS, NEXT, RESERVATIONS, USERS, write_airline

from temper.envs.airline.database import Database, fresh
from temper.envs.airline.env import DOMAIN
from temper.envs.airline.tools import TOOLS
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import OFF
from temper.envs.core.turn_text import Call
from temper.envs.service import reference
from temper.envs.service.env import with_folder
from temper.envs.service.tools import Refusal
from temper.envs.transcript import score_turns

DATA = Path(__file__).parents[4] / ".." / "shared" / "data" / "tau_airline"


@pytest.fixture
def airline(tmp_path: Path) -> Database:
    return fresh(write_airline(tmp_path))


def run(database: Database, name: str, **arguments: Any) -> Any:
    """Return a tool's answer, parsed if it is JSON."""
    text = TOOLS.run(database, Call(name=name, arguments=arguments))
    return json.loads(text) if text[:1] in "{[" and text else text


def legs(*flights: tuple[str, str]) -> list[dict[str, str]]:
    return [{"flight_number": number, "date": date} for number, date in flights]


def paid(**amounts: float) -> list[dict[str, Any]]:
    return [{"payment_id": payment_id, "amount": amount} for payment_id, amount in amounts.items()]


BOOKING: dict[str, Any] = {
    "user_id": "ann_lee_1",
    "origin": "JFK",
    "destination": "SEA",
    "flight_type": "one_way",
    "cabin": "economy",
    "flights": legs(("HAT1", DAY)),
    "passengers": [ANN],
    "payment_methods": paid(certificate_1=100, gift_card_1=100, credit_card_1=80),
    "total_baggages": 2,
    "nonfree_baggages": 1,
    "insurance": "yes",
}


def test_a_booking_is_paid_by_several_methods_and_uses_certificates_up(airline: Database) -> None:
    made = run(airline, "book_reservation", **BOOKING)
    assert made["reservation_id"] == "HATHAT"
    assert made["flights"] == [legs(("HAT1", DAY))[0] | {"price": 200, "origin": "JFK", "destination": "SEA"}]
    assert (made["created_at"], made["payment_history"]) == ("2024-05-15T15:00:00", BOOKING["payment_methods"])
    user = airline.find("users", "ann_lee_1")
    assert user is not None
    assert user["reservations"] == ["AAA", "BBB", "HATHAT"]
    assert {key: method.get("amount") for key, method in user["payment_methods"].items()} == {
        "credit_card_1": None,
        "gift_card_1": 20,
    }
    assert run(airline, "get_reservation_details", reservation_id="HATHAT") == made
    assert (airline.records.tables["users"], airline.records.tables["flights"]) == (USERS, FLIGHTS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"user_id": "nobody"}, "user not found"),
        ({"flights": legs(("HAT9", DAY))}, "flight HAT9 not found"),
        ({"flights": legs(("HAT1", "2024-06-01"))}, "flight HAT1 not found on date 2024-06-01"),
        ({"flights": legs(("HAT2", NEXT))}, "flight HAT2 not available on date 2024-05-21"),
        ({"flights": legs(("HAT3", DAY)), "passengers": [ANN, BOB]}, "not enough seats on flight HAT3"),
        ({"flights": [{"flight_number": "HAT1"}]}, "each of the flights must have a date"),
        ({"cabin": "first"}, "cabin must be one of basic_economy, economy, business"),
        ({"payment_methods": paid(credit_card_1=279)}, "total price is 280, but paid 279"),
        ({"payment_methods": paid(gift_card_1=280)}, "not enough balance in payment method gift_card_1"),
        ({"payment_methods": [*paid(certificate_1=90), *paid(certificate_1=90)]}, "not enough balance"),
        ({"payment_methods": paid(credit_card_2=280)}, "payment method credit_card_2 not found"),
        ({"payment_methods": [{"payment_id": "credit_card_1", "amount": "280"}]}, "an amount, which is a number"),
        ({"passengers": [{"first_name": "Ann"}]}, "each of the passengers must have a last_name"),
        ({"total_baggages": "2"}, "total_baggages must be a whole number"),
        ({"flights": "HAT1"}, "flights must be a list of objects"),
    ],
)
def test_a_booking_that_is_refused_says_why_and_changes_nothing(airline: Database, change: Any, said: str) -> None:
    with pytest.raises(Refusal, match=said):
        run(airline, "book_reservation", **BOOKING | change)
    assert airline.same_state(Database(airline.records))


def test_at_most_three_reservations_and_certificates_are_made(airline: Database) -> None:
    booking = BOOKING | {"user_id": "bob_ray_2", "payment_methods": paid(credit_card_2=280)}
    assert [run(airline, "book_reservation", **booking)["reservation_id"][-1] for _ in range(3)] == ["T", "U", "V"]
    with pytest.raises(Refusal, match="no more than 3 reservations"):
        run(airline, "book_reservation", **booking)
    for number in (22, 23, 24):
        answer = run(airline, "send_certificate", user_id="bob_ray_2", amount=50)
        assert answer == f"Certificate certificate_32213{number} added to user bob_ray_2 with amount 50."
    with pytest.raises(Refusal, match="no more than 3 certificates"):
        run(airline, "send_certificate", user_id="bob_ray_2", amount=50)


def test_flights_that_stay_keep_their_prices_and_the_difference_is_paid_or_given_back(airline: Database) -> None:
    flights = legs(("HAT2", DAY), ("HAT3", NEXT))
    changed = run(
        airline,
        "update_reservation_flights",
        reservation_id="BBB",
        cabin="basic_economy",
        flights=flights,
        payment_id="gift_card_1",
    )
    assert [each["price"] for each in changed["flights"]] == [35, 60]
    assert changed["payment_history"][-1] == {"payment_id": "gift_card_1", "amount": 30}
    user = airline.find("users", "ann_lee_1")
    assert user is not None
    assert user["payment_methods"]["gift_card_1"]["amount"] == 90
    cheaper = {"reservation_id": "AAA", "cabin": "basic_economy", "flights": legs(("HAT1", DAY))}
    changed = run(airline, "update_reservation_flights", **cheaper, payment_id="gift_card_1")
    assert changed["payment_history"][-1]["amount"] == -90
    assert airline.find("users", "ann_lee_1")["payment_methods"]["gift_card_1"]["amount"] == 180  # type: ignore[index]


def test_bags_beyond_those_that_were_paid_are_paid(airline: Database) -> None:
    more = {"reservation_id": "AAA", "total_baggages": 3, "nonfree_baggages": 3, "payment_id": "credit_card_1"}
    changed = run(airline, "update_reservation_baggages", **more)
    assert (changed["total_baggages"], changed["payment_history"][-1]["amount"]) == (3, 100)
    changed = run(airline, "update_reservation_baggages", **more | {"nonfree_baggages": 0})
    assert (changed["nonfree_baggages"], len(changed["payment_history"])) == (0, 2)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("update_reservation_baggages", {"payment_id": "certificate_1"}, "certificate cannot be used"),
        ("update_reservation_baggages", {"payment_id": "credit_card_2"}, "payment method not found"),
        ("update_reservation_baggages", {"nonfree_baggages": 4}, "gift card balance is not enough"),
        ("update_reservation_baggages", {"reservation_id": "ZZZ"}, "reservation not found"),
        ("cancel_reservation", {"reservation_id": "ZZZ"}, "reservation not found"),
        ("update_reservation_passengers", {"passengers": [ANN, BOB]}, "number of passengers does not match"),
        ("get_reservation_details", {"reservation_id": "ZZZ"}, "reservation not found"),
        ("get_user_details", {"user_id": "nobody"}, "user not found"),
        ("send_certificate", {"user_id": "nobody", "amount": 1}, "user not found"),
        ("search_onestop_flight", {"origin": "JFK"}, "missing argument destination"),
        ("fly", {}, "unknown tool"),
    ],
)
def test_refusals_say_why(airline: Database, name: str, arguments: dict[str, Any], said: str) -> None:
    bags: dict[str, Any] = {
        "reservation_id": "AAA",
        "total_baggages": 4,
        "nonfree_baggages": 2,
        "payment_id": "gift_card_1",
    }
    people: dict[str, Any] = {"reservation_id": "AAA", "passengers": [BOB]}
    usual: dict[str, Any] = {"update_reservation_baggages": bags, "update_reservation_passengers": people}.get(name, {})
    with pytest.raises(Refusal, match=said):
        run(airline, name, **usual | arguments)
    assert airline.same_state(Database(airline.records))


def test_what_was_paid_goes_back_when_a_reservation_is_cancelled(airline: Database) -> None:
    cancelled = run(airline, "cancel_reservation", reservation_id="CCC")
    assert cancelled["status"] == "cancelled"
    assert cancelled["payment_history"] == [*RESERVATIONS["CCC"]["payment_history"], *paid(credit_card_2=-330)]


def test_flights_that_can_be_booked_are_found_with_seats_and_prices(airline: Database) -> None:
    (direct,) = run(airline, "search_direct_flight", origin="JFK", destination="SEA", date=DAY)
    assert (direct["flight_number"], direct["prices"]["business"], "dates" in direct) == ("HAT1", 300, False)
    assert run(airline, "search_direct_flight", origin="JFK", destination="ORD", date=NEXT) == []
    pairs = run(airline, "search_onestop_flight", origin="JFK", destination="SEA", date=DAY)
    assert [[(each["flight_number"], each["date"]) for each in pair] for pair in pairs] == [
        [("HAT2", DAY), ("HAT3", DAY)],
        [("HAT4", DAY), ("HAT3", NEXT)],
    ]
    assert pairs[1][1]["prices"]["economy"] == 120
    assert len(run(airline, "list_all_airports")) == 20
    assert run(airline, "calculate", expression="(100 + 5) / 2") == "52.5"


INSTRUCTION = "You are Ann Lee, ann_lee_1. You want to cancel AAA and book BOB's flight."


def row(*actions: tuple[str, dict[str, Any]], outputs: tuple[str, ...] = ()) -> dict[str, Any]:
    made = [{"name": name, "kwargs": arguments} for name, arguments in actions]
    return {"user_id": "ann_lee_1", "instruction": INSTRUCTION, "actions": made, "outputs": list(outputs)}


def task_of(folder: Path, given: dict[str, Any]) -> Task:
    return bound(
        dataclasses.replace(DOMAIN.load(given, folder=folder), thinking=OFF), with_folder(folder, domain=DOMAIN)
    )


CANCEL = ("cancel_reservation", {"reservation_id": "AAA"})
BOOK = ("book_reservation", BOOKING)
BAGS = (
    "update_reservation_baggages",
    {"reservation_id": "BBB", "total_baggages": 3, "nonfree_baggages": 2, "payment_id": "credit_card_1"},
)
UPGRADE = (
    "update_reservation_flights",
    {"reservation_id": "AAA", "cabin": "business", "flights": legs(("HAT1", DAY)), "payment_id": "credit_card_1"},
)
FREE_BAGS = (
    "update_reservation_baggages",
    {"reservation_id": "AAA", "total_baggages": 2, "nonfree_baggages": 1, "payment_id": "credit_card_1"},
)
PEOPLE = ("update_reservation_passengers", {"reservation_id": "AAA", "passengers": [BOB]})
CERTIFICATE = ("send_certificate", {"user_id": "ann_lee_1", "amount": 100})


def test_the_reference_script_is_right_and_every_negatives_wrong(tmp_path: Path) -> None:
    task = task_of(
        write_airline(tmp_path), row(BOOK, UPGRADE, BAGS, FREE_BAGS, PEOPLE, CANCEL, CERTIFICATE, outputs=("280",))
    )
    assert score_turns(task, reference.reference(task)).reward == 1.0
    negatives = dict(reference.negatives(task, domain=DOMAIN))
    for name in (
        "book_reservation (0) left out",
        "cancel_reservation (5) left out",
        "one change more",
        "output '280' unsaid",
    ):
        assert name in negatives
    assert sum(" with " in name for name in negatives) >= 10
    assert [name for name, turns in negatives.items() if score_turns(task, turns).reward != 0.0] == []


@pytest.mark.parametrize(
    ("table", "record", "said"),
    [
        (
            "users",
            {"payment_methods": {"x": {"source": "gift_card"}}, "reservations": []},
            "users.json: record 'bad' is broken",
        ),
        (
            "flights",
            {"flight_number": "bad", "origin": "A", "destination": "B"},
            "flights.json: record 'bad' is broken",
        ),
        ("reservations", RESERVATIONS["AAA"] | {"user_id": "nobody"}, "reservations.json: record 'bad' is broken"),
    ],
)
def test_a_broken_record_is_named(tmp_path: Path, table: str, record: dict[str, Any], said: str) -> None:
    path = write_airline(tmp_path) / f"{table}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bad": record}))
    with pytest.raises(ValueError, match=said):
        fresh(tmp_path)


@pytest.mark.skipif(not DATA.is_dir(), reason="the airline's data (../shared/data/tau_airline) is not on this machine")
def test_all_reference_actions_of_the_published_tasks_are_right() -> None:
    lines = (DATA / "tasks_test.jsonl").read_text(encoding="utf-8").splitlines()
    tasks = [task_of(DATA, json.loads(line)) for line in lines]
    assert len(tasks) == 50
    assert all(score_turns(task, reference.reference(task)).reward == 1.0 for task in tasks)
