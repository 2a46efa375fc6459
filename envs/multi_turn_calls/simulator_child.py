"""The leaderboard's simulators in a separate, killable process, which executes calls.

    simulator_child.py FOLDER CPU_S

FOLDER holds the package `bfcl_eval`. The first output line reports the seal (`seal_probe`) and the simulators that can't be
loaded. The process reads lines `{"classes", "config", "long_context", "model", "reference"}`, the last two lists of calls
`{"name", "arguments"}`. It answers `{"model", "reference", "differing", "spans"}` or `{"fault"}`: the results of each list
on fresh simulators, the attributes in which the simulators then differ, and for each of the model's calls its start since
the request and its duration, in seconds. A request that takes more than CPU_S seconds of processor time ends the process.
Simulators are imported under the seal: they read their own files and the installed libraries, and can't write, open
sockets, fork or execute.
"""

import copy
import importlib
import inspect
import json
import os
import signal
import sys
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

temper = sys.modules["temper"] = types.ModuleType(
    "temper"
)  # this file runs by its path in a process without an import path
temper.__path__ = [os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))]
from temper.envs.multi_turn_calls.simulator_names import ERROR, MODULES, ROOM, STATELESS  # noqa: E402
from temper.envs.sandbox import namespaces, seal, seal_probe  # noqa: E402

MEMORY_BYTES = 2 * 2**30
MISSING = object()
Instances = dict[str, Any]
Call = dict[str, Any]
Answer = tuple[str, float, float]


def load_classes(folder: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the simulator classes that can be imported, and for the others the reason."""
    if not os.access(folder, os.R_OK | os.X_OK):
        return {}, dict.fromkeys(
            MODULES, f"user {os.getuid()}, as whom it runs, may not read {folder}; let others read it"
        )
    sys.path.insert(0, folder)
    importlib.import_module(ROOM.partition(".")[0])
    sys.path.remove(folder)
    classes, unusable = {}, {}
    for name, module in MODULES.items():
        try:
            classes[name] = vars(importlib.import_module(f"{ROOM}.{module}"))[name]
        except Exception as error:  # a third-party module may raise anything
            unusable[name] = f"{type(error).__name__}: {error}"
    return classes, unusable


def open_simulators(classes: dict[str, Any], request: dict[str, Any]) -> Instances:
    """Return new simulators in the initial state of a dialogue."""
    made = {}
    for name in request["classes"]:
        made[name] = classes[name]()
        if name not in STATELESS:
            config = copy.deepcopy(request["config"].get(name, {}))
            made[name]._load_scenario(config, long_context=request["long_context"])
    return made


def run_calls(instances: Instances, calls: Sequence[Call]) -> list[Answer]:
    """Execute calls in order and return their answers. If two simulators have the same method, the later one is called."""
    methods: dict[str, Callable[..., Any]] = {}
    for instance in instances.values():
        methods |= {name: method for name, method in inspect.getmembers(instance, inspect.ismethod) if name[0] != "_"}
    return [time_call(methods, call) for call in calls]


def time_call(methods: dict[str, Callable[..., Any]], call: Call) -> Answer:
    """Return the answer to a call, its start on the monotonic clock, and its duration in seconds."""
    began = time.monotonic()
    return call_result(methods, call), began, time.monotonic() - began


def call_result(methods: dict[str, Callable[..., Any]], call: Call) -> str:
    """Return the answer to a call as text. The model sees an exception."""
    if call["name"] not in methods:
        return f"{ERROR} name {call['name']!r} is not defined"
    try:
        answer = methods[call["name"]](**call["arguments"])
    except Exception as error:
        return f"{ERROR} {error}"
    if not isinstance(answer, dict):
        return str(answer)
    try:
        return json.dumps(answer)
    except (TypeError, ValueError):
        return str(answer)


def differing_attributes(model: Instances, reference: Instances) -> list[str]:
    """Return the public attributes that differ between the two sets of simulators."""
    return [
        f"{name}.{key}"
        for name, right in reference.items()
        for key, value in vars(right).items()
        if key[0] != "_" and vars(model[name]).get(key, MISSING) != value
    ]


def answer_request(classes: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request, with `fault` if a simulator failed other than by a wrong call."""
    came = time.monotonic()
    try:
        model, reference = open_simulators(classes, request), open_simulators(classes, request)
        answers = run_calls(model, request["model"])
        return {
            "model": [text for text, _, _ in answers],
            "reference": [text for text, _, _ in run_calls(reference, request["reference"])],
            "differing": differing_attributes(model, reference),
            "spans": [(began - came, seconds) for _, began, seconds in answers],
        }
    except Exception as error:
        return {"fault": f"{type(error).__name__}: {error}"}


def main(folder: str, cpu_s: float) -> None:
    """Serve until standard input ends."""
    out, sys.stdout = sys.stdout, sys.stderr
    sys.path.append(folder)
    namespaces.leave_root(seal.library_folders())
    seal.seal_library_user(memory_bytes=MEMORY_BYTES)
    sys.path.remove(folder)
    found = seal_probe.probe_seal(memory_bytes=MEMORY_BYTES)
    classes, unusable = load_classes(folder)
    print(json.dumps({"seal": found, "unusable": unusable}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        reply = answer_request(classes, request)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
