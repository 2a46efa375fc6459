"""The airline's tools. The first ones change nothing. A refused call raises `Refusal` with its answer to the model.

A tool that changes the database checks everything first, so that a refused call changes nothing. No tool checks the
policy's rules for the agent (who may cancel, how many bags are free, which payments combine). A reservation keeps its
booked cabin, and its flights get the prices of the new one.
"""

import json
from collections.abc import Iterator
from datetime import date as calendar_date
from datetime import timedelta
from typing import Any

from temper.envs.airline.database import AVAILABLE, CERTIFICATE, CREDIT_CARD, GIFT_CARD
from temper.envs.service import tools as service
from temper.envs.service.records import Database as AnyDatabase
from temper.envs.service.records import Record, Records
from temper.envs.service.tools import Refusal, is_number, require_record

Database = AnyDatabase[Records]
AIRPORTS = {
    "SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago", "DFW": "Dallas",
    "DEN": "Denver", "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami", "BOS": "Boston", "PHX": "Phoenix",
    "IAH": "Houston", "LAS": "Las Vegas", "MCO": "Orlando", "EWR": "Newark", "CLT": "Charlotte", "MSP": "Minneapolis",
    "DTW": "Detroit", "PHL": "Philadelphia", "LGA": "LaGuardia",
}  # fmt: skip
NEXT_DAY = "+1"
"""Suffix of a time on the day after the departure."""
NOW = "2024-05-15T15:00:00"
"""The current time in the policy."""
NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
NEW_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
INSURANCE, BAG = 30, 50
"""Price in dollars of a passenger's insurance, and of an extra bag."""


def get_reservation_details(database: Database, *, reservation_id: str) -> str:
    return json.dumps(require_record(database, "reservations", reservation_id))


def list_all_airports(database: Database) -> str:
    return json.dumps(AIRPORTS)


def search_direct_flight(database: Database, *, origin: str, destination: str, date: str) -> str:
    """Return the bookable flights of a day, with seats and prices, as JSON."""
    found = [_on(flight, date) for flight in _departing(database, origin, date) if flight["destination"] == destination]
    return json.dumps(found)


def search_onestop_flight(database: Database, *, origin: str, destination: str, date: str) -> str:
    """Return the bookable pairs of flights, the second after the first one's arrival, as JSON."""
    pairs = []
    for first in _departing(database, origin, date):
        arrival = first["scheduled_arrival_time_est"]
        day = _day_after(date) if NEXT_DAY in arrival else date
        for second in _departing(database, first["destination"], day):
            if second["destination"] == destination and arrival <= second["scheduled_departure_time_est"]:
                pairs.append([_on(first, date) | {"date": date}, _on(second, day) | {"date": day}])
    return json.dumps(pairs)


def _departing(database: Database, origin: str, date: str) -> Iterator[Record]:
    """Yield the bookable flights from an airport on a day."""
    for flight in database.records.tables["flights"].values():
        if flight["origin"] == origin and flight["dates"].get(date, {}).get("status") == AVAILABLE:
            yield flight


def _on(flight: Record, date: str) -> Record:
    return {key: value for key, value in flight.items() if key != "dates"} | flight["dates"][date]


def _day_after(date: str) -> str:
    try:
        return (calendar_date.fromisoformat(date) + timedelta(days=1)).isoformat()
    except ValueError:
        raise Refusal(f"date must be like 2024-05-01, not {date!r}") from None


