"""Loaders of published data, on small files in the publishers' formats."""

import gzip
import json
import re
import zipfile
from functools import partial

import numpy as np
import pytest

from numpyro_ndpp import datasets, pad_subsets
from numpyro_ndpp.datasets import (
    load_baskets,
    load_goodreads,
    load_instacart,
    load_million_song,
    load_recipes,
    load_uk_retail,
    save_baskets,
    simulate_baskets,
)

RETAIL = [
    ("InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID", "Country"),
    ("536365", "85123A", "WHITE HOLDER", "6", "12/1/2010 8:26", "2.55", "17850", "United Kingdom"),
    ("536365", "71053", "LANTERN, METAL", "6", "12/1/2010 8:26", "3.39", "17850", "United Kingdom"),
    ("536365", "85123A", "WHITE HOLDER", "1", "12/1/2010 8:26", "2.55", "17850", "United Kingdom"),
    ("C536379", "71053", "LANTERN, METAL", "-1", "12/1/2010 9:41", "3.39", "14527", "United Kingdom"),
    ("536366", "22633", "", "6", "12/1/2010 8:28", "1.85", "17850", "United Kingdom"),
    ("536366", "85123A", "wrong name", "1", "12/1/2010 8:28", "2.55", "17850", "United Kingdom"),
]


def write_csv(path, rows):
    def field(text):
        return f'"{text}"' if "," in text else text

    path.write_text("".join(",".join(map(field, row)) + "\n" for row in rows), encoding="latin-1")


def write_xlsx(path, rows):
    """As a spreadsheet program writes it: shared strings, numbers as they are, empty cells left out."""
    shared = sorted({text for row in rows for text in row if text and not text.lstrip("-").replace(".", "").isdigit()})
    space = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    lines = []
    for r, row in enumerate(rows, 1):
        cells = ""
        for c, text in enumerate(row):
            where = f"{chr(ord('A') + c)}{r}"
            if text in shared:
                cells += f'<c r="{where}" t="s"><v>{shared.index(text)}</v></c>'
            elif text:
                cells += f'<c r="{where}"><v>{text}</v></c>'
        lines.append(f'<row r="{r}">{cells}</row>')
    with zipfile.ZipFile(path, "w") as book:
        strings = "".join(f"<si><t>{text}</t></si>" for text in shared)
        book.writestr("xl/sharedStrings.xml", f"<sst {space}>{strings}</sst>")
        sheet = f"<worksheet {space}><sheetData>{''.join(lines)}</sheetData></worksheet>"
        book.writestr("xl/worksheets/sheet1.xml", sheet)


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
def test_uk_retail(kind, tmp_path, capsys):
    path = tmp_path / f"retail.{kind}"
    (write_csv if kind == "csv" else write_xlsx)(path, RETAIL)
    found = load_uk_retail(path)
    assert found.items == ["22633", "71053 LANTERN, METAL", "85123A WHITE HOLDER"]
    assert found.baskets == [[1, 2], [0, 2]]
    assert found.dropped == {"rows with a quantity of zero or less": 1}
    assert "dropped: 1 rows with a quantity of zero or less" in capsys.readouterr().err
    small = load_uk_retail(path, max_size=2, progress_bar=False)  # three lines, though two items
    assert small.baskets == [[0, 2]]
    assert small.dropped["baskets with more than 2 lines"] == 1
    assert len(small.items) == 3  # the catalogue is that of all rows
    assert "1 baskets with more than 2 lines" in capsys.readouterr().err  # without a bar, but not in silence


def test_empty_cells_at_the_end_of_a_row(tmp_path):
    rows = [("InvoiceNo", "StockCode", "Quantity", "Description"), ("1", "A", "2", "TEA"), ("1", "B", "1")]
    write_xlsx(tmp_path / "retail.XLSX", rows)
    found = load_uk_retail(tmp_path / "retail.XLSX")
    assert (found.items, found.baskets) == (["A TEA", "B"], [[0, 1]])
    write_csv(tmp_path / "retail.csv", rows)
    with pytest.raises(ValueError, match=r"line 3: 3 fields, but column 'Description' is wanted"):
        load_uk_retail(tmp_path / "retail.csv")


