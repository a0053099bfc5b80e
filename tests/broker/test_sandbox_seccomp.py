"""The system call filter, run by a small interpreter of the kernel's instructions, on both machines."""

import struct

import pytest

from broker.errors import SandboxLost
from broker.sandbox.seccomp import bpf_filter, docker_profile

ALLOW, EPERM, ENOSYS = 0x7FFF_0000, 0x0005_0001, 0x0005_0026
X86, ARM = ("x86_64", 0xC000_003E), ("aarch64", 0xC000_00B7)


def verdict(machine: tuple[str, int], number: int, argument: int = 0, audit: int | None = None) -> int:
    """What the filter answers to one call."""
    program = list(struct.iter_unpack("=HBBI", bpf_filter(machine[0])))
    fields = {0: number, 4: machine[1] if audit is None else audit, 16: argument}
    position = accumulator = 0
    while True:
        code, yes, no, value = program[position]
        if code == 0x06:
            return value
        if code == 0x20:
            accumulator = fields[value]
            position += 1
            continue
        holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}
        position += 1 + (yes if holds[code] else no)


@pytest.mark.parametrize(
    ("machine", "numbers"),
    [(X86, (101, 165, 272, 308, 321, 425, 250, 298)), (ARM, (117, 40, 97, 268, 280, 425, 219, 241))],
)
def test_ptrace_mount_unshare_setns_bpf_io_uring_keyctl_and_perf_are_denied(
    machine: tuple[str, int], numbers: tuple[int, ...]
) -> None:
    assert {verdict(machine, number) for number in numbers} == {EPERM}


@pytest.mark.parametrize(("machine", "number"), [(X86, 0), (X86, 1), (X86, 59), (ARM, 63), (ARM, 221)])
def test_ordinary_calls_pass(machine: tuple[str, int], number: int) -> None:
    assert verdict(machine, number) == ALLOW


@pytest.mark.parametrize(("machine", "socket", "pair"), [(X86, 41, 53), (ARM, 198, 199)])
def test_only_local_and_internet_sockets_exist(machine: tuple[str, int], socket: int, pair: int) -> None:
    for number in (socket, pair):
        allowed = [family for family in range(64) if verdict(machine, number, family) == ALLOW]
        assert allowed == [1, 2, 10]


@pytest.mark.parametrize(("machine", "clone"), [(X86, 56), (ARM, 220)])
def test_clone_makes_processes_and_threads_but_no_namespace(machine: tuple[str, int], clone: int) -> None:
    assert verdict(machine, clone, 0x11) == ALLOW
    assert verdict(machine, clone, 0x003D_0F00) == ALLOW  # a thread
    for bit in (17, 25, 26, 27, 28, 29, 30):
        assert verdict(machine, clone, 1 << bit | 0x11) == EPERM
    assert verdict(machine, 435) == ENOSYS


@pytest.mark.parametrize(
    ("machine", "numbers"), [(X86, (302, 203, 314, 142, 144)), (ARM, (261, 122, 274, 118, 119))]
)
def test_limits_and_priorities_are_changed_on_the_caller_alone(
    machine: tuple[str, int], numbers: tuple[int, ...]
) -> None:
    for number in numbers:
        assert verdict(machine, number, 0) == ALLOW
        assert verdict(machine, number, 1) == EPERM, "process 1 has the same user"


def test_foreign_calling_conventions_are_denied() -> None:
    assert verdict(X86, 0, audit=0x4000_0003) == EPERM
    assert verdict(X86, 0x4000_0000 + 1) == EPERM


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(SandboxLost, match="riscv64"):
        bpf_filter("riscv64")


def test_docker_gets_the_same_list() -> None:
    rules = docker_profile()["syscalls"]
    assert {"ptrace", "mount", "unshare", "setns", "bpf", "io_uring_setup", "keyctl"} <= set(
        rules[0]["names"]
    )
    equal = {
        rule["args"][0]["value"] for rule in rules if rule["args"] and rule["args"][0]["op"] == "SCMP_CMP_EQ"
    }
    assert equal == {0, *range(3, 10)}
    own = next(rule for rule in rules if "prlimit64" in rule["names"])
    assert (own["args"][0]["op"], own["args"][0]["value"]) == ("SCMP_CMP_NE", 0)
