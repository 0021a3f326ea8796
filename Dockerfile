# The server, the broker and its bridges: the wheel with its compiled loops built in one stage, installed with hashed
# dependencies in the next. The broker needs nothing that the server does not need, too (a test holds the two extras to
# that), bridges need what their sinks speak (extra `sinks`). Either is started as
# `docker run --entrypoint journal-broker ...`.
FROM python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1 AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY requirements/ requirements/
RUN python -m pip install --no-cache-dir --target /opt/tools --require-hashes -r requirements/tools.lock \
    && python -m venv /opt/journal \
    && /opt/tools/bin/uv pip sync --no-cache --require-hashes --python /opt/journal/bin/python requirements/image.lock
COPY pyproject.toml hatch_build.py README.md CHANGELOG.md LICENSE ./
COPY conf/ conf/
COPY docs/ docs/
COPY shards/ shards/
COPY command_line/ command_line/
COPY journal/ journal/
COPY broker_adapter/ broker_adapter/
COPY spark_export/ spark_export/
COPY pyspark_journal.py ./
RUN PYTHONPATH=/opt/tools python -m hatchling build --target wheel \
    && /opt/tools/bin/uv pip install --no-cache --no-deps --python /opt/journal/bin/python dist/*.whl \
    && cd / && /opt/journal/bin/python -c 'import shards.compiled._loops'

FROM python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1
COPY --from=build /opt/journal /opt/journal
RUN useradd --system --user-group --uid 7420 --home-dir /data --shell /usr/sbin/nologin journal \
    && install --directory --mode 0700 --owner journal --group journal /data /etc/journal
ENV PATH=/opt/journal/bin:$PATH \
    PYTHONUNBUFFERED=1
USER journal
VOLUME /data
# TCP frames, the same frames over WebSocket, HTTP for health and metrics; MQTT, over TLS, over WebSocket, over both.
EXPOSE 7420 7421 7422 1883 8883 8083 8084
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:7422/livez', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["journal", "serve", "--data", "/data"]
# It starts only with users, since its port may be published: `journal passwd /etc/journal/users USER` adds one.
CMD ["--listen", "0.0.0.0:7420", "--set", "access.users_file=/etc/journal/users"]
