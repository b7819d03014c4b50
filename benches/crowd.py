"""What several callers need: time under contention, of a hand-over, after a kill; CPU and memory of waiters."""

import ctypes
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measure import UTF8, in_turn, path_of, ratio, reap, spawn

libc = ctypes.CDLL(None)

LOOP = 'echo; read -r go; n=$1; shift; while [ "$n" -gt 0 ]; do "$@" || exit; n=$((n - 1)); done'
HOLD = "echo; read -r word || :"  # tells that it runs, and ends with its stdin
SETTLE = 0.05  # seconds that a waiter gets to fall asleep
LOOKS = 1.5  # seconds after which a waiter has looked for a deadlock, which it does once
KCMP = {"x86_64": 312}.get(platform.machine(), 272)  # number of the system call
FEW, MANY, STARTED_AT_ONCE = 10, 1_000, 25


def block(place, count, times, words, environment):
    """The seconds that some shells need, of which each runs a command some times. They start together."""
    ready, tell = os.pipe()
    barrier, go = os.pipe()
    call = [place.peers["dash"], "-c", LOOP, "loop", str(times), *words, place.true]
    actions = [(os.POSIX_SPAWN_DUP2, barrier, 0), (os.POSIX_SPAWN_DUP2, tell, 1)]
    shells = [spawn(call, environment, actions) for _ in range(count)]
    os.close(tell)
    told = 0
    while told < count:
        told += len(os.read(ready, count))
    os.close(barrier)
    begin = time.perf_counter()
    os.close(go)
    for shell in shells:
        reap(shell, call)
    os.close(ready)
    return time.perf_counter() - begin


def contend(place):
    """Shells that take one lock again and again."""
    for count, times, goal in ((8, 50, 1.40), (64, 6, 1.60)):
        takers = place.takers_and_floor()
        if not place.asked.complete:
            del takers["SQLite"]  # It takes ten times as long as all others.
        spans = {tool: [] for tool in takers}
        for _, tool in in_turn(takers, place.rounds(7, 25)):
            os.sync()  # No block waits for what the one before it wrote.
            spans[tool].append(block(place, count, times, *takers[tool]))
        for store in list(takers)[1:]:
            place.tables.figure(f"{count} contenders, wall time / flock, {store}", place.kind,
                                ratio(spans, store, "flock"), goal if store == "directory" else None)


