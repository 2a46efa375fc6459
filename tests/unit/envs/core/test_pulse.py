"""Signs of life of a worker."""

from temper.envs.core.member import Heart


def test_a_heart_counts_its_beats_and_is_quiet_only_while_it_is_busy() -> None:
    now = [0.0]
    heart = Heart(clock=lambda: now[0])
    assert (heart.pulse().progress, heart.pulse().quiet_s) == (0, 0.0)
    now[0] = 5.0
    assert heart.pulse().quiet_s == 0.0
    with heart.busy("train"):
        now[0] = 7.0
        assert (heart.pulse().doing, heart.pulse().quiet_s) == ("train", 2.0)
        heart.beat(3)
        assert (heart.pulse().progress, heart.pulse().quiet_s) == (4, 0.0)
    now[0] = 99.0
    assert (heart.pulse().doing, heart.pulse().quiet_s, heart.pulse().progress) == ("", 0.0, 5)


def test_what_overlaps_is_named_by_what_began_first() -> None:
    heart = Heart()
    with heart.busy("a group"):
        with heart.busy("weights"):
            assert heart.pulse().doing == "a group"
        assert heart.pulse().doing == "a group"
    assert heart.pulse().doing == ""
