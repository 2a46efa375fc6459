"""The airline's database: users, flights and reservations in the layout of tau-bench's airline domain."""

import functools
from pathlib import Path

from temper.envs.service.records import OPENING, Database, Record, Records, Table, check_each, read_records

TABLES = ("users", "flights", "reservations")
AVAILABLE = "available"
CREDIT_CARD, GIFT_CARD, CERTIFICATE = "credit_card", "gift_card", "certificate"


@functools.lru_cache(maxsize=8)
def open_airline(folder: Path) -> Records:
    read = read_records(folder, TABLES)
    check_each(folder / "users.json", read.tables["users"], _check_user)
    check_each(folder / "flights.json", read.tables["flights"], _check_flight)
    check = functools.partial(_check_reservation, users=read.tables["users"])
    check_each(folder / "reservations.json", read.tables["reservations"], check)
    return read


def fresh(folder: Path) -> Database[Records]:
    with OPENING:
        return Database(open_airline(folder))


def _check_user(user: Record) -> None:
    _ = [*user["reservations"]]
    for method in user["payment_methods"].values():
        _ = 0.0 if method["source"] == CREDIT_CARD else method["amount"] + 0.0


def _check_flight(flight: Record) -> None:
    _ = flight["flight_number"] + flight["origin"] + flight["destination"]
    _ = flight["scheduled_departure_time_est"] + flight["scheduled_arrival_time_est"]
    for day in flight["dates"].values():
        if day["status"] == AVAILABLE:
            _ = [seats + 0 for seats in day["available_seats"].values()], [it + 0.0 for it in day["prices"].values()]


def _check_reservation(reservation: Record, *, users: Table) -> None:
    _ = users[reservation["user_id"]], reservation["cabin"], reservation["nonfree_baggages"] + 0
    _ = len(reservation["passengers"]), [flight["price"] + 0.0 for flight in reservation["flights"]]
    _ = [flight["flight_number"] + flight["date"] for flight in reservation["flights"]]
    _ = [entry["payment_id"] + "" for entry in reservation["payment_history"]]
    _ = [entry["amount"] + 0.0 for entry in reservation["payment_history"]]
