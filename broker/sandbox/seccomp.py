"""The system call filter of both back ends: one deny list, as BPF for bubblewrap and as JSON for Docker.

Denied calls fail with EPERM, so that a program sees an error and not a crash. Sockets may only be local or
internet ones (there is no network inside), which shuts vsock, netlink, packet and crypto sockets. No System V
objects either: their memory outlives the process that a limit holds.
"""

import platform
import struct
from typing import Any, Final

from broker.errors import SandboxLost

# name: numbers on x86_64 and aarch64; None where that machine has no such call.
_DENIED: Final[dict[str, tuple[int | None, int | None]]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semget": (64, 190),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
_SELF_ONLY: Final = {
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
}
"""Allowed on the caller alone (first argument 0). They work on any process of the user, however closed it
is: tool code could take process 1's memory, files or processor time away, and the sandbox would vanish."""
_FAMILIES: Final = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6."""
_NEW_NAMESPACES: Final = 0x7E02_0000
"""Every CLONE_NEW* flag that `clone` knows."""
_CLONE3: Final = 435
_MACHINES: Final = {
    # machine: column, audit number, socket, socketpair, clone
    "x86_64": (0, 0xC000_003E, 41, 53, 56),
    "aarch64": (1, 0xC000_00B7, 198, 199, 220),
}
_EPERM, _ENOSYS = 1, 38
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16


def denied_calls(machine: str = platform.machine()) -> dict[str, int]:
    """Names and numbers of the calls that are refused whatever their arguments. Raises as `bpf_filter`."""
    if machine not in _MACHINES:
        raise SandboxLost(f"no system call filter for {machine}: use x86_64 or aarch64")
    pairs = ((name, pair[_MACHINES[machine][0]]) for name, pair in _DENIED.items())
    return {name: number for name, number in pairs if number is not None}


def bpf_filter(machine: str = platform.machine()) -> bytes:
    """The filter as the kernel wants it: instructions of 8 bytes. Raises SandboxLost on other machines."""
    if machine not in _MACHINES:
        raise SandboxLost(f"no system call filter for {machine}: use x86_64 or aarch64")
    column, audit, socket, socketpair, clone = _MACHINES[machine]
    numbers = [pair[column] for pair in _DENIED.values()]
    # Jumps are written as labels first, for their distances depend on what follows.
    program: list[tuple[int, int, str, str]] = [
        (_LOAD, _ARCHITECTURE, "", ""),
        (_EQUAL, audit, "", "deny"),
        (_LOAD, _NUMBER, "", ""),
        (_AT_LEAST, 0x4000_0000, "deny", ""),  # the x32 numbers would bypass the list
        *((_EQUAL, number, "deny", "") for number in numbers if number is not None),
        (_EQUAL, _CLONE3, "absent", ""),  # its flags are out of reach, so libc must fall back to clone
        (_EQUAL, clone, "clone", ""),
        *((_EQUAL, pair[column], "self", "") for pair in _SELF_ONLY.values()),
        (_EQUAL, socket, "socket", ""),
        (_EQUAL, socketpair, "socket", "allow"),
    ]
    labels = {"socket": len(program)}
    program.append((_LOAD, _FIRST_ARGUMENT, "", ""))
    program += [(_EQUAL, family, "allow", "") for family in _FAMILIES]
    labels["deny"] = len(program)
    program.append((_RETURN, _ERRNO | _EPERM, "", ""))
    labels["self"] = len(program)
    program += [(_LOAD, _FIRST_ARGUMENT, "", ""), (_EQUAL, 0, "allow", "deny2")]
    labels["clone"] = len(program)
    program += [(_LOAD, _FIRST_ARGUMENT, "", ""), (_ANY_BIT, _NEW_NAMESPACES, "deny2", "")]
    labels["allow"] = len(program)
    program.append((_RETURN, _ALLOW, "", ""))
    labels["deny2"] = len(program)  # jumps only go forward
    program.append((_RETURN, _ERRNO | _EPERM, "", ""))
    labels["absent"] = len(program)
    program.append((_RETURN, _ERRNO | _ENOSYS, "", ""))

    def distance(label: str, index: int) -> int:
        return labels[label] - index - 1 if label else 0

    return b"".join(
        struct.pack("=HBBI", code, distance(yes, index), distance(no, index), value)
        for index, (code, value, yes, no) in enumerate(program)
    )


def docker_profile() -> dict[str, Any]:
    """The same list for `security_opt: seccomp=`. A rule compares an argument once, hence a rule a family."""

    def deny(names: list[str], error: int, *arguments: dict[str, Any]) -> dict[str, Any]:
        return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error, "args": list(arguments)}

    def argument(operation: str, value: int, second: int = 0) -> dict[str, Any]:
        return {"index": 0, "value": value, "valueTwo": second, "op": f"SCMP_CMP_{operation}"}

    sockets = ["socket", "socketpair"]
    refused = [family for family in range(max(_FAMILIES)) if family not in _FAMILIES]
    bits = [1 << bit for bit in range(32) if _NEW_NAMESPACES >> bit & 1]
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": [
            deny(sorted(_DENIED), _EPERM),
            deny(["clone3"], _ENOSYS),
            deny(sorted(_SELF_ONLY), _EPERM, argument("NE", 0)),
            deny(sockets, _EPERM, argument("GT", max(_FAMILIES))),
            *(deny(sockets, _EPERM, argument("EQ", family)) for family in refused),
            *(deny(["clone"], _EPERM, argument("MASKED_EQ", bit, bit)) for bit in bits),
        ],
    }
