"""What hostile tool code tries, and the exact outcome of each: the table that `test_abuse_execution` runs.

A case is one call in a sandbox that the cases before it have used. The patterns match over lines. Where a
pair is given, the first is bubblewrap's answer and the second Docker's.
"""

import re
from dataclasses import dataclass

from broker.sandbox.seccomp import denied_calls

Text = str | tuple[str, str]


@dataclass(frozen=True)
class Case:
    """One piece of hostile code and what the host must see of it."""

    name: str
    code: str
    stdout: Text = ""
    error: Text = ""
    """Pattern that the error must contain; empty: no error. That of `stdout` must match the whole of it."""
    lost: bool = False
    """The worker is gone, and with it the variables."""
    timed_out: bool = False
    truncated: bool = False
    seconds: float = 20.0
    stays: bool = False
    """Processes, threads or changed modules outlive the call, as variables do; not the worker."""
    tidy: str = ""
    """Code that gives back what the case holds."""
    idle: float = 0.0
    """Seconds to wait before the next call."""
    dies_later: bool = False
    """The worker dies between this call and the next, which must run in a fresh one and say so."""


TRY = """
import errno
def tried(code):
    try:
        exec(code, {})
        return "possible"
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
    except BaseException as error:
        return type(error).__name__
"""
LOST = "The Python process %s. A fresh one was started: all variables are gone, files in /work stay."
KILLED = LOST % "was killed"
EXITED = LOST % r"(was killed|exited with code 70)"
LATE = r"TimeoutError: the call did not finish within %s seconds\.\n"


def attempts(*codes: str) -> str:
    """Code that makes each attempt and prints how it ended."""
    return TRY + "\n".join(f"print(tried({code!r}))" for code in codes)


def answers(*names: str) -> str:
    return "".join(f"{name}\n" for name in names)


def system_call(text: str) -> str:
    """Code that prints the errno name of a raw system call; `c` is the C library."""
    return (
        "import ctypes, errno, os\nc = ctypes.CDLL(None, use_errno=True)\nmachine = os.uname().machine\n"
        f"answer = {text}\n"
        "print('possible' if answer != -1 else errno.errorcode[ctypes.get_errno()])"
    )


WRITE_TO_EVERY_DESCRIPTOR = """
import os
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2:
        try:
            os.write(int(name), %r)
        except OSError:
            pass
"""


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def seen(payload: bytes) -> str:
    """What was written may be on the output, which is a descriptor too, if the worker still lived then."""
    return f"({re.escape(payload.decode('utf-8', 'replace'))})?"


KNOWN_VARIABLES = {"HOME", "HOSTNAME", "LANG", "LD_LIBRARY_PATH", "MPLCONFIGDIR", "OMP_NUM_THREADS"}
KNOWN_VARIABLES |= {"OPENBLAS_NUM_THREADS", "PATH", "PWD", "PYTHONHASHSEED", "TZ"}

