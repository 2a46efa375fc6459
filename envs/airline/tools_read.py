"""The airline's tools that change nothing. A refused call raises `Refusal` with what the model is told."""

import json
from collections.abc import Iterator
from datetime import date as calendar_date
from datetime import timedelta

from temper.envs.airline.database import AVAILABLE, Database
from temper.envs.service.records import Record
from temper.envs.service.tools import Refusal

AIRPORTS = {
    "SFO": "San Francisco",
    "JFK": "New York",
    "LAX": "Los Angeles",
    "ORD": "Chicago",
    "DFW": "Dallas",
    "DEN": "Denver",
    "SEA": "Seattle",
    "ATL": "Atlanta",
    "MIA": "Miami",
    "BOS": "Boston",
    "PHX": "Phoenix",
    "IAH": "Houston",
    "LAS": "Las Vegas",
    "MCO": "Orlando",
    "EWR": "Newark",
    "CLT": "Charlotte",
    "MSP": "Minneapolis",
    "DTW": "Detroit",
    "PHL": "Philadelphia",
    "LGA": "LaGuardia",
}
"""Cities by the IATA codes of their airports."""
NEXT_DAY = "+1"
"""What a time ends with that is on the day after the departure."""


def get_reservation_details(database: Database, *, reservation_id: str) -> str:
    """Return the reservation as JSON."""
    return json.dumps(known_reservation(database, reservation_id))


def known_reservation(database: Database, reservation_id: str) -> Record:
    """Return a reservation as it is now. Raise `Refusal` where there is none of this id."""
    reservation = database.reservation(reservation_id)
    if reservation is None:
        raise Refusal("reservation not found")
    return reservation


def list_all_airports(database: Database) -> str:
    """Return the cities by the codes of their airports, as JSON."""
    return json.dumps(AIRPORTS)


def search_direct_flight(database: Database, *, origin: str, destination: str, date: str) -> str:
    """Return the flights of a day that can be booked, with their seats and prices, as JSON."""
    found = [_on(flight, date) for flight in _departing(database, origin, date) if flight["destination"] == destination]
    return json.dumps(found)


def search_onestop_flight(database: Database, *, origin: str, destination: str, date: str) -> str:
    """Return the pairs of flights that can be booked, the second leaving after the first one's arrival, as JSON.

    The second is on the day on which the first arrives, by whose times the two are compared as they are written.
    """
    pairs = []
    for first in _departing(database, origin, date):
        arrival = first["scheduled_arrival_time_est"]
        day = _day_after(date) if NEXT_DAY in arrival else date
        for second in _departing(database, first["destination"], day):
            if second["destination"] == destination and arrival <= second["scheduled_departure_time_est"]:
                pairs.append([_on(first, date) | {"date": date}, _on(second, day) | {"date": day}])
    return json.dumps(pairs)


def _departing(database: Database, origin: str, date: str) -> Iterator[Record]:
    """Yield the flights from an airport that can be booked for a day."""
    for flight in database.flights.values():
        if flight["origin"] == origin and flight["dates"].get(date, {}).get("status") == AVAILABLE:
            yield flight


def _on(flight: Record, date: str) -> Record:
    """Return what is said of a flight on a day."""
    return {key: value for key, value in flight.items() if key != "dates"} | flight["dates"][date]


def _day_after(date: str) -> str:
    try:
        return (calendar_date.fromisoformat(date) + timedelta(days=1)).isoformat()
    except ValueError:
        raise Refusal(f"date must be like 2024-05-01, not {date!r}") from None
