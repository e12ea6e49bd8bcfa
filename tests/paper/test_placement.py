"""Which runs start next: nothing is used twice, what measures time is alone, and all that fit get their turn."""

from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.paper.nodes import split
from pufferfish_bench.paper.placement import Machine, Need, Running, finished_after, planned, starts

NEEDS = st.lists(st.builds(Need, st.integers(1, 12), st.booleans()) | st.just(Need(0, alone=True)), max_size=12)


@st.composite
def machine_with_gpus(draw: st.DrawFn) -> Machine:
    count = draw(st.integers(1, 9))
    return Machine(tuple(f"gpu{number}" for number in range(count)), draw(st.integers(1, count)), has_gpus=True)


@given(NEEDS, machine_with_gpus(), st.data())
def test_every_run_that_fits_gets_its_turn_whatever_ends_first(needs: list[Need], machine: Machine, data: st.DataObject):
    waiting, running, started = list(range(len(needs))), {}, []
    while True:
        busy = [Running(slots, needs[place].alone) for place, slots in running.items()]
        chosen = {waiting[index]: slots for index, slots in starts([needs[place] for place in waiting], busy, machine).items()}
        running |= chosen
        started += chosen
        waiting = [place for place in waiting if place not in chosen]
        used = [slot for slots in running.values() for slot in slots]
        assert len(used) == len(set(used))
        assert set(used) <= set(machine.slots)
        assert all(len(slots) == needs[place].slots for place, slots in running.items())
        assert len(running) <= machine.jobs
        assert len(running) == 1 or not any(needs[place].alone for place in running)
        if not running:
            break
        del running[data.draw(st.sampled_from(sorted(running)))]
    assert sorted(started) == [place for place, need in enumerate(needs) if machine.fits(need)]
    alone = [needs[place].alone for place in started]
    assert alone == sorted(alone)  # those that must be alone come last: no slot is kept free for them


@given(NEEDS, machine_with_gpus(), st.data())
def test_no_slot_is_idle_while_a_run_that_fits_into_it_waits(needs: list[Need], machine: Machine, data: st.DataObject):
    shared = [need for need in needs if not need.alone]
    busy = data.draw(st.lists(st.sampled_from(machine.slots), unique=True, max_size=len(machine.slots)))
    running = [Running((slot,)) for slot in busy]
    chosen = starts(shared, running, machine)
    free = len(machine.slots) - len(busy) - sum(map(len, chosen.values()))
    if len(running) + len(chosen) < machine.jobs:
        assert all(need.slots > free for place, need in enumerate(shared) if place not in chosen)


@given(NEEDS, machine_with_gpus(), st.data())
def test_a_plan_is_no_longer_than_one_after_the_other_and_no_shorter_than_the_work_allows(
    needs: list[Need], machine: Machine, data: st.DataObject
):
    durations = [data.draw(st.integers(1, 20)) for _ in needs]
    fitting = [place for place, need in enumerate(needs) if machine.fits(need)]
    sittings = planned(needs, durations, machine)
    assert sorted(sittings) == fitting
    total = finished_after(needs, durations, machine)
    assert total <= sum(durations[place] for place in fitting)
    assert total * len(machine.slots) >= sum(durations[place] * needs[place].slots for place in fitting)
    for one in fitting:
        for other in fitting:
            a, b = sittings[one], sittings[other]
            if one != other and a.start < b.end and b.start < a.end:
                assert not set(a.slots) & set(b.slots)
                assert not needs[one].alone


@given(st.integers(1, 64), st.integers(1, 16))
def test_workers_are_shared_equally_over_the_fewest_nodes(workers: int, per_node: int):
    nodes = split(workers, per_node)
    assert workers % nodes == 0
    assert workers // nodes <= per_node
    assert not any(workers % fewer == 0 and workers // fewer <= per_node for fewer in range(1, nodes))
