import pytest
import torch

from monolith.checkpoint.reference_dump import (
    Choice,
    ImportOptions,
    TableImport,
    import_dumps,
    open_dumps,
)
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.native_training.tables.table_merge import get_sub_table_name
from monolith.table import Segment, Table, TableConfig, Zeros
from monolith.table.optimizers import FTRL, SGD, Adagrad, RowWiseAdagrad
from monolith.table.reference import ReferenceTable
from tests.checkpoint.reference_dump.dump_writer import (
    entries_of,
    entry,
    write,
    write_multi,
    write_single,
)
from tests.suites.optimizer_cases import CASES, small_dim

pytestmark = pytest.mark.req("NT-SAVE-T10")

NOON = 1_767_268_800
GOLDEN_A = bytes.fromhex(
    "09140000000000000015234e8c3b15c56de1bd15c6ed833b15076e1ebd15e2d8babc158779673d15e900803c1573fbc2"
    "bd15646084bd153841d43a156c3890bd158b1241bd152f833dbd150b86eebc154b9c4c3d156bab033e1a040a02120020"
    "00"
)
GOLDEN_B = bytes.fromhex(
    "0905000000000000001540506bbe150cdc6b3a159c11eabb152583293b1528fb6a3b1524142bbc15a5aea03b153199c7"
    "3b155307fabb15068ee93b151800d7ba15095fe5bb15f787ba3b153ba701bc156ae0173b15de9ff7bb1528816f3c1a12"
    "0a0c1a0a0de88b70401566d4ce3e0a0212002000"
)


def table_of(name="user", *segments, **options):
    return Table(TableConfig(name, segments or [Segment(2, SGD(1.0))], **options))


def sgd(key, *weights, time=None):
    return entry(key, weights, ("sgd", {}), time=time)


def rows_of(table):
    """Key -> time and numbers of its row."""
    return {
        key: (int(time), *(column[i].tolist() for column in rows.columns.values()))
        for rows in table.export()
        for i, (key, time) in enumerate(zip(rows.keys.tolist(), rows.times, strict=True))
    }


def imported(folder, *tables, **options):
    return import_dumps(open_dumps(folder), tables, ImportOptions(**options))


def test_golden_row_of_one_segment(tmp_path):
    write_single(tmp_path, "user", [GOLDEN_A])
    data = (tmp_path / "MonolithHashTable_user-00000-of-00001").read_bytes()
    assert data[8:12] == (0x64908F00).to_bytes(4, "little")
    assert data[-4:] == (0xE895FDDA).to_bytes(4, "little")
    with table_of("user", Segment(16, SGD(1.0))) as table:
        imported(tmp_path, table)
        weights = table.lookup(torch.tensor([20]))[0, :3].tolist()
    assert weights == pytest.approx([0.0042817756, -0.11007265, 0.0040261475], rel=1e-7)


def test_golden_row_of_two_segments(tmp_path):
    write_single(tmp_path, "user", [GOLDEN_B])
    data = (tmp_path / "MonolithHashTable_user-00000-of-00001").read_bytes()
    assert data[8:12] == (0xD273675F).to_bytes(4, "little")
    assert data[-4:] == (0xCC7AC1A4).to_bytes(4, "little")
    with table_of("user", Segment(1, FTRL()), Segment(16, SGD(1.0))) as table:
        imported(tmp_path, table)
        time, bias, _, zero, norm = rows_of(table)[5]
    assert (time, len(bias)) == (0, 1)
    assert [*bias, *zero, *norm] == pytest.approx([-0.22979832, 3.7585392, 0.40396422], rel=1e-7)


