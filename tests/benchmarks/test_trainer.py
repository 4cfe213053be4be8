from benchmarks.trainer import ByHand, ByTrainer, Small, losses, small_batches


def test_both_loops_train_the_same_model():
    batches = small_batches()
    ours, by_hand = ByTrainer(Small(), batches), ByHand(Small(), batches)
    found = losses(ours.run)
    assert found == losses(by_hand.run)
    assert ours.run(8) < sum(found) / 8
