"""The rules of every hand-over as state machines: no memory, threads, clocks or sockets.

A method is an event: it takes `now` (seconds, of any clock that does not go back) and gives the actions that follow,
as frozen values, in the order in which they must be done. An event that does not fit the state changes nothing and
gives nothing: duplicates, late and reordered events are ordinary. The owner's half, leases with tombstones, is
transfer/leases.py, which is pure as well.

    pulling     one claim at its consumer, from the ref to the verdict and the release
    takeover    one request at its decode worker, from the reservation to its start
    renewing    whoever keeps claims alive
    peering     one neighbour process, from the first question to the last mapping closed
"""
