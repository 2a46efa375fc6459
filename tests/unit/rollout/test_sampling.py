"""Sampling parameters: validation, JSON, and turns that end at a stop string."""

from dataclasses import replace

import pytest
from support.plain_pool import TICKET
from support.refusals import refuses

from temper.rollout.codec import from_json, to_json
from temper.rollout.sampling import PLAIN, Sampling, sampling_to_json
from temper.rollout.trajectory import Group

SAMPLINGS = [
    PLAIN,
    Sampling(temperature=0),
    Sampling(temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, max_tokens=7, stop=["\n\n", "Question:"]),
]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"temperature": -1.0}, "sampling.temperature=-1.0"),
        ({"temperature": 0.001}, "sampling.temperature=0.001"),
        ({"temperature": float("nan")}, "sampling.temperature=nan"),
        ({"top_p": 0.0}, "sampling.top_p=0.0"),
        ({"top_k": -1}, "sampling.top_k=-1"),
        ({"min_p": 1.5}, "sampling.min_p=1.5"),
        ({"max_tokens": 0}, "sampling.max_tokens=0"),
        ({"stop": ["a", ""]}, "sampling.stop"),
        ({"temperature": 0.0, "top_k": 5}, "top_k=5"),
    ],
)
def test_a_setting_that_means_nothing_is_refused_with_its_value(given: dict[str, object], named: str) -> None:
    with refuses(named):
        Sampling(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_it_is_in_the_json_of_a_group_and_comes_back(sampling: Sampling) -> None:
    group = Group(ticket=replace(TICKET, sampling=sampling), trajectories=())
    assert Sampling(**sampling_to_json(sampling)) == sampling
    assert from_json(Group, to_json(group.without_data)).with_task(TICKET.task) == group


def test_an_answer_ends_before_the_first_stop_string_in_it() -> None:
    sampling = Sampling(stop=["Question:", "\n\n"])
    assert sampling.cut_at_stop_string("12\n\nQuestion: 3") == "12"
    assert sampling.cut_at_stop_string("12\n") == "12\n"
    assert PLAIN.cut_at_stop_string("12\n\n") == "12\n\n"