PROCESSES = [
    Case(
        "fork bomb, endless",
        "import os\nwhile True:\n    try: os.fork()\n    except BaseException: pass",
        error=LATE % "1" + KILLED,
        lost=True,
        timed_out=True,
        seconds=1.0,
    ),
    Case(
        "fork bomb, bounded",
        "import errno, os, time\nmade = 0\ntry:\n    for _ in range(500):\n        if os.fork() == 0:\n"
        "            time.sleep(600)\n        made += 1\nexcept OSError as error:\n"
        "    print(made, errno.errorcode[error.errno])",
        stdout=("1[34] EAGAIN\n", "16 EAGAIN\n"),
        stays=True,
    ),
    Case(
        "thread bomb",
        "import threading, time\ntry:\n    for made in range(500):\n"
        "        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "except RuntimeError as error:\n    print(made, error)",
        stdout=r"\d+ can't start new thread\n",
        stays=True,
    ),
    Case(
        "endless loop",
        "while True: pass",
        error=LATE % "0.3" + ".*KeyboardInterrupt",
        timed_out=True,
        seconds=0.3,
    ),
    Case(
        "SIGINT ignored",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        error=LATE % "0.2" + KILLED,
        lost=True,
        timed_out=True,
        seconds=0.2,
    ),
    Case(
        "every exception caught",
        "import time\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass",
        error=LATE % "0.2" + KILLED,
        lost=True,
        timed_out=True,
        seconds=0.2,
    ),
    Case(
        "SIGSTOP self",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        error=LATE % "0.2" + KILLED,
        lost=True,
        timed_out=True,
        seconds=0.2,
    ),
    Case("exit()", "exit()"),
    Case("KeyboardInterrupt of its own", "raise KeyboardInterrupt", error="KeyboardInterrupt$"),
    Case("GeneratorExit", "raise GeneratorExit", error="GeneratorExit$"),
    Case("sys.exit(0)", "import sys\nsys.exit(0)"),
    Case("sys.exit(3)", "import sys\nsys.exit(3)", error="SystemExit: 3"),
    Case("sys.exit(text)", "import sys\nsys.exit('gone \\x1b')", error="SystemExit: gone \x1b"),
    Case("os._exit", "import os\nos._exit(3)", error=LOST % "exited with code 3", lost=True),
    Case(
        "segmentation fault",
        "import ctypes\nctypes.string_at(0)",
        error=LOST % "was killed by signal 11",
        lost=True,
    ),
    Case("abort", "import os\nos.abort()", error=LOST % "was killed by signal 6", lost=True),
    Case(
        "SIGKILL self",
        "import os\nos.kill(os.getpid(), 9)",
        error=LOST % "was killed by signal 9",
        lost=True,
    ),
    Case(
        "deep recursion",
        "def f(): return f()\nf()",
        error="RecursionError: maximum recursion depth exceeded$",
    ),
    Case("deep source", "x = " + "(" * 500, error="SyntaxError: too many nested parentheses$"),
    Case(
        "every signal to the parent, which is process 1",
        "import os\nfor number in range(1, 65):\n    os.kill(os.getppid(), number)\nprint(os.getppid())",
        stdout="1\n",
    ),
    Case("kill -1", attempts("import os; os.kill(-1, 9)"), stdout=answers("ESRCH")),
    Case(
        "limits of process 1",
        "import resource\n"
        + attempts(
            *(
                f"import resource; resource.prlimit(1, resource.RLIMIT_{name}, (0, 0))"
                for name in ("CPU", "AS", "NOFILE", "NPROC", "FSIZE")
            )
        ),
        stdout=answers(*["EPERM"] * 5),
    ),
    Case(
        "priority of process 1",
        attempts(
            "import os; os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
            "import os; os.sched_setaffinity(1, {0})",
            "import os; os.setpriority(os.PRIO_PROCESS, 1, 19)",
            "import os; os.setpriority(os.PRIO_USER, 0, 19)",
        ),
        stdout=answers(*["EPERM"] * 4),
    ),
    Case(
        "own limits raised",
        attempts(
            "import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1))",
            "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (-1, -1))",
            "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (4096, 4096))",
        ),
        stdout=answers("ValueError", "ValueError", "ValueError"),
    ),
    Case(
        "to be no victim when memory runs out",
        attempts("open('/proc/self/oom_score_adj', 'w').write('-1000')"),
        stdout=answers("EACCES"),
    ),
    Case(
        "daemon thread after the call",
        "import threading\ndef spin():\n    while True: pass\n"
        "threading.Thread(target=spin, daemon=True).start()",
        stays=True,
    ),
    Case(
        "child in a session of its own after the call",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0:\n        time.sleep(600)\n    os._exit(0)\nos.wait()",
        stays=True,
    ),
    Case(
        "child that comes out of the code",
        "import os\nchild = os.fork()\nif child: os.waitpid(child, 0)",
    ),
    Case(
        "SIGALRM bomb",
        "import signal\nsignal.signal(signal.SIGALRM, lambda *_: 1 / 0)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.2, 0.01)",
        idle=1.0,
        dies_later=True,
    ),
    Case("atexit hang", "import atexit, time\natexit.register(time.sleep, 600)"),
    Case(
        "atexit hang and death",
        "import atexit, os, time\natexit.register(time.sleep, 600)\nos._exit(0)",
        error=LOST % "exited with code 0",
        lost=True,
    ),
    Case(
        "another program in the worker's place",
        "import os, sys\nprogram = '/usr/bin/python%d.%d' % sys.version_info[:2]\n"
        "os.execv(program, [program, '-ISc', 'import time; time.sleep(600)'])",
        error=KILLED,
        lost=True,
    ),
    Case(
        "core dump of another program",
        "import os, resource, subprocess, sys\n"
        "program = '/usr/bin/python%d.%d' % sys.version_info[:2]\n"
        "done = subprocess.run([program, '-Sc', 'import ctypes; ctypes.string_at(0)'])\n"
        "print(done.returncode, resource.getrlimit(resource.RLIMIT_CORE)[1] in (0, 1), os.listdir('/work'))",
        stdout=r"-11 True \[\]\n",
    ),
]

