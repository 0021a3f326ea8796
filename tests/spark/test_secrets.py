"""No password of a database is taken from the command line, or shown in a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line.boundary import CommandError, UsageError
from spark_export.cli.export_options import PASSWORD_VARIABLE, connection_properties
from spark_export.cli.failures import explain
from spark_export.cli.spark_options import SparkOptions, running_spark
from spark_export.errors import OptionError, without_secrets
from spark_export.export.options import ExportOptions

POSTGRESQL = "jdbc:postgresql://db/plant"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (POSTGRESQL, POSTGRESQL),
        ("jdbc:postgresql://db:5432/plant?ssl=true", "jdbc:postgresql://db:5432/plant?ssl=true"),
        ("jdbc:postgresql://[::1]:5432/plant", "jdbc:postgresql://[::1]:5432/plant"),
        (f"{POSTGRESQL}?user=a&password=hush&ssl=true", f"{POSTGRESQL}?user=a&password=***&ssl=true"),
        (f"{POSTGRESQL}?sslpassword=hush", f"{POSTGRESQL}?sslpassword=***"),
        ("jdbc:sqlserver://db;user=a;Password = hush;x=y", "jdbc:sqlserver://db;user=a;Password = ***;x=y"),
        ("jdbc:mysql://anna:hush@db/plant", "jdbc:mysql://***@db/plant"),
        ("jdbc:mysql://anna:hu/sh@db/plant", "jdbc:mysql://***@db/plant"),
        ("jdbc:mysql://anna:hu?sh@db/plant", "jdbc:mysql://anna:***/plant"),
        ("jdbc:oracle:thin:scott/hush@//db:1521/plant", "jdbc:oracle:thin:***@//db:1521/plant"),
        ("jdbc:oracle:thin:@db:1521/plant", "jdbc:oracle:thin:@db:1521/plant"),
        ("jdbc:mysql://anna@db/plant", "jdbc:mysql://anna@db/plant"),
        ("cannot reach jdbc:mysql://anna:hush@db/plant, sorry", "cannot reach jdbc:mysql://***@db/plant, sorry"),
        ("/lake/records", "/lake/records"),
    ],
)
def test_a_text_is_shown_without_passwords(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert "hush" not in shown


@pytest.mark.parametrize(
    "name", ["password", "Password", "sslpassword", "javax.net.ssl.trustStorePassword", "accessToken"]
)
def test_a_secret_on_the_command_line_is_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(UsageError, match="visible to all users of this machine; give --property-file") as told:
        connection_properties([f"{name}=hush"], [], POSTGRESQL)
    assert PASSWORD_VARIABLE in str(told.value)
    assert "hush" not in str(told.value)


@pytest.mark.parametrize("target", [f"{POSTGRESQL}?password=hush", "jdbc:mysql://anna:hush@db/plant"])
def test_a_url_with_a_password_is_refused(target: str) -> None:
    with pytest.raises(UsageError, match="visible to all users; give --property-file password=FILE") as told:
        connection_properties([], [], target)
    assert "hush" not in str(told.value)


def test_other_properties_and_targets_are_taken_as_they_are() -> None:
    given = ["user=loader", "driver=org.example.Driver", "sslkey=/etc/me.pem", "passfile=/etc/pgpass"]
    assert connection_properties(given, [], f"{POSTGRESQL}?ssl=true") == dict(one.split("=") for one in given)
    assert connection_properties([], [], "/lake/password=1") == {}


def test_a_password_is_the_first_line_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hush=1\nmore\n")
    assert connection_properties(["user=a"], [f"password={file}"], POSTGRESQL) == {"user": "a", "password": "hush=1"}
    with pytest.raises(CommandError, match=f"--property-file password={tmp_path}/none cannot be read: No such file"):
        connection_properties([], [f"password={tmp_path}/none"], POSTGRESQL)


def test_a_password_is_taken_from_the_environment_unless_a_file_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "hush")
    assert connection_properties([], [], POSTGRESQL) == {"password": "hush"}
    assert connection_properties([], [], "/lake/records") == {}
    file = tmp_path / "password"
    file.write_text("from the file")
    assert connection_properties([], [f"password={file}"], POSTGRESQL) == {"password": "from the file"}


def test_options_and_their_errors_have_no_password() -> None:
    target = f"{POSTGRESQL}?password=hush"
    options = ExportOptions(path="/p", target=target, format="jdbc", table="records", properties={"password": "hush"})
    assert "hush" not in repr(options)
    with pytest.raises(OptionError, match=r"does not go with target .*password=\*\*\*") as told:
        ExportOptions(path="/p", target=target, format="csv")
    assert "hush" not in str(told.value)


def test_an_explained_error_has_no_password() -> None:
    told = explain(OptionError("the driver says: jdbc:mysql://anna:hush@db/plant?password=hush"))
    assert told == "the driver says: jdbc:mysql://***@db/plant?password=***"


@pytest.mark.parametrize("name", ["spark.hadoop.fs.s3a.secret.key", "spark.ssl.keyPassword", "fs.s3a.session.token"])
def test_a_secret_among_the_settings_of_spark_is_refused(name: str) -> None:
    options = SparkOptions(conf=("spark.ui.enabled=false", f"{name}=hush"))
    with pytest.raises(UsageError, match="is visible to all users of this machine; put it into spark-defaults") as told:
        with running_spark(options):
            pass
    assert name in str(told.value)
    assert "hush" not in str(told.value)
