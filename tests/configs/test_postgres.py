"""The address of a database, taken apart without its password turning up anywhere."""

import pytest

from configs.postgres import parse_postgres

SECRET = "s3cret/word"
QUOTED = "s3cret%2Fword"


def test_an_address_is_taken_apart() -> None:
    found = parse_postgres(f"postgresql://us%40er:{QUOTED}@db.example:6000/team")
    assert (found.user, found.password, found.host, found.port) == (
        "us@er", SECRET, "db.example", 6000,
    )  # fmt: skip
    assert found.database("prefect") == "team_prefect"


def test_what_is_left_out_has_a_default() -> None:
    found = parse_postgres("postgresql://klear@db")
    assert (found.password, found.port, found.database("mlflow")) == ("", 5432, "klear_mlflow")


def test_no_address_that_is_made_of_it_has_the_password() -> None:
    found = parse_postgres(f"postgresql://us%40er:{QUOTED}@[::1]:6000")
    assert found.url("asyncpg", "x") == "postgresql+asyncpg://us%40er@[::1]:6000/x"
    assert SECRET not in str(found)


def test_a_socket_is_a_folder() -> None:
    found = parse_postgres("postgresql://me@/klear?host=/var/run/postgresql")
    url = "postgresql+psycopg2://me@/klear_mlflow?host=/var/run/postgresql&port=5432"
    assert found.url("psycopg2", found.database("mlflow")) == url


@pytest.mark.parametrize(
    "address",
    [
        f"mysql://klear:{SECRET}@db",
        f"postgresql://:{SECRET}@db",
        f"postgresql://klear:{SECRET}@",
        f"postgresql://klear:{QUOTED}@db:port",
        f"postgresql://klear:{QUOTED}@db/two/parts",
        f"postgresql://klear:{QUOTED}@db?host=/run",
    ],
)
def test_a_wrong_address_is_refused_without_repeating_it(address: str) -> None:
    with pytest.raises(ValueError, match=r"must|address") as caught:
        parse_postgres(address)
    assert SECRET not in str(caught.value)
    assert QUOTED not in str(caught.value)


def test_options_have_variables_that_both_drivers_read() -> None:
    with pytest.raises(ValueError, match="sslmode as PGSSLMODE"):
        parse_postgres("postgresql://klear@db?sslmode=require")