MEMORY = [
    Case("memory hog", "x = bytearray(10**9)", error="MemoryError$"),
    Case(
        "memory hog that keeps crumbs",
        "kept_all = []\nwhile True: kept_all.append(bytes(100))",
        error="MemoryError$",
        tidy="kept_all.clear()",
    ),
    Case(
        "memory in System V objects",
        system_call("c.shmget(0, 1 << 20, 0o1600)"),
        stdout="EPERM\n",
    ),
    *(
        Case(
            f"full {folder}",
            "import errno\ntry:\n"
            f"    for i in range(99): open('{folder}/%d' % i, 'wb').write(bytes(1 << 20))\n"
            "except OSError as error:\n    print(errno.errorcode[error.errno])",
            stdout="ENOSPC\n",
        )
        for folder in ("/work", "/tmp", "/dev/shm")
    ),
    Case(
        "a file of 200 MB",
        attempts(
            "open('/dev/shm/f', 'wb').write(bytes(200 << 20))",
            "open('/dev/shm/g', 'wb').truncate(200 << 20)",
        ).replace("bytes(200 << 20)", "bytes(100 << 20)", 1),
        stdout=answers("EFBIG", "EFBIG"),
    ),
    Case(
        "descriptors, all kept",
        "import errno, os\nkept_all = []\ntry:\n    while True: kept_all.append(os.open('/dev/null', 0))\n"
        "except OSError as error:\n    print(errno.errorcode[error.errno])",
        stdout="EMFILE\n",
        tidy="for descriptor in kept_all: os.close(descriptor)",
    ),
]

OUTPUT = [
    Case(
        "endless output",
        "while True: print('x' * 1000)",
        stdout=r"(x{1000}\n){48}.*\[\.\.\. \d+ bytes of output dropped \.\.\.\].*",
        error=LATE % "0.3" + ".*KeyboardInterrupt",
        timed_out=True,
        truncated=True,
        seconds=0.3,
    ),
    Case(
        "endless output that ignores the interrupt",
        "import os\nwhile True:\n    try: os.write(1, b'x' * 65536)\n    except BaseException: pass",
        stdout=r"x+\n\[\.\.\. \d+ bytes of output dropped \.\.\.\]\nx+",
        error=LATE % "0.2" + KILLED,
        lost=True,
        timed_out=True,
        truncated=True,
        seconds=0.2,
    ),
    Case(
        "200 MB of output",
        "import os\nos.write(1, b'first\\n')\nchunk = b'x' * (1 << 20)\n"
        "for _ in range(200):\n    at = 0\n    while at < len(chunk): at += os.write(1, chunk[at:])\n"
        "os.write(1, b'\\nlast')",
        stdout=r"first\nx+\n\[\.\.\. 209616907 bytes of output dropped \.\.\.\]\nx+\nlast",
        truncated=True,
    ),
    Case(
        "invalid UTF-8, NUL and ESC",
        "import os\nos.write(1, b'a\\xff\\xfe\\x00\\x1b[2J\\xed\\xa0\\x80b')",
        stdout="a\ufffd\ufffd\x00\x1b\\[2J\ufffd\ufffd\ufffdb",
    ),
    Case("lone surrogate in an error", "raise ValueError('\\ud800')", error=r"ValueError: (\?|\\ud800)$"),
    Case("endless error", "raise ValueError('y' * 10_000_000)", error=r"\[\.\.\.\].*y$"),
    Case(
        "reads standard input",
        "import sys\nprint(repr(sys.stdin.read()))\ninput()",
        stdout="''\n",
        error="EOFError",
    ),
    Case(
        "T06: closes stdout and raises",
        "import sys\nsys.stdout.close()\nraise ValueError('on purpose')",
        error="ValueError: on purpose$",
    ),
    Case("closes every standard descriptor", "import os\nos.closerange(0, 3)"),
    Case("replaces its streams", "import sys\nsys.stdin = sys.stdout = sys.stderr = sys.__stdout__ = None"),
    Case(
        "error whose text never ends",
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
        error=LATE % "0.3" + KILLED,
        lost=True,
        timed_out=True,
        seconds=0.3,
    ),
    Case(
        "error whose text fails",
        "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
        error="E: <exception str\\(\\) failed>$",
    ),
]

