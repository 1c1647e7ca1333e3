from keras_mgpu.checkpoints.save_pace import SavePace
from keras_mgpu.checkpoints.save_timing import EveryBatches, EveryEpoch, EverySeconds


def test_what_is_unsaved():
    pace = SavePace(EveryBatches(3))
    pace.start(step=10, now=0.0)
    assert pace.num_unsaved(12) == 2
    assert not pace.is_due(12, now=1.0, epoch_ended=False)
    assert pace.is_due(13, now=1.0, epoch_ended=False)
    pace.saved(13, now=1.0, stall=0.1)
    assert pace.num_unsaved(13) == 0
    assert not pace.is_due(14, now=1.0, epoch_ended=True)


def test_seconds_count_from_the_last_save():
    pace = SavePace(EverySeconds(10))
    pace.start(step=0, now=100.0)
    assert pace.is_due(1, now=110.0, epoch_ended=False)
    pace.saved(1, now=110.0, stall=0.1)
    assert not pace.is_due(2, now=119.0, epoch_ended=False)


def test_every_epoch_as_well():
    pace = SavePace(EveryBatches(1000), every_epoch=True)
    assert pace.is_due(1, now=0.0, epoch_ended=True)
    assert not SavePace(EveryEpoch()).is_due(1, now=0.0, epoch_ended=False)
