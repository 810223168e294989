"""A manager whose tables, screen and end belong to a grid."""

from runmanager import RunManager
from runmanager.board.run_log import RunLogs
from runmanager.goal import parse_goal
from runmanager.storage.design import Design
from runmanager.storage.folders import RunFolders
from runmanager.training.grid_context import GridContext
from runmanager.training.hooks import Hooks


def manager_of_grid(experiment, root, grid=None, *, tensorboard=False, batch_size=None, goal=None):
    boards = RunLogs() if tensorboard else None
    folders = RunFolders(experiment, root)
    design = Design(goal and parse_goal(goal))
    hooks = Hooks(folders, measure=batch_size, design=design, grid=grid or GridContext(), boards=boards)
    return RunManager(_hooks=hooks)