def test_what_was_dropped_is_said_when_nothing_is_left(tmp_path):
    path = tmp_path / "goodreads.csv"
    path.write_text("user_id,book_id,is_reviewed\nu1,7,0\nu2,8,0\n")
    with pytest.raises(ValueError, match=r"has no baskets; dropped: 2 books that were not reviewed"):
        load_goodreads(path)


def test_recipes(tmp_path):
    path = tmp_path / "PP_recipes.csv"
    path.write_text(
        "id,i,name_tokens,ingredient_tokens,steps_tokens,techniques,calorie_level,ingredient_ids\n"
        '424415,23,"[40480, 37229]","[[2911, 1019], [1353]]","[40480]","[0, 1]",0,"[389, 7655, 6270]"\n'
        '146223,96,"[40480]","[[17918]]","[40480]","[1]",0,"[7655]"\n'
    )
    found = load_recipes(path)
    assert found.items == ["389", "6270", "7655"]
    assert found.baskets == [[0, 1, 2], [2]]
    path.write_text('id,ingredient_ids\n1,"[3]"\n2,"[]"\n')
    assert load_recipes(path, progress_bar=False).dropped == {"recipes without ingredients": 1}
    for bad in ("[a]", "[1 2]", "[3,,4]", "[3,]"):
        path.write_text(f'id,ingredient_ids\n1,"[3]"\n2,"{bad}"\n')
        message = f"PP_recipes.csv, line 3: ingredient_ids is {bad!r}, not a list of numbers"
        with pytest.raises(ValueError, match=re.escape(message)):
            load_recipes(path)


def test_instacart(tmp_path):
    orders, products = tmp_path / "order_products__prior.csv", tmp_path / "products.csv"
    orders.write_text("order_id,product_id,add_to_cart_order,reordered\n2,10,1,1\n2,9,2,0\n3,10,1,0\n")
    products.write_text(
        'product_id,product_name,aisle_id,department_id\n9,"Tea, black",1,1\n10,Milk,1,1\n11,Unsold,1,1\n'
    )
    found = load_instacart(orders, products)
    assert found.items == ["Tea, black", "Milk"]
    assert found.baskets == [[0, 1], [1]]
    orders.write_text("order_id,product_id\n2,10\n2,77\n")
    with pytest.raises(ValueError, match=r"order_products__prior.csv, line 3: product '77' is not in"):
        load_instacart(orders, products)
    products.write_text("product_id,product_name\n77,Tea\n10,Milk\n77,Tea\n10,Cream\n")
    with pytest.raises(ValueError, match=r"products.csv, line 5: product '10' is 'Cream', and was 'Milk'"):
        load_instacart(orders, products)


def test_million_song(tmp_path):
    path = tmp_path / "train_triplets.txt"
    path.write_text("u1\tSOB\t1\nu1\tSOA\t2\nu2\tSOA\t1\nu3\tSOA\t1\nu3\tSOC\t1\nu3\tSOD\t1\n")
    found = load_million_song(path, max_size=2)
    assert found.items == ["SOA", "SOB"]  # of the baskets that are kept
    assert found.baskets == [[0, 1], [0]]
    assert found.dropped == {"baskets with more than 2 lines": 1}
    path.write_text("u1\tSOB\t1\nu1 SOA 2\n")
    with pytest.raises(ValueError, match=r"train_triplets.txt, line 2: a listener, a song and a count"):
        load_million_song(path)


