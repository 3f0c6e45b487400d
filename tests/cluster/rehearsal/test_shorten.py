"""Settings lose their loops, clients all samples but those of a batch; sizes stay."""

from cluster.rehearsal.shorten import TESTED, rounds_to_rehearse, shortened
from fl.fusion.trajectory import AHEAD
from tests.cluster.rehearsal.small import small_cut


def test_a_client_has_one_batch_and_the_test_split_a_few_samples() -> None:
    _, cut = small_cut("--method=fedmho", "--alpha=100", "--classifier.batch-size=17")
    assert {client.num_samples for client in cut.members} == {len(own) for own in cut.train}
    assert {len(own) for own in cut.train} == {17}  # the larger of the two roles' batches
    for own, whole in zip(cut.train, cut.whole.partition.train, strict=True):
        assert set(own) <= set(whole)
    assert len(cut.dataset.test.labels) == TESTED
    assert cut.share_tested == 200 / TESTED


def test_who_has_less_than_a_batch_repeats_it() -> None:
    _, cut = small_cut("--method=fedavg", "--num-large=4", "--alpha=0.1")
    sizes = {len(own) for own in cut.train}
    assert len(sizes) == 1
    assert sizes.pop() > min(map(len, cut.whole.partition.train)) or cut.share_samples > 1


def test_loops_of_the_server_are_cut_and_told_and_fits_stay() -> None:
    options, _ = small_cut("--method=dense", "--inversion.steps=30", "--kd.epochs=7")
    short, loops = shortened(options)
    assert short.inversion.steps == 1
    assert loops == {"synthesis": 30.0}
    assert short.kd == options.kd
    assert short.classifier == options.classifier


def test_two_rounds_show_all_but_for_images_that_come_later() -> None:
    dynafed, _ = shortened(small_cut("--method=dynafed", "--rounds=300")[0])
    fedaf, _ = shortened(small_cut("--method=fedaf", "--rounds=20")[0])
    assert rounds_to_rehearse(dynafed, 300) == AHEAD + 1
    assert [rounds_to_rehearse(fedaf, n) for n in (20, 1)] == [2, 1]