class Holder:
    """A process group that holds a lock until its stdin ends."""

    def __init__(self, words, environment):
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
                                        start_new_session=True)
        self.process.stdout.read(1)

    def release(self):
        self.process.stdin.close()

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def until_next(place, holding, waiting, end):
    """The seconds from the end of a holder to the first byte that the next command writes."""
    holder = Holder(*holding)
    words, environment = waiting
    waiter = subprocess.Popen([*words, path_of("echo")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, env=environment)
    time.sleep(SETTLE)
    begin = time.perf_counter()
    end(holder)
    word = os.read(waiter.stdout.fileno(), 1)
    span = time.perf_counter() - begin
    waiter.stdout.close()
    if waiter.wait() or not word:
        sys.exit(f"versus: {' '.join(words)}: the waiter failed")
    holder.end()
    return span


def next_ones(place, end, scripts=False):
    """Seconds of each tool and round. The holder is a command under the lock, or a script that acquired it."""
    takers, dash = place.takers_and_floor("-w", "inf"), place.peers["dash"]
    holders = {tool: ([*words, dash, "-c", HOLD], environment) for tool, (words, environment) in takers.items()}
    if scripts:
        takers.pop("floor", None)
        lines = {tool: f"{place.binary} lock L" for tool in place.stores}
        lines["flock"] = f"exec 9>{takers['flock'][0][1]}; {place.peers['flock']} 9"
        holders = {tool: ([dash, "-c", f"{lines[tool]}; {HOLD}"], takers[tool][1]) for tool in takers}
    spans = {tool: [] for tool in takers}
    for _, tool in in_turn(takers, place.rounds(25, 200)):
        spans[tool].append(until_next(place, holders[tool], takers[tool], end))
    return spans


def hand(place):
    """One waiter: from the end of the command under the lock to the next command."""
    spans = next_ones(place, Holder.release)
    for store in [tool for tool in spans if tool != "flock"]:
        place.tables.figure(f"hand-over to one waiter / flock, median, {store}", place.kind,
                            ratio(spans, store, "flock"), 1.15 if store == "directory" else None)


def kill(place):
    """One waiter: from kill -9 of the holder, its command too, to the next command."""
    for what, scripts in (("command", False), ("script", True)):
        spans = next_ones(place, Holder.kill, scripts)
        for tool in spans:
            row = f"next command after kill -9 of a holding {what}, median ms, {tool}"
            place.tables.figure(row, place.kind, statistics.median(spans[tool]) * 1e3,
                                3 if tool == "directory" else None)


def members(pid):
    """A process and all its descendants."""
    found = [pid]
    for each in found:
        found += [int(word) for word in Path(f"/proc/{each}/task/{each}/children").read_text().split()]
    return found


def share_memory(one, other):
    """Whether two processes have the same memory: kcmp(2) with KCMP_VM."""
    return libc.syscall(KCMP, one, other, 1, 0, 0) == 0


def cpu_of(pid):
    """The seconds that a process has used until now."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def queued(place, tool, environment):
    """How many wait for the lock now."""
    if tool == "flock":
        inode = os.stat(place.takers()[tool][0][1]).st_ino
        return len(re.findall(rf"-> FLOCK .*:{inode} ", Path("/proc/locks").read_text()))
    call = [place.binary, "status", "--json", "L"]
    listed = subprocess.run(call, stdout=subprocess.PIPE, env=environment, check=True).stdout
    return sum(len(lock["waiters"]) for lock in json.loads(listed))


class Queue:
    """A holder, and so many waiters that are asleep."""

    def __init__(self, place, tool, count, *options):
        words, environment = place.takers(*options)[tool]
        self.holder = Holder([*words, place.peers["dash"], "-c", HOLD], environment)
        self.call, self.waiters, limit = [*words, place.true], [], time.monotonic() + 120
        while len(self.waiters) < count:
            at_once = min(STARTED_AT_ONCE, count - len(self.waiters))
            self.waiters += [spawn(self.call, environment) for _ in range(at_once)]
            while queued(place, tool, environment) < len(self.waiters):
                if time.monotonic() > limit:
                    sys.exit(f"versus: {tool}: {count} waiters are not in the queue after two minutes")
                time.sleep(0.01)
        time.sleep(LOOKS)

    def drain(self):
        """Lets all of them end. Returns the CPU seconds of one hand-over."""
        everyone = [self.holder.process.pid, *self.waiters]
        before = sum(cpu_of(member) for pid in everyone for member in members(pid))
        self.holder.release()
        # The usage of a process comes with its end, and contains that of its children.
        used = [reap(pid, self.call) for pid in everyone]
        self.holder.process.returncode = 0
        self.holder.end()
        return (sum(each.ru_utime + each.ru_stime for each in used) - before) / len(self.waiters)

    def memory(self):
        """KiB that the processes of the last waiter have for themselves. Memory that they share counts once."""
        alone = []
        for pid in members(self.waiters[-1]):
            if not any(share_memory(pid, other) for other in alone):
                alone.append(pid)
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in alone]
        return sum(int(re.search(r"^Private_Dirty: *(\d+)", rollup, re.MULTILINE)[1]) for rollup in rollups)


def crowd(place):
    """The CPU time of a hand-over in a long queue and in a short one."""
    spans = {(tool, count): [] for tool in place.takers() for count in (FEW, MANY)}
    for _, (tool, count) in in_turn(spans, place.rounds(3, 7)):
        # A short queue is over so soon that one says little.
        times = 10 if count == FEW else 1
        spans[tool, count].append(statistics.mean(Queue(place, tool, count, "-w", "inf").drain()
                                                  for _ in range(times)))
    for tool in place.takers():
        place.tables.figure(f"CPU of a hand-over, {MANY:,} waiters / {FEW}, {tool}", place.kind,
                            ratio(spans, (tool, MANY), (tool, FEW)), 1.10 if tool == "directory" else None)


def memory(place):
    """The private memory of a waiter, the last of ten."""
    os.sync()  # What is not written yet of a new program would count as its private memory.
    for tool in place.takers():
        found = []
        for _ in range(5):
            queue = Queue(place, tool, FEW)
            found.append(queue.memory())
            queue.drain()
        goal = 128 if tool == "directory" else None
        row = f"private memory of a waiter, KiB, {tool}"
        place.tables.figure(row, place.kind, statistics.median(found), goal, "{:.0f}")
