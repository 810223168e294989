"""A manager whose tables, screen and end belong to a grid."""

from runmanager import RunManager
from runmanager.core.design import Design
from runmanager.core.folders import RunFolders
from runmanager.core.goal import parse_goal
from runmanager.core.grid_context import GridContext
from runmanager.core.hooks import Hooks
from runmanager.tensorboard.run_log import RunLogs


def manager_of_grid(experiment, root, grid=None, *, tensorboard=False, batch_size=None, goal=None):
    boards = RunLogs() if tensorboard else None
    folders = RunFolders(experiment, root)
    design = Design(goal and parse_goal(goal))
    hooks = Hooks(folders, measure=batch_size, design=design, grid=grid or GridContext(), boards=boards)
    return RunManager(_hooks=hooks)
