#!/usr/bin/env python3
"""The load that holders cause on etcd: it starts one server and many `csalock run NAME sleep`, and counts for a while.

    etcd_load.py [--holders N] [--seconds S] [--csalock PATH]

Needs etcd. CPU is that of the server process; requests and proposals are the server's own counters.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

BATCH = 20  # holders that start at once


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start_etcd(place, client, peer):
    urls = [f"http://127.0.0.1:{port}" for port in (client, peer)]
    words = ["etcd", "--name", "n", "--data-dir", f"{place}/etcd", "--log-level", "error",
             "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0], "--listen-peer-urls", urls[1],
             "--initial-advertise-peer-urls", urls[1], "--initial-cluster", f"n={urls[1]}"]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def counters(client):
    """Unary calls by method, watches, and proposals, since the start of the server."""
    found = {}
    text = urllib.request.urlopen(f"http://127.0.0.1:{client}/metrics", timeout=10).read().decode()
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(("grpc_server_started_total", "etcd_server_proposals_applied_total")):
            method = name.partition('grpc_method="')[2].partition('"')[0] or "proposals"
            found[method] = found.get(method, 0) + float(value)
    return found


def usage(pid):
    """CPU seconds, resident MiB and connections of a process."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(") ")[2].split()
    with open(f"/proc/{pid}/statm") as statm:
        pages = int(statm.read().split()[1])
    sockets = sum(os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:") for fd in os.listdir(f"/proc/{pid}/fd"))
    tick = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / tick, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, sockets


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--holders", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60, help="three renewals with the default lease")
    parser.add_argument("--csalock", default="csalock")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        client, peer = free_port(), free_port()
        etcd = start_etcd(place, client, peer)
        env = {**os.environ, "CSALOCK_STORE": f"etcd://127.0.0.1:{client}/load"}
        holders = []
        try:
            while subprocess.call([asked.csalock, "status"], env=env, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL):
                time.sleep(0.2)
            for number in range(asked.holders):
                words = [asked.csalock, "run", f"lock{number}", "sh", "-c", "echo; exec cat"]
                holders.append(subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
                if number % BATCH == BATCH - 1:
                    for holder in holders[-BATCH:]:
                        holder.stdout.read(1)
            for holder in holders:
                if holder.poll() is not None:
                    sys.exit("etcd_load: a holder ended")
            time.sleep(2)  # the keepers begin after a second
            before, (cpu, *_), begin = counters(client), usage(etcd.pid), time.monotonic()
            time.sleep(asked.seconds)
            after, (cpu_after, memory, sockets) = counters(client), usage(etcd.pid)
            span = time.monotonic() - begin
            print(f"{asked.holders} holders, {span:.0f} s: etcd used {100 * (cpu_after - cpu) / span:.1f} % of one "
                  f"CPU, {memory:.0f} MiB and {sockets} sockets")
            for method in sorted(after):
                rate = (after[method] - before.get(method, 0)) / span
                if rate >= 0.1:
                    print(f"{method:12} {rate:8.1f} per second")
        finally:
            for holder in holders:
                holder.stdin.close()
            codes = [holder.wait() for holder in holders]
            etcd.terminate()
            etcd.wait()
        if any(codes):
            sys.exit("etcd_load: a holder failed")


if __name__ == "__main__":
    main()
