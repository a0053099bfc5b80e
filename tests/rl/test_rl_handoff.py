from typing import Any

import pytest

from catalog.digest import digest_json
from catalog.errors import IdentityMismatch
from rl.contract import RlContract
from rl.handoff import IDENTITIES, build_request, build_result, check_result, read_request


def digest(text: str) -> str:
    return digest_json(text)


def request(**changes: Any) -> dict[str, Any]:
    fields = {name: digest(name) for name in IDENTITIES if name not in ("code", "contract_digest")}
    return build_request(
        **{
            "run_id": "r",
            "cycle": 1,
            "seed": 1,
            "code": "0.1.0",
            "contract": RlContract(),
            **fields,
            **changes,
        }
    )


def result(wanted: dict[str, Any], **changes: Any) -> dict[str, Any]:
    made = build_result(
        wanted, request_digest=digest_json(wanted), model=digest("m1"), evaluation=digest("evaluation")
    )
    return {**made, **changes}


@pytest.mark.spec("HAND-01")
@pytest.mark.parametrize("name", IDENTITIES)
def test_every_identity_is_part_of_the_requests_own_digest(name: str) -> None:
    if name == "contract_digest":
        changed = request(contract=RlContract(updates=29))
    else:
        changed = request(**{name: "0.2.0" if name == "code" else digest("other")})
    assert digest_json(changed) != digest_json(request())


@pytest.mark.spec("HAND-01")
def test_a_request_pins_by_digest_and_not_by_name() -> None:
    with pytest.raises(ValueError, match="not a digest: model"):
        request(model="smollm2-135m-instruct")


@pytest.mark.spec("HAND-01")
def test_a_request_with_an_edited_contract_is_found_out() -> None:
    wanted = request()
    wanted["contract"] = {**wanted["contract"], "learning_rate": 1.0}
    with pytest.raises(IdentityMismatch, match="contract"):
        read_request(wanted)
    assert read_request(request()).contract == RlContract()


@pytest.mark.spec("HAND-03")
def test_a_matching_validated_result_is_accepted() -> None:
    wanted = request()
    check_result(wanted, result(wanted), request_digest=digest_json(wanted))


@pytest.mark.spec("HAND-03")
@pytest.mark.parametrize("name", IDENTITIES)
def test_a_result_for_another_identity_is_refused_by_the_fields_name(name: str) -> None:
    wanted = request()
    made = result(wanted)
    made["identities"] = {**made["identities"], name: digest("other")}
    with pytest.raises(IdentityMismatch, match=name):
        check_result(wanted, made, request_digest=digest_json(wanted))


@pytest.mark.spec("HAND-03")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validated": False}, "not validated"),
        ({"request": digest("other")}, "answers"),
        ({"model": digest("model")}, "the base model"),
        ({"identities": None}, "harness"),
    ],
)
def test_an_unvalidated_foreign_or_untrained_result_is_refused(changes: dict[str, Any], message: str) -> None:
    wanted = request()
    with pytest.raises(IdentityMismatch, match=message):
        check_result(wanted, result(wanted, **changes), request_digest=digest_json(wanted))
