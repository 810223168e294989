"""A manager whose tables, screen and end belong to a grid."""

from runmanager import RunManager
from runmanager.core.contracts import Boards
from runmanager.core.experiment import Experiment
from runmanager.core.goal import parse_goal
from runmanager.core.grid_context import GridContext
from runmanager.tensorboard.pictures import Confusion
from runmanager.tensorboard.run_log import RunLog


def manager_of_grid(experiment, root, *, tensorboard=False, batch_size=None, goal=None):
    boards, goal = Boards(RunLog, Confusion) if tensorboard else None, goal and parse_goal(goal)
    context = GridContext(boards=boards, measure=batch_size, goal=goal)
    return RunManager.of_grid(Experiment(root / experiment), context)