@pytest.mark.parametrize("case", sorted(set(CASES) - {c for c in CASES if "row-wise" in c}))
def test_rows_keep_their_state_and_the_next_step_its_bits(case, tmp_path):
    config = TableConfig("user", [Segment(small_dim(CASES[case]), CASES[case])])
    keys = torch.tensor([-7, 1 << 62, 3])
    grads = torch.linspace(-1, 1, len(keys) * config.dim).reshape(len(keys), -1)
    with Table(config, clock=lambda: NOON) as dumped, Table(config, clock=lambda: NOON) as table:
        dumped.apply_gradients(keys, grads, step=4)
        write_single(tmp_path, "user", entries_of(dumped))
        imported(tmp_path, table)
        assert rows_of(table) == rows_of(dumped)
        with ReferenceTable(config, clock=lambda: NOON) as oracle:
            for rows in dumped.export():
                oracle.import_rows(rows)
            oracle.apply_gradients(keys, grads, step=5)
            table.apply_gradients(keys, grads, step=5)
            assert rows_of(table) == rows_of(oracle)


def test_tables_of_all_servers_and_shards_become_one(tmp_path):
    shards = [{"item": [sgd(1, 1, 1)], "user": [sgd(2, 2, 2)]}, {"user": [sgd(3, 3, 3, time=9)]}]
    write_multi(tmp_path, 0, *shards)
    write_multi(tmp_path, 1, {"item": [], "user": [sgd(4, 4, 4, time=7)]})
    with table_of("user") as user, table_of("item") as item:
        result = imported(tmp_path, user, item)
        assert rows_of(item) == {1: (0, [1.0, 1.0])}
        assert sorted(rows_of(user)) == [2, 3, 4]
    counts = {"num_rows": 3, "num_without_time": 1, "oldest_time": 7, "newest_time": 9}
    assert result.tables[0] == TableImport(table="user", dumps=["user"], **counts)


def test_rows_may_span_blocks(tmp_path):
    rows = [sgd(key, key, -key) for key in range(50)]
    write_multi(tmp_path, "", {"user": rows}, buffer=64)
    with table_of() as table:
        imported(tmp_path, table)
        assert rows_of(table) == {key: (0, [float(key), float(-key)]) for key in range(50)}


def test_a_piece_larger_than_the_buffer_is_a_block(tmp_path):
    with table_of("user", Segment(60_000, SGD(1.0), Zeros())) as table:
        write_multi(tmp_path, 0, {"user": [sgd(1, *range(60_000)), sgd(2, *[0] * 60_000)]})
        imported(tmp_path, table)
        assert table.lookup(torch.tensor([1]))[0, -1] == 59_999
        assert len(table) == 2


def test_of_a_key_in_two_files_the_last_file_wins(tmp_path):
    write_single(tmp_path, "user_1", [sgd(1, 1, 1), sgd(2, 2, 2)])
    write_single(tmp_path, "user_0", [sgd(1, 0, 0)])
    with table_of() as table:
        assert imported(tmp_path, table).tables[0].num_rows == 3
        assert rows_of(table)[1] == (0, [1.0, 1.0])


def test_a_table_of_a_merged_dump_is_found_by_the_md5_of_its_name(tmp_path):
    write_single(tmp_path, get_sub_table_name(["user"])[1], [sgd(1, 1, 1)])
    with table_of() as table:
        assert imported(tmp_path, table).tables[0].num_rows == 1


def test_an_older_name_is_taken_where_the_own_name_is_missing(tmp_path):
    write_single(tmp_path, "slot-7-a", [sgd(1, 1, 1)])
    write_single(tmp_path, "item", [sgd(2, 2, 2)])
    with table_of("user") as user, table_of("item") as item:
        user.restore_names, item.restore_names = ("item", "slot:7/a"), ("slot:7/a",)
        imported(tmp_path, user, item)
        assert (list(rows_of(user)), list(rows_of(item))) == ([1], [2])


