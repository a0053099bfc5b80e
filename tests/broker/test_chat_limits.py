"""What a chat endpoint as task model costs, what is asked again, and rate limits (HOST-11)."""

from typing import Any

import pytest
from chat_endpoints import PRICES, QUESTION, SAMPLING, USAGE, ask, chat, chat_broker, counting, said, serving

from broker.clock import EpisodeClock, current_clock
from broker.errors import ModelUnavailable
from broker.rate_limit import RateLimit
from tests.fixtures.episodes import ASK_AND_SUBMIT, attempt
from tests.fixtures.faulty_server import answer, hang


@pytest.mark.spec("HOST-11")
async def test_tokens_and_cost_are_those_of_all_answers_that_were_paid() -> None:
    with serving(said("", usage={**USAGE, "completion_tokens": 0}), said("yes")) as server:
        model = chat(server.url, settings=PRICES)
        completion = await model.reply(QUESTION, SAMPLING, 7)
        await model.close()
    usage = completion.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.requests) == (80, 8, 2)
    assert usage.cost == pytest.approx((80 * 2.0 + 8 * 10.0) / 1e6)
    assert (usage.reported, usage.served) == (True, "m-2026-01")
    assert (
        model.client.spending()
        == "m: 2 requests, 80 prompt and 8 completion tokens, 0.0002 at the configured prices"
    )


@pytest.mark.spec("HOST-11")
async def test_without_reported_usage_the_declared_tokenizer_counts_and_says_so() -> None:
    with serving(said("yes, because", usage=None)) as server:
        completion = await ask(server)
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.reported) == (7, False)
    assert completion.usage.completion_tokens == counting().count("yes, because")
    assert completion.usage.cost is None


def test_a_rate_limit_takes_places_in_order_and_lets_a_full_minute_through() -> None:
    from broker.rate_limit import _Bucket  # pyright: ignore[reportPrivateUsage]

    bucket = _Bucket(60)
    assert [bucket.take(1) for _ in range(60)] == [0.0] * 60
    assert 0.5 < bucket.take(1) <= 1.0
    assert 1.5 < bucket.take(1) <= 2.0
    bucket.give_back(10)
    assert bucket.take(1) == 0.0
    big = _Bucket(60)
    assert 119 < big.take(180) <= 120, "a request above the limit waits and is sent"


@pytest.mark.spec("HOST-03", "HOST-11")
async def test_waiting_for_the_rate_limit_is_the_hosts_queue() -> None:
    clock = EpisodeClock(10)
    token = current_clock.set(clock)
    clock.start()
    limit = RateLimit(tokens_per_minute=600)
    await limit.turn(600)
    await limit.turn(5)
    current_clock.reset(token)
    assert clock.queued > 0.4
    assert clock.waited > 0.4
    assert clock.elapsed < 0.3


@pytest.mark.spec("HOST-03", "HOST-11")
async def test_what_an_answer_did_not_use_goes_back_to_the_token_limit() -> None:
    with serving(said()) as server:
        model = chat(server.url, settings={"tokens_per_minute": 3000})
        # Each reserves 1000 + 500 and uses 48: without giving back, the third would wait for 30 s.
        for _ in range(6):
            await model.reply(QUESTION, SAMPLING.model_copy(update={"max_tokens": 500}), 1000)
        assert model.client.endpoint._rate.waited_seconds == 0.0  # pyright: ignore[reportPrivateUsage]
        await model.close()


@pytest.mark.spec("HOST-11")
async def test_the_token_limit_holds_back_by_what_the_endpoint_says_was_used() -> None:
    with serving(said(usage={**USAGE, "prompt_tokens": 60_000})) as server:
        model = chat(server.url, settings={"tokens_per_minute": 60_000})
        rate = model.client.endpoint._rate  # pyright: ignore[reportPrivateUsage]
        await model.reply(QUESTION, SAMPLING, 10)
        assert rate.waited_seconds == 0.0
        await model.reply(QUESTION, SAMPLING, 1000)
        await model.close()
    assert rate.waited_seconds > 0.3


@pytest.mark.spec("HOST-07", "HOST-03")
@pytest.mark.parametrize(
    "first",
    [(b"", 500), (b"", 429), lambda _: answer(b"", 429, Retry_After="0.6"), lambda _: hang],
    ids=["500", "429", "429 with a pause", "hangs"],
)
async def test_what_passes_is_asked_again_and_costs_the_program_nothing(first: Any) -> None:
    with serving(first, said()) as server:
        settings = {"timeout_seconds": 1.0, "patience_seconds": 30.0}
        model = chat(server.url, back_off=0.6, settings=settings)
        graded = await chat_broker(model).run(attempt(ASK_AND_SUBMIT))
        await model.close()
    [call] = graded.record.model_calls
    assert (graded.record.stop_reason, len(server.asked)) == ("first_answer", 2)
    assert call.seconds < 0.55
    assert call.completion.usage is not None
    assert call.completion.usage.requests == 2


@pytest.mark.spec("HOST-11")
async def test_the_identity_proves_key_name_and_parameters_with_one_question() -> None:
    served = iter(("m-2026-01", "m-2026-01", "m-2026-02"))
    with serving(lambda _: answer({**said("ok"), "model": next(served)})) as server:
        model = chat(server.url)
        first, again, moved = [await model.identity() for _ in range(3)]
        await model.close()
    assert first == again != moved
    assert server.asked[0].body["seed"] == 0
    with serving(({"error": {"message": "temperature must be 1"}}, 400)) as server:
        model = chat(server.url)
        with pytest.raises(ModelUnavailable, match="temperature must be 1"):
            await model.identity()
        await model.close()
