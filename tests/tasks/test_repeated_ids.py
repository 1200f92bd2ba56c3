from hypothesis import given
from hypothesis import strategies as st

from tasks.repeated_ids import RepeatedIds


@given(st.lists(st.sampled_from("abcdefg")))
def test_every_id_after_its_first_counts(ids: list[str]):
    repeated = RepeatedIds()
    for id_ in ids:
        repeated.add(id_)
    assert repeated.count() == len(ids) - len(set(ids))