def test_rows_of_one_dump_are_told_apart_by_their_slots(tmp_path):
    merged = get_sub_table_name(["item", "user"])[1]
    write_single(tmp_path, merged, [sgd(7 << 48 | i, i, i) for i in range(3)], [sgd(8 << 48, 9, 9)])
    with table_of("user") as user, table_of("item") as item:
        with pytest.raises(InvalidArgumentError, match=f"rows of user, item.*{merged}:SLOT=user"):
            imported(tmp_path, user, item)
        one = [Choice(merged, "user", 7)]
        with pytest.raises(InvalidArgumentError, match=rf"got none for {merged}:8 \(1 rows\)"):
            imported(tmp_path, user, item, choices=one)
        imported(tmp_path, user, item, choices=[*one, Choice(merged, "item", 8)])
        assert (len(user), list(rows_of(item))) == (3, [8 << 48])


def test_tables_that_share_a_dump_need_equal_segments(tmp_path):
    write_single(tmp_path, "old", [sgd(1, 1, 1)])
    choices = [Choice("old", "user", 7), Choice("old", "item", 8)]
    user, item = table_of("user"), table_of("item", Segment(3, SGD(1.0)))
    with user, item, pytest.raises(InvalidArgumentError, match="equal segments in the tables"):
        imported(tmp_path, user, item, choices=choices)


def test_a_choice_stands_above_names(tmp_path):
    write_single(tmp_path, "user", [sgd(1, 1, 1)])
    write_single(tmp_path, "other", [sgd(2, 2, 2)])
    with table_of() as table:
        choices = [Choice("other", "user")]
        result = imported(tmp_path, table, choices=choices, allows_unused=True)
        assert (list(rows_of(table)), result.unused) == ([2], {"user": 1})


def test_a_choice_of_a_dump_that_is_not_there_is_refused(tmp_path):
    write_single(tmp_path, "user", [sgd(1, 1, 1)])
    with table_of() as table, pytest.raises(NotFoundError, match="got 'usr'; the dumps have user"):
        imported(tmp_path, table, choices=[Choice("usr", "user")])


def test_a_name_of_a_table_and_of_a_server_needs_a_choice(tmp_path):
    write_single(tmp_path, "user_0", [sgd(1, 1, 1)])
    with table_of("user") as user, table_of("user_0") as other:
        with pytest.raises(InvalidArgumentError, match="choose one: --table user_0=user_0 or"):
            imported(tmp_path, user, other)
        imported(tmp_path, user, other, choices=[Choice("user", "user")])
        assert (len(user), len(other)) == (1, 0)


def test_dumps_that_no_table_takes_are_refused_or_counted(tmp_path):
    write_multi(tmp_path, 0, {"item": [sgd(1, 1, 1)] * 3, "none": [], "user": [sgd(1, 1, 1)]})
    write_single(tmp_path, "old", [sgd(1, 1, 1)] * 2)
    write(tmp_path, "hash_filter_0", b"")
    with table_of() as table:
        with pytest.raises(
            InvalidArgumentError, match=r"item \(3 rows\), old \(2 rows\); name one"
        ):
            imported(tmp_path, table)
        assert len(table) == 0
        result = imported(tmp_path, table, allows_unused=True)
    assert (result.unused, result.filters) == ({"item": 3, "old": 2}, ["hash_filter_0"])


def test_a_table_without_rows_is_listed(tmp_path):
    write_single(tmp_path, "user", [sgd(1, 1, 1)])
    with table_of("user") as user, table_of("item") as item:
        result = imported(tmp_path, user, item)
    assert result.tables[1] == TableImport(table="item")