def book_reservation(
    database: Database,
    *,
    user_id: str,
    origin: str,
    destination: str,
    flight_type: str,
    cabin: str,
    flights: list[dict[str, Any]],
    passengers: list[dict[str, Any]],
    payment_methods: list[dict[str, Any]],
    total_baggages: int,
    nonfree_baggages: int,
    insurance: str,
) -> str:
    """Book flights, paid in full by the user's methods. A certificate is used up. Seat counts do not change."""
    user = require_record(database, "users", user_id)
    _require_texts(passengers, "passengers", "first_name", "last_name", "dob")
    booked = [_priced(database, flight, cabin, len(passengers)) for flight in _segments(flights)]
    price = sum(flight["price"] for flight in booked) * len(passengers) + BAG * nonfree_baggages
    price += INSURANCE * len(passengers) if insurance == "yes" else 0
    _check_payments(user, payment_methods, price)
    reservation_id = next((it for it in NEW_RESERVATIONS if database.find("reservations", it) is None), None)
    if reservation_id is None:
        raise Refusal(f"no more than {len(NEW_RESERVATIONS)} reservations can be made")
    user = database.edit("users", user_id)
    for payment in payment_methods:
        _take(user, payment["payment_id"], payment["amount"])
    user["reservations"].append(reservation_id)
    reservation = {
        "reservation_id": reservation_id,
        "user_id": user_id,
        "origin": origin,
        "destination": destination,
        "flight_type": flight_type,
        "cabin": cabin,
        "flights": booked,
        "passengers": [dict(passenger) for passenger in passengers],
        "payment_history": [dict(payment) for payment in payment_methods],
        "created_at": NOW,
        "total_baggages": total_baggages,
        "nonfree_baggages": nonfree_baggages,
        "insurance": insurance,
    }
    database.add("reservations", reservation_id, reservation)
    return json.dumps(reservation)


def cancel_reservation(database: Database, *, reservation_id: str) -> str:
    """Cancel a whole reservation. All payments are recorded as refunds, which take days."""
    require_record(database, "reservations", reservation_id)
    reservation = database.edit("reservations", reservation_id)
    history = reservation["payment_history"]
    history += [{"payment_id": entry["payment_id"], "amount": -entry["amount"]} for entry in history]
    reservation["status"] = "cancelled"
    return json.dumps(reservation)


def send_certificate(database: Database, *, user_id: str, amount: float) -> str:
    user = require_record(database, "users", user_id)
    payment_id = next((it for it in NEW_CERTIFICATES if it not in user["payment_methods"]), None)
    if payment_id is None:
        raise Refusal(f"no more than {len(NEW_CERTIFICATES)} certificates can be sent")
    methods = database.edit("users", user_id)["payment_methods"]
    methods[payment_id] = {"source": CERTIFICATE, "amount": amount, "id": payment_id}
    return f"Certificate {payment_id} added to user {user_id} with amount {amount}."


def update_reservation_baggages(
    database: Database, *, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
) -> str:
    """Set the numbers of bags. Additional bags that are not free are paid."""
    reservation = require_record(database, "reservations", reservation_id)
    price = BAG * max(0, nonfree_baggages - reservation["nonfree_baggages"])
    _pay(database, reservation, payment_id, price)
    reservation = database.edit("reservations", reservation_id)
    reservation.update({"total_baggages": total_baggages, "nonfree_baggages": nonfree_baggages})
    return json.dumps(reservation)


def update_reservation_flights(
    database: Database, *, reservation_id: str, cabin: str, flights: list[dict[str, Any]], payment_id: str
) -> str:
    """Replace all flights of a reservation. Flights that stay in the same cabin keep their prices. The difference is paid."""
    reservation = require_record(database, "reservations", reservation_id)
    count = len(reservation["passengers"])
    kept = {
        (flight["flight_number"], flight["date"]): flight
        for flight in reversed(reservation["flights"])
        if cabin == reservation["cabin"]
    }
    new = []
    for flight in _segments(flights):
        old = kept.get((flight["flight_number"], flight["date"]))
        same = {key: old[key] for key in ("price", "origin", "destination")} if old is not None else None
        new.append(_priced(database, flight, cabin, count) if same is None else flight | same)
    before = sum(flight["price"] for flight in reservation["flights"])
    _pay(database, reservation, payment_id, (sum(flight["price"] for flight in new) - before) * count)
    reservation = database.edit("reservations", reservation_id)
    reservation["flights"] = new
    return json.dumps(reservation)


def update_reservation_passengers(database: Database, *, reservation_id: str, passengers: list[dict[str, Any]]) -> str:
    """Replace the passengers of a reservation by as many others."""
    reservation = require_record(database, "reservations", reservation_id)
    _require_texts(passengers, "passengers", "first_name", "last_name", "dob")
    if len(passengers) != len(reservation["passengers"]):
        raise Refusal("number of passengers does not match")
    reservation = database.edit("reservations", reservation_id)
    reservation["passengers"] = [dict(passenger) for passenger in passengers]
    return json.dumps(reservation)


