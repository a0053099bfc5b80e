"""Puts a task's surroundings into its execution sandbox: files, variables, and what comes with a later step.

The code that does so runs inside, before the program's own, and leaves no name behind. Must not know scripts
or grades.
"""

from typing import Final

from verifier.task import Task

_PREPARE: Final = """
def _rinr_prepare(variables, folder, setup):
    import os, shutil, subprocess
    os.environ.update(variables)
    for name in ('agent', 'artifacts', 'verifier'):
        os.makedirs('/tmp/logs/' + name, exist_ok=True)
    for place, _, names in os.walk(folder):
        below = os.path.join('/work', os.path.relpath(place, folder))
        os.makedirs(below, exist_ok=True)
        for name in names:
            path = os.path.join(below, name)
            shutil.copyfile(os.path.join(place, name), path)
            with open(path, 'rb') as file:
                runs = file.read(2) == b'#!'
            os.chmod(path, 0o755 if runs else 0o644)
    if setup and os.path.isfile('/work/setup.sh'):
        done = subprocess.run(['/bin/bash', '/work/setup.sh'], cwd='/work', capture_output=True)
        if done.returncode:
            raise RuntimeError(f'setup.sh of the step ended with status {{done.returncode}}')
    os.chdir('/work')
try:
    _rinr_prepare({variables!r}, {folder!r}, {setup!r})
finally:
    del _rinr_prepare
"""
"""A file's mode is not kept by a release: what starts like a script may be run."""


def prepare_code(task: Task) -> str:
    """For the start of an episode; empty where the task has no surroundings."""
    if task.surroundings is None:
        return ""
    folder = "/assets/work"
    if task.surroundings.steps:
        # The first step's own files come with the rest.
        first = task.surroundings.steps[0].name
        return _code(task, folder, setup=False) + step_code(task, first)
    return _code(task, folder, setup=False)


def step_code(task: Task, step: str) -> str:
    """For the start of a step: its files, then its set-up script, as Harbor does."""
    return _code(task, f"/assets/steps/{step}", setup=f"steps/{step}/setup.sh" in task.files)


def _code(task: Task, folder: str, *, setup: bool) -> str:
    variables = task.surroundings.variables if task.surroundings is not None else {}
    return _PREPARE.format(variables=variables, folder=folder, setup=setup)