@pytest.mark.parametrize(
    ("segments", "text"),
    [
        ([Segment(3, SGD())], "expected 3 weights, as table 'user' has, got 2 "),
        ([Segment(1, SGD())], "expected 1 weights, as table 'user' has, got more "),
        (
            [Segment(1, SGD()), Segment(2, SGD(), name="b")],
            r"expected 3 weights \(segments of 1, 2\), as table 'user' has, got 2 ",
        ),
        ([Segment(2, Adagrad())], "expected adagrad in segment '0', as table 'user' has, got sgd"),
        (
            [Segment(1, SGD()), Segment(1, SGD(), name="b")],
            "expected 2 optimizer dumps, as .* got 1",
        ),
    ],
)
def test_another_layout_is_refused_with_table_and_segment(tmp_path, segments, text):
    write_single(tmp_path, "user", [sgd(1, 1, 1)])
    table = table_of("user", *segments)
    with table, pytest.raises(InvalidArgumentError, match=text + ".*record at byte 0"):
        imported(tmp_path, table)


def test_state_of_another_size_is_refused(tmp_path):
    write_single(tmp_path, "user", [entry(1, [1, 1], ("ftrl", {"zero": [1, 1], "norm": [1]}))])
    with table_of("user", Segment(2, FTRL(), name="v")) as table:
        text = "expected 2 numbers of ftrl.norm in segment 'v', as table 'user' has, got 1"
        with pytest.raises(InvalidArgumentError, match=text):
            imported(tmp_path, table)


def test_an_optimizer_that_dumps_do_not_have_is_refused(tmp_path):
    write_single(tmp_path, "user", [sgd(1, 1, 1)])
    table = table_of("user", Segment(2, RowWiseAdagrad()))
    with table, pytest.raises(InvalidArgumentError, match=r"got RowWiseAdagrad .*--weights-only"):
        imported(tmp_path, table)


def test_weights_alone_get_the_state_of_new_rows(tmp_path):
    write_single(tmp_path, "user", [sgd(1, 1, 2, time=NOON)])
    segments = [Segment(1, Adagrad(initial_accumulator_value=0.5)), Segment(1, RowWiseAdagrad())]
    with table_of("user", *segments) as table:
        imported(tmp_path, table, with_state=False)
        assert rows_of(table) == {1: (NOON, [1.0], [2.0], [0.5], [0.0])}


def test_rows_with_nan_are_refused_or_counted(tmp_path):
    bad = entry(2, [1, 1], ("adagrad", {"norm": [1, float("inf")]}))
    good = entry(1, [1, 1], ("adagrad", {"norm": [1, 1]}))
    write_single(tmp_path, "user", [good, bad])
    with table_of("user", Segment(2, Adagrad())) as table:
        with pytest.raises(DataLossError, match=r"expected finite numbers, got NaN or .* of key 2"):
            imported(tmp_path, table)
        assert imported(tmp_path, table, skips_non_finite=True).num_non_finite == 1
        assert list(rows_of(table)) == [1]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_weights_are_stored_in_the_precision_of_the_table(tmp_path, precision):
    write_single(tmp_path, "user", [sgd(1, 0.1, 0.5)])
    with table_of("user", Segment(2, SGD(), precision=precision)) as table:
        imported(tmp_path, table)
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
        assert torch.equal(
            table.lookup(torch.tensor([1])), torch.tensor([[0.1, 0.5]]).to(dtype).float()
        )


def test_bytes_that_are_read_are_reported(tmp_path):
    write_multi(tmp_path, 0, {"user": [sgd(1, 1, 1)]}, {"user": [sgd(2, 1, 1)]})
    seen, folder = [], open_dumps(tmp_path)
    with table_of() as table:
        import_dumps(folder, [table], advance=seen.append)
    assert seen[-1] == sum((tmp_path / name).stat().st_size for name in folder.sets[0].files)


def test_dumps_in_a_store_are_read(tmp_path):
    import fsspec

    write_single(tmp_path, "user", [sgd(1, 1, 1)])
    name = "MonolithHashTable_user-00000-of-00001"
    path = "memory://reference/model.ckpt-7.assets"
    fsspec.filesystem("memory").pipe_file(f"{path}/{name}", (tmp_path / name).read_bytes())
    with table_of() as table:
        assert imported("memory://reference", table).tables[0].num_rows == 1
