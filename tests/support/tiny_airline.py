"""An airline of two users, four flights and three reservations, small enough for manual calculation."""

import copy
import json
from pathlib import Path
from typing import Any

from temper.envs.airline.tools import TOOLS as AIRLINE_TOOLS

DAY, NEXT = "2024-05-20", "2024-05-21"


def day(price: int, seats: int = 2, *, status: str = "available") -> dict[str, Any]:
    """The record of a flight on a day."""
    if status != "available":
        return {"status": status}
    cabins = ("basic_economy", "economy", "business")
    prices = {cabin: price * (index + 1) for index, cabin in enumerate(cabins)}
    return {"status": status, "available_seats": dict.fromkeys(cabins, seats), "prices": prices}


def flight(number: str, way: str, times: str, dates: dict[str, Any]) -> dict[str, Any]:
    """A flight on some days."""
    (origin, destination), (departure, arrival) = way.split("-"), times.split("-")
    return {
        "flight_number": number,
        "origin": origin,
        "destination": destination,
        "scheduled_departure_time_est": departure,
        "scheduled_arrival_time_est": arrival,
        "dates": dates,
    }


FLIGHTS = {
    "HAT1": flight("HAT1", "JFK-SEA", "06:00:00-12:00:00", {DAY: day(100), NEXT: day(110)}),
    "HAT2": flight("HAT2", "JFK-ORD", "07:00:00-09:00:00", {DAY: day(40), NEXT: day(0, status="delayed")}),
    "HAT3": flight("HAT3", "ORD-SEA", "10:00:00-13:00:00", {DAY: day(50, 1), NEXT: day(60)}),
    "HAT4": flight("HAT4", "JFK-ORD", "23:00:00-01:00:00+1", {DAY: day(30)}),
}
USERS = {
    "ann_lee_1": {
        "name": {"first_name": "Ann", "last_name": "Lee"},
        "payment_methods": {
            "credit_card_1": {"source": "credit_card", "brand": "visa", "last_four": "1234", "id": "credit_card_1"},
            "gift_card_1": {"source": "gift_card", "amount": 120, "id": "gift_card_1"},
            "certificate_1": {"source": "certificate", "amount": 100, "id": "certificate_1"},
        },
        "membership": "gold",
        "reservations": ["AAA", "BBB"],
    },
    "bob_ray_2": {
        "name": {"first_name": "Bob", "last_name": "Ray"},
        "payment_methods": {"credit_card_2": {"source": "credit_card", "id": "credit_card_2"}},
        "membership": "regular",
        "reservations": ["CCC"],
    },
}
ANN = {"first_name": "Ann", "last_name": "Lee", "dob": "1990-04-05"}
BOB = {"first_name": "Bob", "last_name": "Ray", "dob": "1980-01-02"}


def segment(number: str, date: str, price: int) -> dict[str, Any]:
    """A flight of a reservation."""
    known = FLIGHTS[number]
    way = {"origin": known["origin"], "destination": known["destination"]}
    return {**way, "flight_number": number, "date": date, "price": price}


def reservation(
    name: str, user_id: str, cabin: str, flights: list[dict[str, Any]], passengers: list[dict[str, str]], method: str
) -> dict[str, Any]:
    """A reservation with a single payment."""
    paid = sum(each["price"] for each in flights) * len(passengers)
    return {
        "reservation_id": name,
        "user_id": user_id,
        "origin": "JFK",
        "destination": "SEA",
        "flight_type": "one_way",
        "cabin": cabin,
        "flights": flights,
        "passengers": passengers,
        "payment_history": [{"payment_id": method, "amount": paid}],
        "created_at": "2024-05-02T03:10:19",
        "total_baggages": 1,
        "nonfree_baggages": 1,
        "insurance": "no",
    }


RESERVATIONS = {
    "AAA": reservation("AAA", "ann_lee_1", "economy", [segment("HAT1", DAY, 190)], [ANN], "credit_card_1"),
    "BBB": reservation(
        "BBB",
        "ann_lee_1",
        "basic_economy",
        [segment("HAT2", DAY, 35), segment("HAT3", DAY, 45)],
        [ANN, BOB],
        "gift_card_1",
    ),
    "CCC": reservation("CCC", "bob_ray_2", "business", [segment("HAT1", NEXT, 330)], [BOB], "credit_card_2"),
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object"}}}
    for name in AIRLINE_TOOLS.tools
]


def write_airline(folder: Path) -> Path:
    """Write the airline's files and return their folder."""
    tables = {"users": USERS, "flights": FLIGHTS, "reservations": RESERVATIONS, "tools": TOOLS}
    for name, table in tables.items():
        (folder / f"{name}.json").write_text(json.dumps(copy.deepcopy(table)))
    (folder / "policy.md").write_text("Be of service.")
    return folder
