"""Many at once: who contend for one lock, who hand it over, who wait in a crowd, each for one lock or for its own."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rig import CALLERS, adopt_orphans, path_of

CONTENDERS = {2: 200, 8: 50, 64: 6}  # so often each
CROWDS, LOCKS = (10, 100, 1_000), (10, 1_000)
HAND_OVERS = 50
SETTLE = 0.05  # seconds, for a waiter to begin to wait
LOOP = 'n=$1; shift; while [ "$n" -gt 0 ]; do "$@" || exit; n=$((n - 1)); done'
JOB = "echo; read word || :"  # says that it runs, and ends when its stdin does
A_FEW = 25
PATIENT = ["-w", "inf"]


def contend(bench):
    tools, rows = bench.tools(), []
    for count, times in CONTENDERS.items():
        walls = {tool: [] for tool in tools}
        for tool in bench.in_turn(tools):
            call = [bench.dash, "-c", LOOP, "loop", str(times), *tools[tool], bench.true]
            begin = time.perf_counter()
            running = [subprocess.Popen(call, env=CALLERS) for _ in range(count)]
            if any([process.wait() for process in running]):
                sys.exit(f"versus: {tool} failed under contention")
            walls[tool].append(time.perf_counter() - begin)
        for tool, spans in walls.items():
            ratios = sorted(mine / base for mine, base in zip(spans, walls["flock"]))
            rows.append([f"{count} processes, {times} times each: {tool}", f"{statistics.median(spans) * 1e3:.0f}",
                         f"{statistics.median(ratios):.2f}", f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
                         "" if tool == "flock" else "1.0"])
    bench.table("contend", "Some processes take one lock again and again",
                ["", "median wall ms", "median ratio", "all ratios", "target"], rows, 2)


def pass_on(bench, name, holders, end, title, target, bar):
    """From `end(holder)` to the next command's first word, which is the same program for all tools."""
    tools, spans = bench.tools(), {}
    turns = HAND_OVERS * bench.asked.rounds // 5
    for _ in range(turns):
        for label, (tool, call) in holders.items():
            holder = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=CALLERS,
                                      start_new_session=True)
            holder.stdout.read(1)
            waiter = subprocess.Popen([*tools[tool], path_of("echo")], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=CALLERS)
            time.sleep(SETTLE)
            begin = time.perf_counter()
            end(holder)
            word = os.read(waiter.stdout.fileno(), 1)
            span = time.perf_counter() - begin
            if waiter.wait() or not word:
                sys.exit(f"versus: {label}: the waiter failed")
            holder.stdin.close()
            holder.wait()
            waiter.stdout.close()
            holder.stdout.close()
            spans.setdefault(label, []).append(span * 1e3)
    rows = []
    bases = {label.partition(":")[2]: times for label, times in spans.items() if label.startswith("flock")}
    for label, times in spans.items():
        base = statistics.median(bases[label.partition(":")[2]])
        rows.append([label.replace(":", ", "), f"{statistics.median(times):.2f}", f"{min(times):.2f}",
                     f"{max(times):.2f}", f"{statistics.median(times) / base:.2f}",
                     "" if label.startswith("flock") else target])
    bench.table(name, title, ["", "median ms", "min ms", "max ms", "ratio of medians", "target"], rows, bar,
                f"{turns} in turn")


def hand(bench):
    holders = {tool: (tool, [*call, bench.dash, "-c", JOB]) for tool, call in bench.tools().items()}
    pass_on(bench, "hand", holders, lambda holder: holder.stdin.close(),
            "Hand-over: from the end of the holder's stdin to the next one's first word", "1.0", 4)


def take(bench):
    job = [bench.dash, "-c", JOB]
    holders = {f"{tool}:wrapper and command": (tool, [*call, *job]) for tool, call in bench.tools().items()}
    holders["flock:script"] = ("flock", [bench.dash, "-c", f"exec 9>{bench.file}.L; {bench.flock} 9; {JOB}"])
    for store, url in bench.stores.items():
        text = f"{bench.binary} lock --store {url} L >/dev/null; {JOB}"
        holders[f"csalock, {store}:script"] = (f"csalock, {store}", [bench.dash, "-c", text])
    pass_on(bench, "take", holders, lambda holder: os.killpg(holder.pid, signal.SIGKILL),
            "Take-over: from kill -9 of everything that holds to the next one's first word", "20", 1)


