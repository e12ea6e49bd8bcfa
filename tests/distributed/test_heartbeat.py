"""Warnings about ranks that send no heartbeat, or that the others wait for; real ones are stopped in test_workers.py."""

import time

import torch.distributed as dist

from pufferfish_bench.distributed.heartbeat import LEFT, LOOKS, Heartbeat, Watch

RANKS = 3


def watch(rank: int = 0) -> Watch:
    return Watch(rank=rank, size=RANKS, seconds=6.0)


def signs(beat: int, arrivals: tuple[int, ...] = (5,) * RANKS, **fixed: str) -> dict[int, str]:
    """The signs of life of all ranks at a beat; `r1="..."` replaces that of rank 1."""
    return {rank: fixed.get(f"r{rank}", f"{beat} {arrivals[rank]}") for rank in range(RANKS)}


def said(watch: Watch, *stretches: list[dict[int, str]]) -> list[str]:
    return [sentence for stretch in stretches for look in stretch for sentence in watch.look(look)]


def test_nothing_is_reported_while_all_ranks_send_heartbeats_even_if_none_reaches_a_collective():
    assert said(watch(), [signs(beat) for beat in range(5 * LOOKS)]) == []


def test_a_silent_rank_is_named_once_and_again_when_it_continues():
    silent = [signs(beat, r1="0 5") for beat in range(3 * LOOKS)]
    assert said(watch(), silent) == ["rank 1 has sent no heartbeat for 60 seconds: its process or its machine hangs"]
    assert said(watch(), silent[:LOOKS]) == []
    assert said(watch(), silent, [signs(100)])[1:] == ["rank 1 has resumed"]


def test_only_the_first_living_rank_reports():
    silent = [signs(beat, r0="0 5", r2="0 5") for beat in range(2 * LOOKS)]
    assert [len(said(watch(rank), silent)) for rank in (1, 2)] == [2, 0]
    assert said(watch(1), silent, [signs(100)])[2:] == ["rank 0 has resumed", "rank 2 has resumed"]
    left = [signs(beat, r0=LEFT, r2="0 5") for beat in range(2 * LOOKS)]
    assert [len(said(watch(rank), left)) for rank in (1, 2)] == [1, 0]


def test_a_rank_that_has_left_is_not_reported():
    assert said(watch(), [signs(0)], [signs(beat, r1=LEFT) for beat in range(1, 5 * LOOKS)]) == []


def test_a_rank_that_is_alive_but_keeps_others_waiting_is_named():
    waiting = [signs(beat, arrivals=(6, 5, 6)) for beat in range(2 * LOOKS)]
    assert said(watch(), waiting) == ["rank 1 is alive, but the others have waited 60 seconds for it"]
    working = [signs(beat, arrivals=(6 + beat, 5 + beat, 6 + beat)) for beat in range(5 * LOOKS)]
    assert said(watch(), working) == []


def test_a_rank_that_falls_silent_while_others_wait_is_reported_only_as_silent():
    waiting = [signs(0, (5, 5, 5)), signs(1, (6, 5, 6)), *(signs(beat, (6, 5, 6), r1="2 5") for beat in range(2, 3 * LOOKS))]
    sentences = said(watch(), waiting)
    assert len(sentences) == 1
    assert "no heartbeat" in sentences[0]


def test_heartbeats_reach_other_ranks_through_a_store_and_announce_that_a_rank_leaves():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    hearts = [
        Heartbeat(dist.PrefixStore("a", server), rank=rank, size=2, warn_after=0.1, arrivals=lambda rank=rank: 10 + rank)
        for rank in (0, 1)
    ]
    for heart in hearts:
        heart.start()
    while not all(heart.exchanges > 5 and len(heart.signs) == 2 for heart in hearts):
        time.sleep(0.01)
    assert [sign.split()[1] for sign in hearts[0].signs.values()] == ["10", "11"]
    hearts[1].stop()
    while hearts[0].signs[1] != LEFT:
        time.sleep(0.01)
    hearts[0].stop()
    assert not any(thread.is_alive() for heart in hearts for thread in heart.threads)
