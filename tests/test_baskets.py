"""Baskets as users have them: every form gives the same ones, and what may be read in two ways is refused."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from numpyro_ndpp import NDPP, learning, pad_subsets
from numpyro_ndpp.baskets import Baskets
from numpyro_ndpp.catalogue import numbers_of_items
from numpyro_ndpp.datasets import from_names, from_transactions, load_baskets, save_baskets
from numpyro_ndpp.learning import fit, item_counts
from numpyro_ndpp.metrics import hold_out, mean_log_likelihood, mean_percentile_rank, popularity, subset_auc
from numpyro_ndpp.subsets import as_padded

ITEMS = ["tea", "milk", "rum", "bread"]
LISTS = [[0, 2], [1], [0, 1, 3]]
PADDED = np.array([[0, 2, 4], [1, 4, 4], [0, 1, 3]])
MATRIX = np.array([[1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 0, 1]])
COUNTS = scipy.sparse.coo_array(([1, 1, 1, 1, 1, 1, 0], ([0, 0, 1, 2, 2, 2, 0], [2, 0, 1, 3, 0, 1, 1])), (3, 4))
FORMS = {
    "lists": LISTS,
    "tuples": tuple(map(tuple, LISTS)),
    "sets": [set(row) for row in LISTS],
    "frozensets in any order": [frozenset(row[::-1]) for row in LISTS],
    "arrays": [np.array(row) for row in LISTS],
    "keys": [dict.fromkeys(row).keys() for row in LISTS],
    "padded": PADDED,
    "padded, of JAX": jnp.asarray(PADDED),
    "padded, 8 bits": PADDED.astype(np.uint8),
    "integers": MATRIX,
    "booleans": MATRIX.astype(bool),
    "floats": MATRIX.astype(float),
    "matrix of JAX": jnp.asarray(MATRIX),
    "csr": scipy.sparse.csr_array(MATRIX),
    "csr matrix of floats": scipy.sparse.csr_matrix(MATRIX.astype(float)),
    "coo with a zero": COUNTS,
    "series": pd.Series(LISTS, index=[5, 3, 9]),
    "series of sets": pd.Series([set(row) for row in LISTS]),
    "table": pd.DataFrame(MATRIX, columns=ITEMS),
    "table of booleans": pd.DataFrame(MATRIX.astype(bool), columns=ITEMS),
    "with names": Baskets(LISTS, ITEMS, {}),
    "names": from_names([["rum", "tea"], ["milk"], ["bread", "milk", "tea"]], ITEMS),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_baskets(form, tmp_path, monkeypatch):
    given, n = FORMS[form], len(ITEMS)
    assert as_padded("baskets", given, n).tolist() == PADDED.tolist()
    assert pad_subsets(given, n).tolist() == PADDED.tolist()
    assert item_counts(given, n).tolist() == [2, 2, 1, 1]
    assert popularity(given, n).round().tolist() == [2, 2, 1, 1]
    save_baskets(tmp_path / "b.npz", given, ITEMS)
    assert load_baskets(tmp_path / "b.npz").baskets == LISTS
    train, test = hold_out(given, 1)
    both = [*as_padded("train", train, n).tolist(), *as_padded("test", test, n).tolist()]
    assert sorted([item for item in row if item < n] for row in both) == sorted(LISTS)

    class Split(Exception):
        pass

    def caught(*_):
        raise Split

    kept = []
    monkeypatch.setattr(learning, "fingerprint", lambda *parts: kept.extend(parts) or "0" * 16)
    monkeypatch.setattr(learning, "Learner", caught)
    with pytest.raises(Split):
        fit(given, n, validation=given, rank=4)
    assert [part.tolist() for part in kept] == [PADDED.tolist()] * 2


def test_metrics_take_every_form():
    law = NDPP(np.eye(4, 3) + 0.1, np.zeros((4, 1)), np.zeros((1, 1)))
    for metric in (mean_log_likelihood, subset_auc, mean_percentile_rank):
        truth = metric(law, LISTS, num_bootstraps=0).value
        for form in ("sets", "padded", "csr", "booleans", "series", "with names"):
            assert metric(law, FORMS[form], num_bootstraps=0).value == truth


@pytest.mark.parametrize(
    ("given", "num_items", "error", "message"),
    [
        (np.array([[0, 1], [1, 0]]), 2, ValueError, r"can be read in both ways; give booleans .*matrix == 1.*tolist"),
        (np.array([[0], [1]]), 1, ValueError, "with 1 items it can be read in both ways"),
        (MATRIX, 5, ValueError, "a matrix of zeros and ones with 4 columns, but there are 5 items; give it a column"),
        (MATRIX.astype(bool), 3, ValueError, "zeros and ones with 4 columns, but there are 3 items"),
        (scipy.sparse.csr_array(MATRIX), 6, ValueError, "a matrix of 4 columns, but there are 6 items"),
        (
            scipy.sparse.csr_array(3 * MATRIX),
            4,
            ValueError,
            "zeros and ones, but it has 3; counts become .* matrix > 0",
        ),
        (3 * MATRIX, 4, ValueError, "row 0 has item 0 more than once; .* counts become one by matrix > 0"),
        (
            MATRIX.tolist(),
            4,
            ValueError,
            "row 0 has item 0 more than once; a matrix of zeros and ones must be one array",
        ),
        (pd.DataFrame(MATRIX), 5, ValueError, "table of 4 columns, but there are 5 items.*from_transactions"),
        (pd.DataFrame(2 * MATRIX), 4, ValueError, "zeros and ones, but it has 2; counts become"),
        (Baskets(LISTS, ITEMS, {}), 5, ValueError, "names of 4 items, but there are 5 items"),
        ([["tea"]], 4, TypeError, "row 0 has items of type <U3; item numbers are integers; for names use .*from_names"),
        ([[True, False, True]], 3, TypeError, "items of type bool.*a matrix of zeros and ones must be one array"),
        (["tea", "milk"], 4, ValueError, "row 0 must be a list of items, got 'tea'"),
        (pd.Series([[0], np.nan]), 4, ValueError, "row 1 must be a list of items, got nan"),
        (7, 4, TypeError, "baskets must be lists of items, got 7"),
    ],
)
def test_what_is_refused(given, num_items, error, message):
    with pytest.raises(error, match=message):
        as_padded("baskets", given, num_items)


def test_a_matrix_of_two_columns_that_can_be_read_in_one_way():
    assert as_padded("baskets", np.array([[0, 1], [1, 1], [0, 0]]), 2).tolist() == [[1, 2], [0, 1], [2, 2]]
    assert as_padded("baskets", np.array([[0, 1], [2, 2]]), 2).tolist() == [[0, 1], [2, 2]]
    assert as_padded("baskets", np.array([[False, True]]), 2).tolist() == [[1]]
    assert as_padded("baskets", [[0, 1]], 2).tolist() == [[0, 1]]
    assert as_padded("baskets", np.array([[0, 1], [1, 0]]), 5).tolist() == [[0, 1], [0, 1]]  # two items of five


# --- Tables of orders -------------------------------------------------------------------------------------------------

ORDERS = {"order": [7, 7, 2, 9, 7, 9], "item": ["tea", "rum", "tea", "milk", "tea", "rum"]}


@pytest.mark.parametrize("table", [dict, pd.DataFrame, lambda rows: pd.DataFrame(rows).astype({"item": "category"})])
def test_transactions(table):
    found = from_transactions(table(ORDERS), order="order", item="item")
    assert found == Baskets([[1, 2], [2], [0, 1]], ["milk", "rum", "tea"], {})
    columns = table(ORDERS)
    assert from_transactions(order=columns["order"], item=columns["item"]) == found
    assert from_transactions(order=np.array(ORDERS["order"]), item=np.array(ORDERS["item"])) == found


def test_item_numbers_of_transactions_are_names_in_the_order_of_numbers():
    for kind in (int, float):  # pandas makes floats of numbers that stood beside missing ones
        found = from_transactions(order=["a", "a", "b"], item=np.array([10, 9, 10], kind))
        assert found == Baskets([[0, 1], [1]], ["9", "10"], {})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"frame": pd.DataFrame(ORDERS), "order": "invoice", "item": "item"},
            ValueError,
            "no column 'invoice'; the col",
        ),
        ({"order": [1, 2], "item": [1]}, ValueError, "of one length, got 2 orders and 1 items"),
        ({"order": [], "item": []}, ValueError, "order and item have no rows"),
        ({"order": [1, 2], "item": ["tea", None]}, ValueError, r"item: row 1 has no value \(None\); .* dropna"),
        ({"order": [1.0, np.nan], "item": ["tea", "rum"]}, ValueError, "order: row 1 has no value"),
        ({"order": "order", "item": "item"}, TypeError, "order must be a column of values where there is no frame"),
        (
            {"order": [[1], [2]], "item": [1, 2]},
            ValueError,
            r"order must be one column, got an array of shape \(2, 1\)",
        ),
    ],
)
def test_bad_transactions(arguments, error, message):
    with pytest.raises(error, match=message):
        from_transactions(**arguments)


def test_names():
    assert from_names(pd.Series([["tea", "milk"], {"tea"}])) == Baskets([[0, 1], [1]], ["milk", "tea"], {})
    for given, error, message in (
        (([["tea"]], ["milk"]), ValueError, "row 0 has 'tea', which is not among the 1 items"),
        (([["tea"]], ["tea", "tea"]), ValueError, "items: 'tea' is there more than once"),
        (([["tea"]], "tea"), TypeError, "items must be the names of all items, got one text"),
        ((["tea"],), TypeError, "row 0 must be a list of names, got 'tea'"),
    ):
        with pytest.raises(error, match=message):
            from_names(*given)


# --- Text ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def text(tmp_path):
    def read(content, name="baskets.csv", **settings):
        (tmp_path / name).write_text(content)
        return load_baskets(tmp_path / name, **settings)

    return read


def test_pairs_are_known_by_their_header_or_refused(text):
    pairs = "1,5\n1,1\n2,2\n"
    expected = Baskets([[0, 2], [1]], ["1", "2", "5"], {})
    for header in ("order,item\n", "Order ID,Product\n", "InvoiceNo,StockCode\n", "transaction_id,x\n", "basket,x\n"):
        assert text(header + pairs) == expected
    assert text("order;item\n" + pairs.replace(",", ";")) == expected
    assert text("order\titem\n" + pairs.replace(",", "\t"), "a.tsv") == expected
    for content in (pairs, pairs.replace(",", ";"), pairs.replace(",", "\t"), "milk,tea\nrum,tea\n"):
        with pytest.raises(ValueError, match=r"every line has two items.*layout='orders' .* or layout='baskets'"):
            text(content)
    assert text(pairs, layout="orders") == expected
    assert text(pairs, layout="baskets").baskets == [[1, 5], [1], [2]]
    assert text("1,5\n").baskets == [[1, 5]]  # a line alone is a basket
    assert text("1 5\n1 2\n").baskets == [[1, 5], [1, 2]]  # blanks are between the items of baskets


def test_orders_by_the_names_of_columns(text):
    table = 'InvoiceNo,Quantity,Description\n9,2,"Tea, black"\n8,1,Milk\n9,1,Milk\n'
    expected = Baskets([[0, 1], [0]], ["Milk", "Tea, black"], {})
    assert text(table, order="InvoiceNo", item="Description") == expected
    assert text(table.replace(",", ";").replace("Tea;", "Tea,"), order="InvoiceNo", item="Description") == expected
    with pytest.raises(ValueError, match=r"line 1: this is the header of a table, .*order= and item= \(--order and"):
        text(table)
    with pytest.raises(ValueError, match=r"an order and an item are two fields, got 3; .* order= and item="):
        text(table, layout="orders")
    with pytest.raises(ValueError, match="line 1: no column 'Invoice'; the columns are"):
        text(table, order="Invoice", item="Description")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layout": "rows"}, "layout must be 'baskets' or 'orders', got 'rows'"),
        ({"order": "order"}, "order and item are given together, got order='order' and item=None"),
        ({"layout": "orders", "catalogue": ["tea"]}, "catalogue is for one basket per line; the orders of"),
        ({"layout": "baskets", "order": "order", "item": "item"}, "order and item are for layout='orders'"),
    ],
)
def test_settings_that_contradict_each_other(text, settings, message):
    with pytest.raises(ValueError, match=message):
        text("order,item\n1,tea\n", **settings)


def test_names_without_a_catalogue(text):
    found = text('white bread,milk,tea\nmilk\n"Rum, old",tea,\n')
    assert found == Baskets([[1, 2, 3], [1], [0, 2]], ["Rum, old", "milk", "tea", "white bread"], {})
    with pytest.raises(ValueError, match="line 2: '7' among names; such names need a catalogue"):
        text("tea,milk,rum\ntea,7\n")
    with pytest.raises(ValueError, match="no line has a comma, so that a name with blanks cannot be told from several"):
        text("white bread\ntea\n")


def test_npz_has_no_layout(tmp_path):
    save_baskets(tmp_path / "b.npz", [[0]], ["tea"])
    with pytest.raises(ValueError, match=r"layout is for text; .*b.npz is an npz file"):
        load_baskets(tmp_path / "b.npz", layout="orders")


# --- Names of items ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "items", "error", "message"),
    [
        (["te"], ITEMS, ValueError, "basket: no item is called 'te'; there is 'tea'"),
        (["MILK"], ITEMS, ValueError, "no item is called 'MILK'; there is 'milk'"),
        (["xyz"], ITEMS, ValueError, "no item is called 'xyz'$"),
        (["tea"], ["tea", "milk", "tea", "rum"], ValueError, "'tea' is the name of items 0, 2; give a number"),
        (["tea", 0], ITEMS, ValueError, "basket has 'tea' more than once"),
        ([1, 1], None, ValueError, "basket has 1 more than once"),
        ([4], ITEMS, ValueError, r"basket \(an item\) must be between 0 and the last item = 3, got 4"),
        (["9"], ITEMS, ValueError, r"between 0 and the last item = 3, got 9"),
        (["tea"], None, ValueError, "'tea' is no item number, and the items have no names"),
        ("tea", ITEMS, TypeError, r"basket must be a list of items, got one text, 'tea'; for one item give \['tea'\]"),
        ([1.5], ITEMS, TypeError, r"basket \(an item\) must be a Python integer, got 1.5"),
    ],
)
def test_bad_items(given, items, error, message):
    with pytest.raises(error, match=message):
        numbers_of_items("basket", given, 4, items)


def test_items_by_name_and_number():
    numbers = partial(numbers_of_items, "basket")
    assert numbers(["rum", 0, np.int64(3)], 4, ITEMS) == [2, 0, 3]
    assert numbers(["2", 0], 4, None) == [2, 0]
    assert numbers(["0"], 2, ["7", "0"]) == [1]  # a name before a number
