"""The data of two charts in docs/pictures: the time of a command among contenders, and the order of turns."""

import contextlib
import os
import statistics

from alone import cluster
from crowd import block
from measure import UTF8, in_turn, note, spawn

CONTENDERS = {1: 200, 8: 50, 64: 6, 1_000: 1}  # how often each of so many shells takes the lock
CALLERS, CALLS = 32, 2_000  # so many callers at once, and so many in all
POINTS = 50
NAMES = {"flock": "flock", "directory": "csalock", "SQLite": "csalock, SQLite", "etcd": "csalock, etcd"}


def picture(place):
    """The data of the charts in docs/pictures, which --write puts there."""
    takers = place.takers("-w", "inf")
    with contextlib.ExitStack() as stack:
        if place.peers["etcd"] and place.peers["etcdctl"]:
            clients = stack.enter_context(cluster(place, 1))
            takers["etcd"] = takers["directory"][0], {**UTF8, "CSALOCK_STORE": f"etcd://{','.join(clients)}/versus"}
        contenders(place, takers)
    waits(place, {tool: takers[tool] for tool in ("flock", "directory")})


def contenders(place, takers):
    """The milliseconds of a command, from the start of all shells to their ends, by the number of shells."""
    series = {NAMES[tool]: [] for tool in takers}
    for count, times in CONTENDERS.items():
        times = times if place.asked.complete else max(times // 10, 1)
        # So many clients of etcd take minutes on one machine.
        is_short = count == max(CONTENDERS) and not place.asked.complete
        spans = {tool: [] for tool in takers if tool != "etcd" or not is_short}
        for _, tool in in_turn(spans, place.rounds(1, 5 if count < max(CONTENDERS) else 3)):
            os.sync()  # No block waits for what the one before it wrote.
            spans[tool].append(block(place, count, times, *takers[tool]) / (count * times))
        for tool, found in spans.items():
            series[NAMES[tool]].append([count, round(statistics.median(found) * 1e3, 2)])
            note(f"picture: {count} contenders, {tool}: {series[NAMES[tool]][-1][1]} ms")
    place.tables.pictures["contenders"] = {
        "kind": "chart",
        "title": "A command under a lock, by the number of shells that want it",
        "x": {"text": "shells that take the lock again and again", "log": True, "ticks": list(CONTENDERS)},
        "y": {"text": "milliseconds for each command", "log": True},
        "series": series,
    }


def waits(place, takers):
    """How many others get their turn while a caller waits: in order of arrival, always as many as are in the queue."""
    series, calls = {}, place.rounds(CALLS // 10, CALLS)
    for tool, (words, environment) in takers.items():
        turns = sorted(turns_of([*words, place.peers["dash"], "-c", 'echo "$0"'], environment, calls))
        chosen = [round(share * (len(turns) - 1) / POINTS) for share in range(POINTS + 1)]
        series[NAMES[tool]] = [[share * 100 // POINTS, turns[at]] for share, at in enumerate(chosen)]
        note(f"picture: waits, {tool}: from {turns[0]} to {turns[-1]} turns of others")
    place.tables.pictures["waits"] = {
        "kind": "chart",
        "title": f"Turns of others during a wait, with {CALLERS} callers that come back after each turn",
        "x": {"text": "percent of all waits, from the shortest to the longest", "ticks": [0, 25, 50, 75, 100]},
        "y": {"text": "turns of others during a wait"},
        "series": series,
    }


def turns_of(words, environment, calls):
    """The number of other commands that begin while a caller waits, for each caller. Each command prints its number."""
    ready, tell = os.pipe()
    before, turns, running, rest = [], {}, set(), b""

    def start():
        call = [*words, str(len(before))]
        before.append(len(turns))
        running.add(spawn(call, environment, [(os.POSIX_SPAWN_DUP2, tell, 1)]))

    for _ in range(CALLERS):
        start()
    while running:
        if len(turns) < calls:
            rest += os.read(ready, 4096)
            *numbers, rest = rest.split(b"\n")
            for number in map(int, numbers):
                turns[number] = len(turns) - before[number]
        while running:
            ended, status = os.waitpid(-1, os.WNOHANG if len(turns) < calls else 0)
            if not ended:
                break
            if status:
                raise SystemExit(f"versus: {' '.join(words)}: ended with {os.waitstatus_to_exitcode(status)}")
            running.discard(ended)
            if len(before) < calls:
                start()
    os.close(ready)
    os.close(tell)
    # The queue grows when the first callers come, and shrinks at the end.
    return [turns[number] for number in range(CALLERS, calls - CALLERS)]
