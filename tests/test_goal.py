import math

import pytest

from runmanager.answers.usual_goals import companion
from runmanager.core.goal import Goal, default_goal, is_larger_better, parse_goal
from runmanager.errors import GridError

UP = ["accuracy", "acc", "f1", "auc", "r2", "iou", "bleu", "reward"]
RULE = "goal must be 'max:<metric>', 'min:<metric>', or a metric as 'test_accuracy'"
DOWN = ["loss", "error", "mae", "mse", "rmse", "perplexity", "wer"]


@pytest.mark.parametrize("prefix", ["", "val_", "validation_", "test_", "eval_"])
@pytest.mark.parametrize(("names", "is_up"), [(UP, True), (DOWN, False)])
def test_the_directions_of_the_fields_metrics_are_known(prefix, names, is_up):
    assert {is_larger_better(f"{prefix}{name}") for name in names} == {is_up}
    assert {parse_goal(f"{prefix}{name}").sign for name in names} == {1 if is_up else -1}


LARGER = (
    "val_acc acc_val acc@5 acc1 acc_top5 balanced_acc acc_epoch mIoU val/mIoU mAP50 f1-score precision@1 bleu4"
)
SMALLER = "wer mae test_rmse_mean MAE error_rate top1_error err@5 loss_epoch loss/val"
UNKNOWN = """
    entropy kl score top_k learning_rate f1_loss_weight value_loss_coef grad_norm accuracy_gap reward_std
    1-accuracy inverse_accuracy fps val top mean 5 MulticlassAccuracy
"""


@pytest.mark.parametrize(("names", "is_up"), [(LARGER, True), (SMALLER, False), (UNKNOWN, None)])
def test_a_name_has_a_direction_unless_it_is_ambiguous(names, is_up):
    assert {name: is_larger_better(name) for name in names.split()} == dict.fromkeys(names.split(), is_up)


@pytest.mark.parametrize(
    ("given", "goal"),
    [
        ("max:loss", Goal("loss", 1)),
        ("min: entropy ", Goal("entropy", -1)),
        ("best:wer", Goal("wer", -1)),
        ("max:a:b", Goal("a:b", 1)),
        (Goal("x", -1), Goal("x", -1)),
    ],
)
def test_a_goal_names_its_direction(given, goal):
    assert parse_goal(given) == goal
    assert parse_goal(str(goal)) == goal


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("kl", "whether large values of 'kl' are good is not known: write goal='max:kl' or goal='min:kl'"),
        *(
            (
                wrong,
                f"goal must be 'max:<metric>', 'min:<metric>', or a metric as 'test_accuracy', got {wrong!r}",
            )
            for wrong in ("", " ", "max:", "val:loss", 3, True, ("max", "reward"))
        ),
        ("bst:loss", f"{RULE}, got 'bst:loss'"),
        ("maximize:reward", f"{RULE}, got 'maximize:reward'"),
    ],
)
def test_what_is_no_goal_is_asked_for(given, problem):
    with pytest.raises(GridError) as caught:
        parse_goal(given)

    assert caught.value.problems == [problem]


@pytest.mark.parametrize(
    ("names", "metric"),
    [
        (["loss", "accuracy", "test_accuracy", "val_accuracy"], "val_accuracy"),
        (["loss", "test_loss", "eval_loss", "validation_loss"], "validation_loss"),
        (["policy_loss", "value_loss", "reward", "epoch duration"], "reward"),
        (["policy_loss", "reward", "eval_reward"], "eval_reward"),
        (["policy_loss", "loss"], "policy_loss"),
        (["loss", "f1"], "loss"),
        (["best accuracy", "epoch duration", "entropy"], None),
        (["train_loss", "val_loss", "train_acc", "val_acc", "test_acc"], "val_acc"),
        (["valid_loss", "valid_acc", "loss", "accuracy"], "valid_acc"),
        (["loss/val", "acc/val"], "acc/val"),
        (["loss", "val_mIoU"], "val_mIoU"),
        (["loss", "val_loss", "val_mIoU"], "val_loss"),
        (["d_loss", "g_loss", "latency", "fid"], "fid"),
        (["val_acc5", "val_acc1"], "val_acc1"),
        (["val_top5_acc", "val_top1_acc"], "val_top1_acc"),
        (["loss", "val_kl_loss", "reward"], "reward"),
        (["loss", "val_kl_loss", "train_f1"], "train_f1"),
    ],
)
def test_without_a_goal_the_usual_metric_decides(names, metric):
    goal = default_goal(names)

    assert (goal.metric if goal else None) == metric


def test_the_score_of_an_epoch_is_larger_where_it_is_better():
    assert Goal("wer", -1).score({"wer": 0.25}) == -0.25
    assert Goal("wer", -1).score({"wer": math.nan}) == Goal("f1", 1).score({}) == -math.inf


@pytest.mark.parametrize(
    ("metric", "names", "other"),
    [
        ("val_acc", ["train_loss", "val_loss"], "val_loss"),
        ("val_loss", ["train_acc", "val_acc"], "val_acc"),
        ("acc/val", ["loss", "loss/val"], "loss/val"),
        ("val_loss", ["accuracy"], ""),
        ("val_acc", ["loss", "val_kl_loss", "val_loss"], "val_loss"),
    ],
)
def test_the_metric_beside_the_goal_is_of_the_same_data(metric, names, other):
    assert companion(metric, names) == other