class Party:
    """A process and its children, and what they have used."""

    def __init__(self, process):
        self.process, self.noted, self.before = process, [], (0.0, 0)

    def members(self):
        pids = [self.process.pid]
        for pid in pids:
            pids += [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return pids

    def note(self):
        """Begins to count here. (None of its children has ended yet, so those there are have used all there is.)"""
        cpu, waits = 0.0, 0
        self.noted = self.members()
        for pid in self.noted:
            cpu += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e3
            status = Path(f"/proc/{pid}/status").read_text()
            waits += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
        self.before = (cpu, waits)

    def end(self):
        """Waits for its end. Returns the microseconds and the wake-ups that it took since it was noted."""
        cpu, waits = -self.before[0], -self.before[1]
        for pid in self.noted:
            try:
                _, status, used = os.wait4(pid, 0)
            except ChildProcessError:
                continue  # its parent has waited for it, and counts it in what it used itself
            if status:
                sys.exit(f"versus: {self.process.args} failed in a crowd")
            self.process.returncode = 0
            cpu += (used.ru_utime + used.ru_stime) * 1e6
            waits += used.ru_nvcsw
        return cpu, waits

    def memory(self):
        """(KiB that are only its own, KiB shared with others counted in part, threads) of each member, parents first."""
        found = []
        for pid in self.members():
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            kib = [int(rollup.partition(f"\n{what}:")[2].split()[0]) for what in ("Private_Dirty", "Pss")]
            found.append((*kib, len(os.listdir(f"/proc/{pid}/task"))))
        return found


def holder(bench, call):
    process = subprocess.Popen([*call, bench.dash, "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               env=CALLERS)
    process.stdout.read(1)
    process.stdout.close()
    return Party(process)


def waiting(bench, tool):
    """How many stand in a queue now."""
    if tool == "flock":
        ours = {os.stat(path).st_ino for path in Path(bench.place).glob("flock.lock.*")}
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
        return sum(int(words[6].rpartition(":")[2]) in ours for words in lines)
    call = [bench.binary, "status", "--json", "--store", bench.stores[tool.rpartition(" ")[2]]]
    listed = subprocess.run(call, stdout=subprocess.PIPE, env=CALLERS, check=True).stdout
    return sum(len(lock["waiters"]) for lock in json.loads(listed))


def gather(bench, tool, calls):
    """Starts waiters, and waits until all are in the queue and have nothing more to do there. How they get in is not
    what is measured, so they come a few at a time."""
    crowd = []
    for first in range(0, len(calls), A_FEW):
        crowd += [Party(subprocess.Popen([*call, bench.true], stdin=subprocess.DEVNULL, env=CALLERS))
                  for call in calls[first:first + A_FEW]]
        limit = time.monotonic() + 60
        while waiting(bench, tool) < len(crowd):
            if time.monotonic() > limit:
                sys.exit(f"versus: {tool}: {len(crowd)} waiters are not all in the queue after a minute")
            time.sleep(0.01)
    time.sleep(10 * SETTLE)
    return crowd


def one_crowd(bench, tool, call, count):
    """Microseconds of CPU, wake-ups and microseconds of time for one hand-over; and the memory of the last waiter."""
    first = holder(bench, call)
    crowd = gather(bench, tool, [call] * count)
    memory = crowd[-1].memory()
    for party in (first, *crowd):
        party.note()
    begin = time.perf_counter()
    first.process.stdin.close()
    used = [party.end() for party in (first, *crowd)]
    wall = (time.perf_counter() - begin) * 1e6
    return [sum(each) / count for each in zip(*used)] + [wall / count], memory


def crowd(bench):
    adopt_orphans()
    tools, memories = bench.tools(options=PATIENT), {}
    found = {(tool, count): [] for tool in tools for count in CROWDS}
    for tool in bench.in_turn(tools):
        for count in CROWDS:
            # A crowd of ten is over so soon that one says little.
            for _ in range(max(1, 50 // count)):
                numbers, memory = one_crowd(bench, tool, tools[tool], count)
                found[tool, count].append(numbers)
                memories.setdefault(tool, []).append(memory)
    hand_overs(bench, "crowd", "A crowd waits for one lock", "waiters", found, CROWDS)
    waiters_memory(bench, memories)


def hand_overs(bench, name, title, what, found, counts):
    rows = []
    medians = {key: [statistics.median(each) for each in zip(*numbers)] for key, numbers in found.items()}
    for (tool, count), (cpu, wakes, wall) in medians.items():
        few, flock = medians[tool, counts[0]][0], medians["flock", count]
        target = "1.5" if tool != "flock" and count == 1_000 else ""
        rows.append([f"{count:,} {what}: {tool}", f"{cpu:.0f}", f"{wakes:.1f}", f"{wall:.0f}",
                     f"{cpu / flock[0]:.2f}", f"{wall / flock[2]:.2f}", f"{cpu / few:.2f}", target])
    bench.table(name, title, ["for each hand-over", "CPU us", "wake-ups", "wall us", "CPU to flock's", "wall to flock's",
                              f"CPU to that with {counts[0]}", "target"], rows, 6)


def waiters_memory(bench, memories):
    rows = []
    for tool, found in memories.items():
        roles = ["waiter"] if tool == "flock" else ["its guardian", "waiter"]
        for at, role in enumerate(roles):
            own, shared, threads = (statistics.median(each) for each in zip(*(memory[at] for memory in found)))
            target = "1,024" if role == "waiter" and tool != "flock" else ""
            rows.append([f"{tool}: {role}", f"{own:.0f}", f"{shared:.0f}", f"{threads:.0f}", target])
    bench.table("memory", "Memory of a waiter", ["", "KiB private and dirty", "KiB with its part of what is shared",
                                                 "threads", "target"], rows, 1)


def own_locks(bench, tool, count):
    """As one_crowd, but each waits for a lock of its own, and these are released one after the other."""
    calls = [bench.tools(f"own-{number}", PATIENT)[tool] for number in range(count)]
    holders = [holder(bench, call) for call in calls]
    # As the jobs that a script starts with `&`: it does not wait for them.
    waiters = gather(bench, tool, [[path_of("env"), "--ignore-signal=INT", *call] for call in calls])
    for party in (*holders, *waiters):
        party.note()
    begin, used = time.perf_counter(), []
    for holding, waits in zip(holders, waiters):
        holding.process.stdin.close()
        used += [holding.end(), waits.end()]
    wall = (time.perf_counter() - begin) * 1e6
    return [sum(each) / count for each in zip(*used)] + [wall / count]


def locks(bench):
    adopt_orphans()
    tools = bench.tools()
    found = {(tool, count): [] for tool in tools for count in LOCKS}
    for tool in bench.in_turn(tools):
        for count in LOCKS:
            found[tool, count] += [own_locks(bench, tool, count) for _ in range(max(1, 50 // count))]
    hand_overs(bench, "locks", "Locks with one waiter each, released one after the other", "locks", found, LOCKS)
