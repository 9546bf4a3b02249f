"""A line of a chosen delay and speed between two network namespaces, where the kernel has no `netem`.

Packets go through two TUN devices and this process, which holds each back for as long as it would be on its way. TCP is
the kernel's own: connections take a round trip, and windows start small. Nothing is lost or reordered. Large segments
pass in one piece, which keeps the CPU free, and count with all the headers that they would have on a real line.

As a program, it makes the line and prints where its ends are. A line of JSON on its standard input changes the line or
asks what passed; it ends with its input.
"""

import ctypes
import fcntl
import json
import os
import re
import select
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from .measure import Failed

CLONE_NEWNET = 0x4000_0000
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
OFFLOAD_CHECKSUM, OFFLOAD_TCP4 = 1, 2
#: Flags, kind of segmentation, bytes of headers, bytes of a segment, start and offset of the checksum.
VNET = struct.Struct("=BBHHHH")
SERVER, CLIENT = "10.99.0.1", "10.99.0.2"
REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE|OPTIONS) (\S+) HTTP/1\.[01]\r\n")
RANGE = re.compile(rb"\r\nrange: *bytes=([^\r]*)", re.IGNORECASE)
PACKET = 1 << 17


def _enter(number: int, flags: int, what: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, what)(*((number, flags) if what == "setns" else (flags,))) != 0:
        error = ctypes.get_errno()
        raise Failed(f"{what}: {os.strerror(error)}")


def enter(namespace: str) -> None:
    """Moves this thread, and what it starts, into a network namespace."""
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(descriptor, CLONE_NEWNET, "setns")
    finally:
        os.close(descriptor)


class Counts:
    """What passed a line since somebody asked."""

    def __init__(self):
        self.connections = self.to_server = self.to_client = 0
        #: Method, path, and range of each request.
        self.requests = []
        self._seen = set()

    def add(self, packet: bytes, outward: bool) -> int:
        """Counts a packet with its header of the device; returns its bytes on the line."""
        _, kind, headers, segment, _, _ = VNET.unpack_from(packet)
        size = len(packet) - VNET.size
        if kind and segment:
            size += max(0, -(-(size - headers) // segment) - 1) * headers
        if outward:
            self.to_server += size
            self._look(memoryview(packet)[VNET.size:])
        else:
            self.to_client += size
        return size

    def _look(self, packet) -> None:
        """Counts connections and requests of unencrypted HTTP/1."""
        if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != 6:
            return
        start = (packet[0] & 15) * 4
        if packet[start + 13] & 0x12 == 0x02:
            self.connections += 1
        payload = bytes(packet[start + (packet[start + 12] >> 4) * 4:])
        found = REQUEST.match(payload)
        # Ports and sequence number: the same bytes, sent again, are the same request.
        place = bytes(packet[start:start + 8])
        if found and place not in self._seen:
            self._seen.add(place)
            span = RANGE.search(payload)
            self.requests.append([found[1].decode(), found[2].decode(errors="replace"),
                                  span[1].decode() if span else None])


class Direction:
    """Packets on their way to one end."""

    def __init__(self):
        self.free_at = 0.0
        self.packets = deque()

    def send(self, packet: bytes, size: int, now: float, delay: float, rate: float) -> None:
        self.free_at = max(now, self.free_at) + (size / rate if rate else 0.0)
        self.packets.append((self.free_at + delay, packet))

    def due(self, now: float):
        """The packets that have arrived."""
        while self.packets and self.packets[0][0] <= now:
            yield self.packets.popleft()[1]

    def next(self):
        return self.packets[0][0] if self.packets else None


def _end_of_line(address: str, peer: str) -> tuple:
    """A new namespace with a device in it; this process stays in it."""
    _enter(0, CLONE_NEWNET, "unshare")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    request = struct.pack("16sH22x", b"line", IFF_TUN | IFF_NO_PI | IFF_VNET_HDR)
    fcntl.ioctl(device, TUNSETIFF, request)
    fcntl.ioctl(device, TUNSETOFFLOAD, OFFLOAD_CHECKSUM | OFFLOAD_TCP4)
    for words in (("link", "set", "lo", "up"), ("addr", "add", address, "peer", peer, "dev", "line"),
                  ("link", "set", "line", "up", "txqueuelen", "10000")):
        subprocess.run(["ip", *words], check=True)
    return device, os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def relay() -> None:
    """Makes the line, and carries packets until the input ends."""
    server, server_space = _end_of_line(SERVER, CLIENT)
    client, client_space = _end_of_line(CLIENT, SERVER)
    space = f"/proc/{os.getpid()}/fd/"
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    print(json.dumps({"server": f"{space}{server_space}", "client": f"{space}{client_space}",
                      "congestion": congestion}), flush=True)
    # Where from, where to, and whether that is the way to the server.
    ways = {client: (Direction(), server, True), server: (Direction(), client, False)}
    counts, delay, rate = Counts(), 0.0, 0.0
    while True:
        now = time.monotonic()
        for direction, out, _ in ways.values():
            for packet in direction.due(now):
                os.write(out, packet)
        times = [at for direction, _, _ in ways.values() if (at := direction.next()) is not None]
        wait = max(0.0, min(times) - time.monotonic()) if times else None
        ready, _, _ = select.select([*ways, 0], [], [], wait)
        for source in ready:
            if source == 0:
                line = sys.stdin.readline()
                if not line:
                    return
                order = json.loads(line)
                if "delay" in order:
                    delay, rate = order["delay"], order["rate"]
                print(json.dumps({
                    "connections": counts.connections, "to_server": counts.to_server,
                    "to_client": counts.to_client, "requests": counts.requests,
                }), flush=True)
                counts = Counts()
                continue
            direction, _, outward = ways[source]
            for _ in range(64):
                try:
                    packet = os.read(source, PACKET)
                except BlockingIOError:
                    break
                size = counts.add(packet, outward)
                direction.send(packet, size, time.monotonic(), delay, rate)


class Line:
    """A running line."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from harness import line; line.relay()"],
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        text = self._process.stdout.readline()
        if not text:
            raise Failed("cannot make a line: network namespaces and /dev/net/tun need root")
        ends = json.loads(text)
        #: Paths of the namespaces at both ends, and the congestion control in them.
        self.server, self.client, self.congestion = ends["server"], ends["client"], ends["congestion"]

    def _ask(self, order: dict) -> dict:
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def set(self, round_trip: float, rate: float) -> None:
        """Seconds for there and back, of which each way takes half, and bytes a second each way (0: no limit)."""
        self._ask({"delay": round_trip / 2, "rate": rate})

    def take(self) -> dict:
        """What passed since the last call: `connections`, `requests`, bytes `to_server` and `to_client`."""
        return self._ask({})

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