@pytest.mark.parametrize("kind", ["csv", "json", "json.gz"])
def test_goodreads(kind, tmp_path):
    path = tmp_path / f"goodreads_interactions.{kind}"
    rows = [("u1", 12, 1), ("u1", 7, 1), ("u2", 7, 1), ("u2", 99, 0)]
    if kind == "csv":
        header = "user_id,book_id,is_read,rating,is_reviewed\n"
        path.write_text(header + "".join(f"{user},{book},1,5,{reviewed}\n" for user, book, reviewed in rows))
    else:
        records = [
            {"user_id": user, "book_id": str(book), "rating": 5, "review_text_incomplete": "good" * reviewed}
            for user, book, reviewed in rows
        ]
        lines = "".join(json.dumps(record) + "\n" for record in records)
        path.write_bytes(gzip.compress(lines.encode()) if kind == "json.gz" else lines.encode())
    found = load_goodreads(path)
    assert found.items == ["7", "12"]
    assert found.baskets == [[0, 1], [0]]
    assert found.dropped == {"books that were not reviewed": 1}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", r"a.csv, line 1: no column 'InvoiceNo'"),
        ("a.csv", b"InvoiceNo,StockCode,Description\n", "line 1: no column 'Quantity'"),
        ("a.csv", b"InvoiceNo,StockCode,Description,Quantity\n1,2,tea\n", "line 2: 3 fields"),
        ("a.csv", b"InvoiceNo,StockCode,Description,Quantity\n1,2,tea,many\n", "line 2: Quantity is 'many'"),
        ("a.csv", b"InvoiceNo,StockCode,Quantity,Description\n1,2,3,tea, black\n", "line 2: 5 fields, but there are 4"),
        ("a.csv", b"InvoiceNo,StockCode,Description,Quantity\n1, ,tea,2\n", "line 2: the item has no name"),
        ("a.csv", b"InvoiceNo,StockCode,Description,Quantity\n1,2,tea,nan\n", "line 2: Quantity is 'nan'"),
        ("a.csv", b"InvoiceNo,StockCode,Description,Quantity\n", "has no baskets"),
        ("a.csv", b"InvoiceNo,StockCode,Description,Quantity\n1,2,tea,-1\n", "has no baskets"),
        (
            "a.csv",
            b'InvoiceNo,StockCode,Description,Quantity\n1,2,"tea,1\n1,3,milk,1\n',
            "line 3: unexpected end of data",
        ),
        ("a.csv", b"InvoiceNo,StockCode,Description,Quantity\n1,,tea,1\n", "line 2: the item has no name"),
        ("a.xlsx", b"no zip", "is not an xlsx file"),
    ],
)
def test_bad_retail(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_uk_retail(tmp_path / name)


def test_bad_goodreads(tmp_path):
    path = tmp_path / "reviews.json.gz"
    path.write_bytes(gzip.compress(b'{"user_id": 1, "book_id": 2}\n{"user_id": 1}\n'))
    with pytest.raises(ValueError, match=r"reviews.json.gz, line 2: an object with user_id and book_id"):
        load_goodreads(path)
    path.write_bytes(gzip.compress(b'{"user_id": 1, "book_id": 2}\n' * 50)[:-9])
    with pytest.raises(ValueError, match="not a whole gzip file"):
        load_goodreads(path)
    path = tmp_path / "reviews.csv"
    path.write_text("user_id,book_id,is_reviewed\n1,2,1\n1,two,1\n")
    with pytest.raises(ValueError, match=r"reviews.csv, line 3: 'two' is no item number"):
        load_goodreads(path)
    path.write_text("user_id,book_id,is_reviewed\n,2,1\n")
    with pytest.raises(ValueError, match="line 2: the basket has no name"):
        load_goodreads(path)
    path.write_text("user_id,book_id,is_reviewed\n1,2,1\n1,3,True\n")
    with pytest.raises(ValueError, match=r"reviews.csv, line 3: is_reviewed is 'True', not 0 or 1"):
        load_goodreads(path)


def test_a_review_of_null_is_none(tmp_path):
    path = tmp_path / "reviews.json"
    path.write_text(
        '{"user_id": 1, "book_id": 2}\n{"user_id": 1, "book_id": 3, "review_text_incomplete": null}\n',
    )
    found = load_goodreads(path)
    assert found.items == ["2"]
    assert found.dropped == {"books that were not reviewed": 1}


def test_saved_baskets_are_loaded(tmp_path):
    save_baskets(tmp_path / "b.npz", [[2, 0], [], [1]], ["a", "b", "c"])
    assert load_baskets(tmp_path / "b.npz")[:2] == ([[0, 2], [], [1]], ["a", "b", "c"])
    with pytest.raises(ValueError, match="row 0 has item 5; items must be 0 to 0"):
        save_baskets(tmp_path / "b.npz", [[5]], ["a"])


def test_names_that_are_none_are_refused_and_the_file_stays(tmp_path):
    path = tmp_path / "baskets.npz"
    save_baskets(path, [[0, 1], [1]], {"tea": 0, "milk": 1})
    assert load_baskets(path).items == ["tea", "milk"]
    for names, error, message in (
        ("ab", TypeError, "items must be the names of all items, got one text, 'ab'"),
        ([["a"], ["c"]], TypeError, r"a name for each item, got \['a'\] for one"),
        ([["a", "b"], ["c"]], TypeError, "a name for each item, got"),
        (["a", "b\0"], ValueError, "ends in a null byte"),
    ):
        with pytest.raises(error, match=message):
            save_baskets(path, [[0, 1]], names)
    assert load_baskets(path).items == ["tea", "milk"]


def test_an_npz_file_is_known_by_its_content(tmp_path):
    save_baskets(tmp_path / "baskets", [[1], [0]], ["a", "b"])
    assert load_baskets(tmp_path / "baskets").baskets == [[1], [0]]


@pytest.mark.parametrize("kind", ["npz", "xlsx"])
def test_damaged_files_are_named(kind, tmp_path):
    """Two wrong bytes anywhere: they do not matter to what is read, or the error says which file it is."""
    path = tmp_path / f"damaged.{kind}"
    if kind == "npz":
        save_baskets(path, [[0, 1], [1]] * 20, ["tea", "milk"])
    else:
        write_xlsx(tmp_path / "plain.xlsx", RETAIL)
        with (
            zipfile.ZipFile(tmp_path / "plain.xlsx") as plain,
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book,
        ):
            for name in plain.namelist():
                book.writestr(name, plain.read(name))
    load = load_baskets if kind == "npz" else partial(load_uk_retail, progress_bar=False)
    truth = load(path)
    whole, messages = path.read_bytes(), []
    for place in range(0, len(whole) - 1, 5):
        path.write_bytes(whole[:place] + bytes(255 - byte for byte in whole[place : place + 2]) + whole[place + 2 :])
        try:
            found = load(path)
        except ValueError as error:
            messages.append(str(error))
        else:
            assert found == truth
    assert len(messages) > 10
    assert all("damaged" in message for message in messages)


@pytest.mark.parametrize("content", [b"", b"tea, milk"])
def test_no_npz(content, tmp_path):
    (tmp_path / "b.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"b.npz is not an npz file of baskets"):
        load_baskets(tmp_path / "b.npz")


def test_npz_of_other_arrays(tmp_path):
    path, items = tmp_path / "b.npz", np.array(["a", "b"])
    np.savez(path, indptr=[0, 1], indices=[0], items=items.astype(object))
    with pytest.raises(ValueError, match=r"b.npz is not an npz file of baskets: Object arrays"):
        load_baskets(path)
    np.savez(path, indptr=[0, 1], indices=[0.0], items=items)
    with pytest.raises(ValueError, match=r"b.npz: indices must be integers, got float64"):
        load_baskets(path)
    with pytest.raises(FileNotFoundError):
        load_baskets(tmp_path / "none.npz")


def test_catalogue_in_a_file(tmp_path):
    names, path = tmp_path / "names.txt", tmp_path / "baskets.txt"
    names.write_bytes("tea\r\n\r\ncafé\r\n \r\n".encode("latin-1"))  # blank lines are no names
    path.write_text("café, tea\ntea\n")
    for catalogue in (names, str(names)):
        found = load_baskets(path, catalogue=catalogue)
        assert (found.baskets, found.items) == ([[0, 1], [0]], ["tea", "café"])
    with pytest.raises(ValueError, match="catalogue: name 1 is blank"):
        load_baskets(path, catalogue=["tea", " ", "café"])
    save_baskets(tmp_path / "b.npz", found.baskets, found.items)
    with pytest.raises(ValueError, match=r"catalogue is for text; .*b.npz is an npz file"):
        load_baskets(tmp_path / "b.npz", catalogue=names)


def test_padded_baskets_and_names_in_bytes(tmp_path):
    path, baskets = tmp_path / "b.npz", [[0, 2], [], [1]]
    save_baskets(path, pad_subsets(baskets, 3), ["tea", "milk", "rum"])
    assert load_baskets(path).baskets == baskets
    np.savez(path, indptr=[0, 1], indices=[1], items=np.array(["thé".encode(), b"milk"]))
    assert load_baskets(path).items == ["thé", "milk"]


def test_numbers_of_thousands_of_digits(tmp_path):
    (tmp_path / "b.txt").write_text("1 2\n" + "9" * 5000 + "\n")
    with pytest.raises(ValueError, match=r"b.txt, line 2: 9+ is too large for an item number"):
        load_baskets(tmp_path / "b.txt")
    (tmp_path / "PP_recipes.csv").write_text('id,ingredient_ids\n1,"[2, ' + "9" * 5000 + ']"\n')
    with pytest.raises(ValueError, match=r"PP_recipes.csv, line 2: '9+' is no item number"):
        load_recipes(tmp_path / "PP_recipes.csv")


def test_text_of_other_programs(tmp_path):
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbf0 1\n1\n")
    assert load_baskets(tmp_path / "bom.txt").baskets == [[0, 1], [1]]
    (tmp_path / "latin.txt").write_bytes("thé, café\n".encode("latin-1"))
    assert load_baskets(tmp_path / "latin.txt", catalogue=["café", "thé"]).baskets == [[0, 1]]


def test_names_with_blanks(tmp_path):
    (tmp_path / "names.txt").write_text("white bread\nwhite bread,\nmilk, white bread\nmilk tea\n")
    found = load_baskets(tmp_path / "names.txt", catalogue=["milk", "tea", "white bread"])
    assert found.baskets == [[2], [2], [0, 2], [0, 1]]


def test_simulated_pairs_attract_and_repel():
    shop = simulate_baskets(4000)
    held = np.zeros((4000, 12))
    for row, basket in zip(held, shop.baskets, strict=True):
        row[basket] = 1
    together, share = held.T @ held / 4000, held.mean(axis=0)
    lift = together / np.outer(share, share)
    assert min(lift[pair] for pair in shop.complements) > 1.2
    assert max(lift[pair] for pair in shop.substitutes) < 0.7
    assert held.sum(axis=1).mean() == pytest.approx(3.0, abs=0.15)
    assert shop.items == list(datasets.SHOP)


@pytest.mark.parametrize("pairs", [[(0, 0)], [(0, 12)], [(0, 1), (1, 2)]])
def test_bad_pairs(pairs):
    with pytest.raises(ValueError, match="must be pairs of different items from 0 to 11"):
        simulate_baskets(1, complements=pairs, substitutes=[])


def test_text_with_codes_for_numbers(tmp_path):
    path = tmp_path / "baskets.txt"
    path.write_text("1 2\n2 9000000\n")
    with pytest.raises(ValueError, match="3 items have numbers up to 9000000; codes need a catalogue"):
        load_baskets(path)
    catalogue = np.array(["1", "9000000 ", "2"])
    data = load_baskets(path, catalogue=catalogue)
    assert data.baskets == [[0, 2], [1, 2]]
    assert data.items == ["1", "9000000", "2"]


def test_orders_in_a_sheet(tmp_path):
    write_xlsx(tmp_path / "retail.xlsx", RETAIL)
    found = load_baskets(tmp_path / "retail.xlsx", order="InvoiceNo", item="StockCode")
    assert found == ([[1, 2], [1], [0, 2]], ["22633", "71053", "85123A"], {})  # of all rows, returns too
    write_xlsx(tmp_path / "two.xlsx", [("order", "item"), ("1", "tea"), ("1", "milk"), ("2", "tea")])
    assert load_baskets(tmp_path / "two.xlsx")[:2] == ([[0, 1], [1]], ["milk", "tea"])
    with pytest.raises(ValueError, match=r"retail.xlsx, line 1: an order and an item are two fields, got 8"):
        load_baskets(tmp_path / "retail.xlsx")
