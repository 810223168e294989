from runmanager.core.outcome import Status


def test_shapes_tell_what_failed_what_was_stopped_and_what_is_done():
    by_sign: dict[str, set[Status]] = {}
    for status in Status:
        by_sign.setdefault(status.sign, set()).add(status)

    assert by_sign["✓"] == {Status.COMPLETED}
    assert by_sign["✗"] == {status for status in Status if status.is_fault}
    assert by_sign["!"] == {Status.KILLED, Status.INTERRUPTED, Status.STALE, Status.CHANGED}
    assert by_sign["…"] == {Status.RUNNING}
    assert by_sign["·"] == {Status.PENDING, Status.PRUNED, Status.UNAVAILABLE}
