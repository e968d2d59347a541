"""A client on libnbd: does everything at random over two connections, many requests in flight, beside plain bytes.

    libnbd.py URI OTHER-URI SOURCE WANTED

SOURCE holds what the volume holds. In the end all is flushed over one connection, and WANTED holds what must be there.
"""

import random
import sys

import nbd

UNIT = 512
STEPS = 3000
IN_FLIGHT = 48


class Wanted:
    """What the volume must hold, and what is under way: requests in flight never overlap."""

    def __init__(self, data):
        self.data = bytearray(data)
        self.busy = bytearray(len(data) // UNIT)

    def take(self, first, count):
        if any(self.busy[first:first + count]):
            return False
        self.busy[first:first + count] = b"\1" * count
        return True

    def release(self, first, count):
        self.busy[first:first + count] = bytes(count)


def connect(uri):
    client = nbd.NBD()
    client.add_meta_context("base:allocation")
    client.set_uri_allow_local_file(True)
    client.connect_uri(uri)
    assert client.get_tls_negotiated(), "the connection is encrypted"
    assert client.get_structured_replies_negotiated()
    for promise in [client.can_flush, client.can_fua, client.can_trim, client.can_zero, client.can_multi_conn]:
        assert promise(), promise.__name__
    return client


def drive(clients, wanted):
    flying = []  # (client, cookie, units, what to compare, if it reads)
    units = len(wanted.busy)

    def land(limit):
        while len(flying) > limit:
            for client in clients:
                if client.aio_in_flight():
                    client.poll(10)
            for flight in flying[:]:
                client, cookie, first, count, into = flight
                if client.aio_command_completed(cookie):  # raises when it failed
                    if into is not None:
                        at = first * UNIT
                        assert into.to_bytearray() == wanted.data[at:at + count * UNIT], f"read at {at}"
                    wanted.release(first, count)
                    flying.remove(flight)

    for step in range(STEPS):
        client = random.choice(clients)
        count = min(random.choice([1, 7, 8, 64, 300]), units)
        first = random.randrange(units - count + 1)
        if not wanted.take(first, count):
            continue
        at, size, into = first * UNIT, count * UNIT, None
        kind = random.choice(["read", "read", "write", "write", "zero", "cache", "trim"])
        fua = nbd.CMD_FLAG_FUA if random.random() < 0.05 else 0
        if kind == "write":
            data = random.randbytes(size)
            wanted.data[at:at + size] = data
            cookie = client.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), at, flags=fua)
        elif kind == "zero":
            wanted.data[at:at + size] = bytes(size)
            cookie = client.aio_zero(size, at, flags=fua | random.choice([0, nbd.CMD_FLAG_NO_HOLE]))
        elif kind == "cache" and client.can_cache():
            cookie = client.aio_cache(size, at)
        elif kind == "trim" and random.random() < 0.1:
            # What is left may be anything, so it is written again at once.
            client.trim(size, at)
            data = random.randbytes(size)
            wanted.data[at:at + size] = data
            cookie = client.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), at)
        else:
            into = nbd.Buffer(size)
            cookie = client.aio_pread(into, at)
        flying.append((client, cookie, first, count, into))
        land(IN_FLIGHT)
    land(0)


def compare(client, wanted, what):
    for at in range(0, len(wanted.data), 1 << 20):
        assert client.pread(1 << 20, at) == wanted.data[at:at + (1 << 20)], f"{what} at {at}"


def check_map(client, wanted):
    """The map covers the volume, and what it calls zero is."""
    size, at = len(wanted.data), 0
    while at < size:
        found = []

        def extents(context, offset, entries, _error):
            assert (context, offset) == ("base:allocation", at)
            found.extend(zip(entries[::2], entries[1::2]))

        client.block_status(size - at, at, extents)
        for length, flags in found:
            if flags & nbd.STATE_ZERO:
                assert not any(wanted.data[at:at + length]), f"the map says zero at {at}"
            at += length
    assert at == size


def main():
    uri, other, source, result = sys.argv[1:]
    random.seed(7)
    wanted = Wanted(open(source, "rb").read())
    clients = [connect(uri), connect(other)]
    assert clients[0].get_size() == len(wanted.data)
    drive(clients, wanted)
    for client in clients:
        compare(client, wanted, "the volume")
    if clients[0].can_meta_context("base:allocation"):
        check_map(clients[0], wanted)
    clients[1].flush()  # also what came over the other one
    open(result, "wb").write(wanted.data)
    for client in clients:
        client.shutdown()


main()
