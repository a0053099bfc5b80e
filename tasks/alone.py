"""A single evaluation outside any schedule, for `rinr evaluate`."""

from broker.evaluation import Evaluation
from broker.harness import Harness
from report.progress import RunProgress
from tasks.config import RunConfig
from tasks.measure import load_evaluation, measure
from tasks.session import open_session
from verifier.task import Split


async def evaluate_alone(
    config: RunConfig, program: Harness, split: Split, progress: RunProgress
) -> Evaluation:
    """Measure one program with the configured model; recorded under a run of its own."""
    async with open_session(config, progress) as session:
        model = session.import_model()
        session.begin(model)
        measured = await measure(session, "evaluation", 0, 0, model, session.put_harness(program), -1, split)
        return load_evaluation(session.store, measured)