CHANNEL = [
    Case("closes every descriptor", "import os\nos.closerange(0, 100_000)", error=EXITED, lost=True),
    Case(
        "closes every descriptor and sleeps",
        "import os, time\nos.closerange(0, 100_000)\ntime.sleep(600)",
        error=KILLED,
        lost=True,
    ),
    *(
        Case(f"forged frame: {name}", WRITE_TO_EVERY_DESCRIPTOR % payload, seen(payload), EXITED, lost=True)
        for name, payload in {
            "giant length": b"\xff\xff\xff\xff",
            "length of one byte too much": (1 + (1 << 20)).to_bytes(4, "big"),
            "no object": frame(b"[]"),
            "deep JSON": frame(b"[" * 5000),
            "unfolding JSON": frame(b'{"a":[' + b"[]," * 9000 + b"1]}"),
            "pickle": b"\x80\x04\x95pickle",
            "duplicate key": frame(b'{"id":1,"id":2}'),
            "NaN": frame(b'{"id":NaN}'),
            "invalid UTF-8": frame(b'{"id":"\xff"}'),
        }.items()
    ),
    Case(
        "half a frame",
        WRITE_TO_EVERY_DESCRIPTOR % b"\x00\x0f\xff\xff{",
        seen(b"\x00\x0f\xff\xff{"),
        error=LATE % "0.3" + KILLED,
        lost=True,
        timed_out=True,
        seconds=0.3,
    ),
    *(
        Case(f"forged frame: {name}", WRITE_TO_EVERY_DESCRIPTOR % payload, seen(payload))
        for name, payload in {
            "another call's reply": frame(b'{"id":-1,"error":"no"}'),
            "the host's own words": frame(b'{"op":"ready"}'),
        }.items()
    ),
    Case(
        "replaces json, os.write and print",
        "import builtins, json, os\njson.dumps = json.loads = os.write = os.read = os.getpid = None\n"
        "os.dup2 = builtins.print = None",
        stays=True,
    ),
    Case("clears the built-ins", "import builtins\nbuiltins.__dict__.clear()", error=EXITED, lost=True),
    Case(
        "traces every line",
        "import sys\nsys.settrace(lambda *_: 1 / 0)\ndef f(): pass\nf()",
        error="ZeroDivisionError",
    ),
]

FILES = [
    *(
        Case(
            f"/proc/1/{name}",
            attempts(f"open('/proc/1/{name}', 'rb').read(1)"),
            stdout=answers(refusal),
        )
        for name, refusal in {
            "environ": "EACCES",
            "mem": "EACCES",
            "maps": "EACCES",
            "fd/0": "EACCES",
            "fd/3": "EACCES",
            "root/etc/passwd": "EACCES",
            "cwd/x": "EACCES",
            "task/1/mem": "EACCES",
        }.items()
    ),
    Case("/proc/1/fd", attempts("import os; os.listdir('/proc/1/fd')"), stdout=answers("EACCES")),
    Case(
        "own environment",
        f"import os\nprint(set(os.environ) - {KNOWN_VARIABLES!r})",
        stdout=r"set\(\)\n",
    ),
    *(
        Case(f"{name} in the lake", attempts(code), stdout=answers("EROFS"))
        for name, code in {
            "writing": "open('/lake/table.tsv', 'a')",
            "a new file": "open('/lake/new', 'w')",
            "renaming": "import os; os.rename('/lake/table.tsv', '/lake/x')",
            "removing": "import os; os.remove('/lake/table.tsv')",
            "chmod": "import os; os.chmod('/lake/table.tsv', 0o777)",
            "chown": "import os; os.chown('/lake/table.tsv', 65534, 65534)",
            "touching": "import os; os.utime('/lake/table.tsv')",
            "a link": "import os; os.symlink('/etc', '/lake/link')",
        }.items()
    ),
    Case(
        "a link out of the lake",
        attempts("open('/lake/out').read()", "open('/proc/self/root/lake/out').read()"),
        stdout=answers("ENOENT", "ENOENT"),
    ),
    Case(
        "writing in the root",
        attempts(
            "open('/etc/passwd', 'a')",
            "open('/usr/bin/x', 'w')",
            "open('/opt/rinr/broker/sandbox/supervisor.py', 'a')",
            "open('/x', 'w')",
        ),
        stdout=answers("EACCES", "EROFS", "EACCES", "EROFS"),
    ),
    Case(
        "the host's files",
        "import os\nplaces = ('/root', '/home', '/var/lib', '/mnt', '/boot', '/etc/shadow')\n"
        "print([place for place in places if os.path.exists(place)])",
        stdout=r"\[\]\n",
    ),
    Case(
        "docker's socket",
        "import os\nprint(os.path.exists('/var/run/docker.sock'), os.path.exists('/run/docker.sock'))",
        stdout="False False\n",
    ),
    Case(
        "the kernel's knobs",
        attempts(
            "open('/proc/sysrq-trigger', 'w').write('b')",
            "open('/proc/sys/kernel/core_pattern', 'w').write('|/work/x')",
            "open('/proc/sys/vm/drop_caches', 'w').write('3')",
        ),
        stdout="(EACCES|ENOENT|EROFS)\n" * 3,
    ),
    Case(
        "control groups",
        attempts(
            "open('/sys/fs/cgroup/cgroup.procs', 'w').write('1')",
            "open('/sys/fs/cgroup/memory/memory.limit_in_bytes', 'w').write('-1')",
            "import os; os.mkdir('/sys/fs/cgroup/x')",
        ),
        stdout=(answers("ENOENT", "ENOENT", "ENOENT"), "(ENOENT|EROFS|EACCES)\n" * 3),
    ),
    Case(
        "devices",
        attempts(
            "open('/dev/mem', 'rb')",
            "open('/dev/kmsg', 'rb')",
            "open('/dev/tty', 'rb')",
            "import os; os.mknod('/work/m', 0o20666, os.makedev(1, 1))",
        ),
        stdout=(answers("ENOENT", "ENOENT", "ENXIO", "EPERM"), answers("ENOENT", "ENOENT", "ENXIO", "EPERM")),
    ),
]

