"""Daily logs of a plant: many small CSV and XML files that are much like those of the day before."""

import datetime
import os
import random
from pathlib import Path

STATIONS = 60
CHANNELS = ("temperature", "pressure", "flow", "valve_a", "valve_b", "rpm", "voltage", "current")
EVENTS = ("ValveMoved", "ThresholdChecked", "OperatorLogin", "FilterChanged")
FIRST_DAY = datetime.date(2023, 1, 2)
#: Files of one day at scale 1; their mean size is about 55 KB.
FILES = 7500
CLOCK = [f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}" for s in range(86_400)]


def _trace(rng: random.Random, day: str, station: str, base: list, rows: int) -> str:
    """A table of measurements every five seconds; few of them change from row to row."""
    lines = ["time;station;" + ";".join(CHANNELS) + ";state"]
    values = [f"{value:.2f}" for value in base]
    tail = ";".join(values) + ";OK"
    start = rng.randrange(80_000)
    chance, number = rng.random, rng.randrange
    for row in range(rows):
        if chance() < 0.05:
            channel = number(len(values))
            values[channel] = f"{base[channel] + rng.gauss(0, 0.3):.2f}"
            tail = ";".join(values) + ";OK"
        lines.append(f"{day}T{CLOCK[(start + 5 * row) % 86_400]};{station};{tail}")
    return "\n".join(lines) + "\n"


def _report(rng: random.Random, day: str, station: str, events: int) -> str:
    """Events of a station, nearly all of one kind."""
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<log xmlns="urn:example:plant:log:1" station="{station}" day="{day}">',
    ]
    at = rng.randrange(80_000)
    for number in range(events):
        at = (at + rng.choice((1, 5, 10))) % 86_400
        kind = "Heartbeat" if rng.random() < 0.9 else rng.choice(EVENTS)
        lines.append(
            f'  <event number="{number}" kind="{kind}" level="info">\n'
            f"    <time>{day}T{CLOCK[at]}Z</time>\n"
            f'    <source station="{station}" channel="{number % 8}"/>\n'
            '    <text lang="en">self test of the unit has ended without findings</text>\n'
            "  </event>"
        )
    lines.append("</log>")
    return "\n".join(lines) + "\n"


def day_name(number: int) -> str:
    """The folder of a day, counted from 0."""
    return (FIRST_DAY + datetime.timedelta(days=number)).isoformat()


def write_day(root: Path, number: int, scale: float) -> None:
    """Writes the folder of one day; the same arguments give the same bytes."""
    day = day_name(number)
    rng = random.Random(f"day {number}")
    units = random.Random("units")
    # A station keeps its set points from day to day.
    bases = [[units.uniform(10, 400) for _ in CHANNELS] for _ in range(STATIONS)]
    midnight = int(datetime.datetime.fromisoformat(day + "T00:00:00+00:00").timestamp())
    for file in range(int(FILES * scale * rng.uniform(0.8, 1.25))):
        which = file % STATIONS
        station = f"unit-{which:03}"
        folder = root / day / station
        if file < STATIONS:
            folder.mkdir(parents=True)
        rows = int(rng.lognormvariate(0, 0.8) * 430) + 5
        if file % 3:
            name, text = f"trace-{file:05}.csv", _trace(rng, day, station, bases[which], rows)
        else:
            name, text = f"events-{file:05}.xml", _report(rng, day, station, rows // 3 + 2)
        path = folder / name
        path.write_text(text)
        os.utime(path, (midnight + file, midnight + file))


def write(root: Path, days: int, scale: float) -> None:
    """Writes several days."""
    for number in range(days):
        write_day(root, number, scale)
