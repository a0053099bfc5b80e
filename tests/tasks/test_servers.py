"""A server is replaced once under one stage (HOST-10)."""

import pytest

from broker.errors import ServiceRefused
from tasks.servers import ServerLosses


@pytest.mark.spec("HOST-10")
def test_the_second_loss_under_one_stage_is_a_clear_failure() -> None:
    losses = ServerLosses()
    losses.serves("a")
    losses.lost()
    losses.refuse_third("a", "vllm")
    losses.serves("a")
    assert losses.of("a") == 1
    losses.lost()
    with pytest.raises(ServiceRefused, match=r"inference=vllm: the server was lost 2 times in one stage"):
        losses.refuse_third("a", "vllm")


@pytest.mark.spec("HOST-10")
def test_a_loss_counts_for_every_stage_that_shared_the_server_and_for_no_later_one() -> None:
    losses = ServerLosses()
    losses.serves("a")
    losses.serves("b")
    losses.lost()
    losses.serves("a")
    losses.serves("c")
    assert [losses.of(stage) for stage in "abc"] == [1, 1, 0]
    # `b` is tried again on a server that lives, and that one is lost as well.
    losses.serves("b")
    losses.lost()
    with pytest.raises(ServiceRefused):
        losses.refuse_third("b", "command")
    losses.refuse_third("c", "command")