DENIED = denied_calls()
"""Numbers of this machine."""
KERNEL = [
    *(
        Case(
            f"{family} socket",
            attempts(f"import socket; socket.socket(socket.{family}, socket.SOCK_{kind}, {protocol})"),
            stdout=answers("EPERM"),
        )
        for family, kind, protocol in (
            ("AF_VSOCK", "STREAM", 0),
            ("AF_NETLINK", "RAW", 0),
            ("AF_PACKET", "RAW", 0),
            ("AF_ALG", "SEQPACKET", 0),
            ("AF_INET", "RAW", 1),
            ("AF_INET6", "RAW", 58),
        )
    ),
    Case(
        "name resolution",
        attempts("import socket; socket.getaddrinfo('rinr.invalid', 80)"),
        stdout=answers("gaierror"),
    ),
    *(
        Case(name, system_call(f"c.{call}"), stdout=refusal + "\n")
        for name, call, refusal in (
            ("setuid", "setuid(0)", "(EPERM|EINVAL)"),  # EINVAL: the id does not exist there
            ("setgid", "setgid(0)", "(EPERM|EINVAL)"),
            ("setgroups", "setgroups(0, None)", "EPERM"),
            ("unshare", "unshare(0x10000000)", "EPERM"),
            (
                "a user namespace",
                "syscall({'x86_64': 56}.get(machine, 220), 0x10000011, 0, 0, 0, 0)",
                "EPERM",
            ),
            ("clone3", "syscall(435, 0, 0)", "ENOSYS"),
            ("mount", "mount(b'x', b'/tmp', b'tmpfs', 0, None)", "EPERM"),
            ("umount", "umount2(b'/lake', 2)", "EPERM"),
            ("chroot", "chroot(b'/tmp')", "EPERM"),
            ("ptrace of process 1", "ptrace(16, 1, 0, 0)", "EPERM"),
            ("descriptors of process 1", "syscall(438, c.syscall(434, 1, 0), 0, 0)", "EPERM"),
            ("keyctl", f"syscall({DENIED['keyctl']}, 0, -3, 0)", "EPERM"),
            ("io_uring", f"syscall({DENIED['io_uring_setup']}, 1, bytes(120))", "EPERM"),
            ("bpf", f"syscall({DENIED['bpf']}, 0, bytes(120), 120)", "EPERM"),
        )
    ),
    Case(
        "every call of the deny list",
        "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
        f"for name, number in {DENIED!r}.items():\n"
        "    answer = c.syscall(number, -1, -1, -1, -1, -1, -1)\n"
        "    if (answer, ctypes.get_errno()) != (-1, 1): print(name)",
    ),
]

CASES = [*PROCESSES, *MEMORY, *OUTPUT, *CHANNEL, *FILES, *KERNEL]
