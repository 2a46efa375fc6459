"""The leaderboard's simulators (`bfcl_eval`): their names, and their locations and documents in the package."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "bfcl_eval"
ROOM = f"{PACKAGE}.eval_checker.multi_turn_eval.func_source_code"
DOCUMENTS = Path("data/multi_turn_func_doc")
MODULES: Mapping[str, str] = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""The module of each simulator, which is also the name of its document."""
STATELESS = ("MathAPI",)
ERROR = "Error during execution:"
"""Prefix of the answer to a call that raised an exception."""
PLACES = (
    PACKAGE,
    f"berkeley-function-call-leaderboard/{PACKAGE}",
    f"gorilla/berkeley-function-call-leaderboard/{PACKAGE}",
)
REMEDY = (
    "run `git clone https://github.com/ShishirPatil/gorilla` and set options.simulators to the folder, or to an installed "
    "bfcl-eval (`pip install --no-deps bfcl-eval`; the mathematics also needs mpmath)"
)


def package_at(folder: Path) -> Path | None:
    """Return the package at, in or below a folder, such as a clone, or None if there is none."""
    root = folder.resolve()
    for place in (*([root] if root.name == PACKAGE else []), *(root / below for below in PLACES)):
        if (place.joinpath(*ROOM.split(".")[1:])).is_dir():
            return place
    return None


def package_named(given: str) -> Path:
    found = package_at(Path(given).expanduser())
    if found is None:
        raise ValueError(f"options.simulators={given} has no package {PACKAGE} with simulators; {REMEDY}")
    return found


def package_for(folder: Path) -> Path:
    """Return the package that contains a folder of rows, otherwise the installed one, without importing it."""
    found = package_at(folder.resolve().parent) or package_at(folder)
    spec = find_spec(PACKAGE) if found is None else None
    if spec is not None:
        found = next((place for place in map(Path, spec.submodule_search_locations or ()) if package_at(place)), None)
    if found is None:
        raise ValueError(f"the simulators of the function-calling leaderboard are not at {folder}; {REMEDY}")
    return found