def _require_texts(entries: list[dict[str, Any]], what: str, *keys: str) -> None:
    for key in keys:
        if not all(isinstance(entry.get(key), str) for entry in entries):
            raise Refusal(f"each of the {what} must have a {key}, which is a string")


def _segments(flights: list[dict[str, Any]]) -> list[dict[str, Any]]:
    _require_texts(flights, "flights", "flight_number", "date")
    return flights


def _priced(database: Database, flight: dict[str, Any], cabin: str, passengers: int) -> Record:
    """Return a flight with today's price. Raise `Refusal` if it has too few seats."""
    number, date = flight["flight_number"], flight["date"]
    known = database.records.tables["flights"].get(number)
    if known is None:
        raise Refusal(f"flight {number} not found")
    if date not in known["dates"]:
        raise Refusal(f"flight {number} not found on date {date}")
    day = known["dates"][date]
    if day["status"] != AVAILABLE:
        raise Refusal(f"flight {number} not available on date {date}")
    if cabin not in day["available_seats"]:
        raise Refusal(f"cabin must be one of {', '.join(day['available_seats'])}")
    if day["available_seats"][cabin] < passengers:
        raise Refusal(f"not enough seats on flight {number}")
    return flight | {"price": day["prices"][cabin], "origin": known["origin"], "destination": known["destination"]}


def _check_payments(user: Record, payments: list[dict[str, Any]], price: float) -> None:
    """Raise `Refusal` unless the payments add up to the price, and each method is the user's and covers its amount."""
    _require_texts(payments, "payment_methods", "payment_id")
    if not all(is_number(payment.get("amount")) for payment in payments):
        raise Refusal("each of the payment_methods must have an amount, which is a number")
    paid: dict[str, float] = {}
    for payment in payments:
        payment_id = payment["payment_id"]
        paid[payment_id] = paid.get(payment_id, 0) + payment["amount"]
        method = user["payment_methods"].get(payment_id)
        if method is None:
            raise Refusal(f"payment method {payment_id} not found")
        if method["source"] != CREDIT_CARD and method["amount"] < paid[payment_id]:
            raise Refusal(f"not enough balance in payment method {payment_id}")
    total = sum(payment["amount"] for payment in payments)
    if total != price:
        raise Refusal(f"payment amount does not add up, total price is {price}, but paid {total}")


def _pay(database: Database, reservation: Record, payment_id: str, price: float) -> None:
    """Pay a price, or refund a negative one, and record it. Raise `Refusal` if the method can't."""
    user = require_record(database, "users", reservation["user_id"])
    method = user["payment_methods"].get(payment_id)
    if method is None:
        raise Refusal("payment method not found")
    if method["source"] == CERTIFICATE:
        raise Refusal("certificate cannot be used to update reservation")
    if method["source"] == GIFT_CARD and method["amount"] < price:
        raise Refusal("gift card balance is not enough")
    if price != 0:
        _take(database.edit("users", reservation["user_id"]), payment_id, price)
        entry = {"payment_id": payment_id, "amount": price}
        database.edit("reservations", reservation["reservation_id"])["payment_history"].append(entry)


def _take(user: Record, payment_id: str, amount: float) -> None:
    """Take an amount from a gift card. A certificate is removed after use, a credit card has no balance."""
    methods = user["payment_methods"]
    if payment_id in methods and methods[payment_id]["source"] == GIFT_CARD:
        methods[payment_id]["amount"] -= amount
    elif payment_id in methods and methods[payment_id]["source"] == CERTIFICATE:
        del methods[payment_id]


TOOLS = service.ToolSet(
    writing=(
        book_reservation,
        cancel_reservation,
        send_certificate,
        update_reservation_baggages,
        update_reservation_flights,
        update_reservation_passengers,
    ),
    reading=(
        service.calculate,
        get_reservation_details,
        service.get_user_details,
        list_all_airports,
        search_direct_flight,
        search_onestop_flight,
        service.think,
        service.transfer_to_human_agents,
    ),
)
