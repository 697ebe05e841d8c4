"""The papers' data, from the publishers' own files.

Files are read line by line. Items are numbered in the order of their codes. Baskets of more than 100 lines are dropped,
as in the papers. What is dropped is counted and printed.
"""

import json
import math
import re
from pathlib import Path

from numpyro_ndpp.baskets import Baskets
from numpyro_ndpp.datasets.collected import Collected
from numpyro_ndpp.datasets.lines import numbered_lines, table_rows


def load_uk_retail(path: str | Path, *, max_size: int | None = 100, progress_bar: bool = True) -> Baskets:
    """UCI *Online Retail*, the publisher's xlsx or a csv of it: one basket per invoice.

    Rows with a quantity of zero or less (returns) are dropped. An item is a stock code; its name is the code and its
    most frequent description.

    :param max_size: baskets with more lines are dropped, as published; lines are counted before repeated items are
        merged. None drops none.
    :param progress_bar: whether to show a bar for a large file.
    :raises ValueError: for a file of another form; the message names the file and the line.
    """
    wanted = ("InvoiceNo", "StockCode", "Description", "Quantity")
    names: dict[str, dict[str, int]] = {}
    collected = Collected(path, max_size)
    for line, (invoice, code, description, quantity) in table_rows(Path(path), wanted, progress_bar):
        try:
            number = float(quantity)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{path}, line {line}: Quantity is {quantity!r}, which is no number")
        if number <= 0:
            collected.drop("rows with a quantity of zero or less")
            continue
        described = names.setdefault(code, {})
        described[description.strip()] = described.get(description.strip(), 0) + 1
        collected.add(line, invoice, code)

    def name(code: str) -> str:
        return f"{code} {max(names[code], key=lambda text: (names[code][text], text))}".strip()

    return collected.baskets(name)


def load_recipes(path: str | Path, *, max_size: int | None = 100, progress_bar: bool = True) -> Baskets:
    """Food.com *PP_recipes.csv* (Majumder et al. 2019): one basket per recipe, items are ingredient ids.

    Parameters and errors are those of :func:`load_uk_retail`.
    """
    collected = Collected(path, max_size, by_number=True)
    for line, (recipe, ids) in table_rows(Path(path), ("id", "ingredient_ids"), progress_bar):
        if not re.fullmatch(r"\s*\[\s*(\d+\s*(,\s*\d+\s*)*)?\]\s*", ids):
            raise ValueError(f"{path}, line {line}: ingredient_ids is {ids[:40]!r}, not a list of numbers like [1, 2]")
        ingredients = re.findall(r"\d+", ids)
        if not ingredients:
            collected.drop("recipes without ingredients")
        for ingredient in ingredients:
            collected.add(line, recipe, ingredient)
    return collected.baskets()


def load_instacart(
    orders: str | Path, products: str | Path, *, max_size: int | None = 100, progress_bar: bool = True
) -> Baskets:
    """Instacart 2017, *order_products__prior.csv* with *products.csv*: one basket per order, items are products.

    Products that no order names are left out. Other parameters and errors are those of :func:`load_uk_retail`.
    """
    columns = ("product_id", "product_name")
    names: dict[str, str] = {}
    for line, (product, name) in table_rows(Path(products), columns, progress_bar):
        if names.setdefault(product, name) != name:
            raise ValueError(f"{products}, line {line}: product {product!r} is {name!r}, and was {names[product]!r}")
    collected = Collected(orders, max_size, by_number=True)
    for line, (order, product) in table_rows(Path(orders), ("order_id", "product_id"), progress_bar):
        if product not in names:
            raise ValueError(f"{orders}, line {line}: product {product!r} is not in {products}")
        collected.add(line, order, product)
    return collected.baskets(names.__getitem__)


def load_million_song(path: str | Path, *, max_size: int | None = 100, progress_bar: bool = True) -> Baskets:
    """Echo Nest *train_triplets.txt* (McFee et al. 2012): one basket per listener, items are songs.

    The catalogue has the songs of the baskets that are kept, as published. Other parameters and errors are those of
    :func:`load_uk_retail`.
    """
    collected = Collected(path, max_size)
    for number, line in numbered_lines(Path(path), progress_bar):
        fields = line.rstrip("\r\n").split("\t")
        if len(fields) != 3:
            raise ValueError(f"{path}, line {number}: a listener, a song and a count with tabs, got {line[:60]!r}")
        collected.add(number, fields[0], fields[1])
    return collected.baskets(only_kept=True)


def load_goodreads(path: str | Path, *, max_size: int | None = 100, progress_bar: bool = True) -> Baskets:
    """UCSD *Goodreads* interactions or reviews, csv or json (gzipped or not): one basket per reader, items are books.

    The paper's baskets are the books that a reader has reviewed. So rows of a csv are dropped if ``is_reviewed`` is 0,
    and records of a json if ``review_text_incomplete`` is empty or null. The catalogue has the books of the baskets
    that are kept. Other parameters and errors are those of :func:`load_uk_retail`.
    """
    path, unreviewed = Path(path), "books that were not reviewed"
    collected = Collected(path, max_size, by_number=True)
    if ".json" in map(str.lower, path.suffixes):
        for number, line in numbered_lines(path, progress_bar):
            try:
                record = json.loads(line)
                reader, book = record["user_id"], record["book_id"]
                reviewed = record.get("review_text_incomplete", "a review") not in ("", None)
            except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
                raise ValueError(
                    f"{path}, line {number}: an object with user_id and book_id, got {line[:60]!r}"
                ) from None
            if reviewed:
                collected.add(number, "" if reader is None else str(reader), "" if book is None else str(book))
            else:
                collected.drop(unreviewed)
    else:
        for number, (reader, book, flag) in table_rows(path, ("user_id", "book_id", "is_reviewed"), progress_bar):
            if flag not in ("0", "1"):
                raise ValueError(f"{path}, line {number}: is_reviewed is {flag[:40]!r}, not 0 or 1")
            if flag == "1":
                collected.add(number, reader, book)
            else:
                collected.drop(unreviewed)
    return collected.baskets(only_kept=True)
