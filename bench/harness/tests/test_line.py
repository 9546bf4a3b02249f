"""The line with delay, and what it counts."""

import os
import socket
import struct
import subprocess
import sys
import time
import unittest
from pathlib import Path

from .. import line


def packet(payload=b"", flags=0x18, sequence=7, kind=0, headers=0, segment=0):
    """A TCP packet to the server, as the device gives it."""
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40 + len(payload), 0, 0, 64, 6, 0, b"\x0a\x63\0\2", b"\x0a\x63\0\1")
    tcp = struct.pack(">HHIIBBHHH", 40000, 80, sequence, 0, 5 << 4, flags, 1000, 0, 0)
    return line.VNET.pack(0, kind, headers, segment, 0, 0) + ip + tcp + payload


BENCH = str(Path(__file__).resolve().parents[2])
GET = b"GET /bucket/key HTTP/1.1\r\nhost: x\r\nRange: bytes=5-9\r\n\r\n"


class Counting(unittest.TestCase):
    def test_requests_have_a_path_and_a_range(self):
        counts = line.Counts()
        counts.add(packet(GET), outward=True)
        counts.add(packet(b"HEAD /other HTTP/1.1\r\nhost: x\r\n\r\n", sequence=8), outward=True)
        counts.add(packet(b"GETTING /nothing HTTP/1.1\r\n", sequence=9), outward=True)
        self.assertEqual(counts.requests, [["GET", "/bucket/key", "5-9"], ["HEAD", "/other", None]])

    def test_the_same_bytes_sent_again_are_one_request(self):
        counts = line.Counts()
        counts.add(packet(GET), outward=True)
        counts.add(packet(GET), outward=True)
        self.assertEqual(len(counts.requests), 1)

    def test_answers_are_no_requests(self):
        counts = line.Counts()
        counts.add(packet(GET), outward=False)
        self.assertEqual((counts.requests, counts.to_server), ([], 0))
        self.assertEqual(counts.to_client, 40 + len(GET))

    def test_only_the_first_packet_of_a_connection_counts_as_one(self):
        counts = line.Counts()
        for flags in (0x02, 0x12, 0x10, 0x11):
            counts.add(packet(flags=flags), outward=True)
        self.assertEqual(counts.connections, 1)

    def test_large_segments_count_with_all_their_headers(self):
        counts = line.Counts()
        # Three segments, of which the last is not full.
        self.assertEqual(counts.add(packet(bytes(2500), kind=1, headers=40, segment=1000), False), 2500 + 3 * 40)

    def test_other_packets_are_only_bytes(self):
        counts = line.Counts()
        counts.add(line.VNET.pack(0, 0, 0, 0, 0, 0) + b"\x60" + bytes(60), outward=True)
        self.assertEqual((counts.to_server, counts.requests, counts.connections), (61, [], 0))


class Holding(unittest.TestCase):
    def test_a_packet_arrives_after_its_bytes_and_the_delay(self):
        way = line.Direction()
        way.send(b"a", 1000, now=10.0, delay=0.5, rate=1000)
        way.send(b"b", 1000, now=10.0, delay=0.5, rate=1000)
        self.assertEqual(way.next(), 11.5)
        self.assertEqual(list(way.due(12.4)), [b"a"])
        self.assertEqual(list(way.due(12.5)), [b"b"])
        self.assertIsNone(way.next())

    def test_an_idle_line_does_not_save_its_speed(self):
        way = line.Direction()
        way.send(b"a", 1000, now=0.0, delay=0.0, rate=1000)
        way.send(b"b", 1000, now=50.0, delay=0.0, rate=1000)
        self.assertEqual(list(way.due(50.9)), [b"a"])
        self.assertEqual(list(way.due(51.0)), [b"b"])


@unittest.skipUnless(os.geteuid() == 0 and os.access("/dev/net/tun", os.W_OK), "needs root and /dev/net/tun")
class Real(unittest.TestCase):
    def test_connections_and_answers_take_their_round_trips(self):
        # In a process of its own: a thread does not come back from a namespace.
        code = f"import sys; sys.path.insert(0, {BENCH!r}); from harness.tests import test_line; test_line.over_a_line()"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        self.assertEqual((result.returncode, result.stderr), (0, ""))


def over_a_line():
    """One request over a line with a delay, and what was counted."""
    way = line.Line()
    server = subprocess.Popen(
        ["nsenter", f"--net={way.server}", sys.executable, "-c",
         "import socket; s = socket.create_server(('', 5000)); print('up', flush=True); c, _ = s.accept(); "
         "c.recv(1000); c.sendall(bytes(500)); c.recv(1)"],
        stdout=subprocess.PIPE,
    )
    assert server.stdout.readline() == b"up\n"
    line.enter(way.client)
    way.set(0.1, 0)
    way.take()
    start = time.monotonic()
    with socket.create_connection((line.SERVER, 5000)) as connection:
        connected = time.monotonic() - start
        connection.sendall(GET)
        received = b""
        while len(received) < 500:
            received += connection.recv(1000)
        answered = time.monotonic() - start
    counted = way.take()
    server.wait()
    server.stdout.close()
    way.close()
    assert connected >= 0.1, connected
    assert answered >= 0.2, answered
    assert counted["requests"] == [["GET", "/bucket/key", "5-9"]], counted
    assert counted["connections"] == 1 and counted["to_client"] > 500, counted
