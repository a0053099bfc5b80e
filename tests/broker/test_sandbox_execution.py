"""Tool code in a real sandbox: state, output, errors, and every way to lose the worker."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.sandbox.base import Sandbox, SandboxFactory
from tests.fixtures.sandbox_probe import execute, execution, open_or_skip


@pytest.fixture(params=["bubblewrap", "docker"])
async def factory(request: pytest.FixtureRequest) -> AsyncIterator[SandboxFactory]:
    factory = open_or_skip(request.param)
    yield factory
    await factory.close()


@pytest.fixture
async def sandbox(factory: SandboxFactory) -> AsyncIterator[Sandbox]:
    async with execution(factory) as sandbox:
        yield sandbox


@pytest.mark.spec("HOST-09")
async def test_variables_and_files_persist_between_calls_and_never_between_sandboxes(
    factory: SandboxFactory,
) -> None:
    async with execution(factory) as first, execution(factory) as second:
        await execute(first, "x = 41\nopen('/work/f', 'w').write('kept')\nopen('/tmp/f', 'w').write('kept')")
        same = await execute(first, "x += 1\nprint(x, open('/work/f').read(), open('/tmp/f').read())")
        assert same["stdout"] == "42 kept kept\n"
        other = await execute(
            second, "import os\nprint('x' in dir(), os.listdir('/work'), os.listdir('/tmp'))"
        )
        assert other["stdout"] == "False [] []\n"


@pytest.mark.spec("HOST-09")
async def test_closing_stdout_and_raising_harms_only_that_call(sandbox: Sandbox) -> None:
    """Case T06, and its kin: each standard stream, closed in either way."""
    for harm in ("sys.stdout.close()", "sys.stdout = None", "os.close(1)", "os.close(0); os.close(2)"):
        first = await execute(sandbox, f"import os, sys\nkept = 7\n{harm}\nraise ValueError('on purpose')")
        assert "ValueError: on purpose" in first["error"]
        second = await execute(sandbox, "print(1)\nprint(kept, file=sys.stderr)")
        assert (second["stdout"], second["error"]) == ("1\n7\n", "")


async def test_numpy_and_pandas_are_there_and_read_a_table(factory: SandboxFactory, tmp_path: Path) -> None:
    (tmp_path / "genes.tsv").write_text("gene\tstart\nTP53\t7\n")
    async with execution(factory, lake=tmp_path) as sandbox:
        code = "import numpy as np, pandas as pd\nt = pd.read_csv('/lake/genes.tsv', sep='\\t')\n"
        code += "print(t.start[0] + np.int64(1), pd.__version__, np.__version__)"
        assert (await execute(sandbox, code, 60))["stdout"] == "8 2.3.3 2.3.5\n"


async def test_an_error_shows_the_callers_own_lines_and_nothing_of_the_supervisor(sandbox: Sandbox) -> None:
    observation = await execute(sandbox, "def f():\n    return {}['missing']\nf()")
    assert observation["error"].splitlines()[-1] == "KeyError: 'missing'"
    assert "return {}['missing']" in observation["error"]
    assert "broker" not in observation["error"]
    observation = await execute(sandbox, "x = (")
    assert "SyntaxError" in observation["error"]
    assert not observation["worker_lost"]
    observation = await execute(sandbox, "import json\njson.loads('{')")
    assert observation["error"].count("File") == 1, "library frames are left out"


async def test_the_last_expression_is_not_echoed(sandbox: Sandbox) -> None:
    assert (await execute(sandbox, "1 + 1"))["stdout"] == ""


async def test_output_at_descriptor_level_is_seen_in_its_place(sandbox: Sandbox) -> None:
    code = "import os\nprint('a')\nos.write(1, b'b\\n')\nos.write(2, b'c\\xff\\n')\nprint('d', end='')"
    assert (await execute(sandbox, code))["stdout"] == "a\nb\nc\ufffd\nd"


async def test_long_output_keeps_its_head_and_its_tail(sandbox: Sandbox) -> None:
    observation = await execute(sandbox, "print('first')\nprint('x' * 3_000_000)\nprint('last')")
    assert observation["output_truncated"]
    assert observation["stdout"].startswith("first\nx")
    assert observation["stdout"].endswith("x\nlast\n")
    assert len(observation["stdout"]) < 100_000


async def test_a_long_error_is_clipped(sandbox: Sandbox) -> None:
    observation = await execute(sandbox, "raise ValueError('y' * 100_000 + '\\ud800')")
    assert len(observation["error"]) < 9_000
    assert "ValueError: yyy" in observation["error"]


async def test_a_lost_worker_is_told_and_replaced(sandbox: Sandbox) -> None:
    for death in ("import os; os._exit(0)", "import ctypes; ctypes.string_at(0)"):
        await execute(sandbox, "x = 1; open('/work/f', 'w').write('stays')")
        observation = await execute(sandbox, f"print('before', flush=True)\n{death}")
        assert observation["worker_lost"], death
        assert not observation["timed_out"]
        assert observation["stdout"] == "before\n"
        assert "variables are gone" in observation["error"]
        after = await execute(sandbox, "print('x' in dir(), open('/work/f').read())")
        assert after["stdout"] == "False stays\n"
