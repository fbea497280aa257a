# A broker. Everything comes from the build context and from Python's package index; with PIP_NO_INDEX=1 and PIP_FIND_LINKS=build/wheels
# (`make wheels`) nothing is fetched at all, so that it can be built where there is no registry of images and no way out: docs/compose.md.
# Both images need the same Python, 3.11 or newer, the first one with its venv module, and nothing else. Where that one has a C compiler and Python's
# headers (python:3.12 has them, python:3.12-slim not) a part is compiled: small requests take half the CPU, and compaction a quarter of the time.
ARG BUILD_IMAGE=python:3.12
ARG BASE_IMAGE=python:3.12-slim

FROM ${BUILD_IMAGE} AS build
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
WORKDIR /source
COPY . .
# Lowtide's environment gets no pip of its own: the other one installs into it.
RUN python3 -m venv /opt/installer \
 && python3 -m venv --without-pip /opt/lowtide \
 && /opt/installer/bin/python -m pip --python /opt/lowtide/bin/python install \
      --no-cache-dir --disable-pip-version-check --constraint constraints.txt '.[etcd]' \
 && /opt/lowtide/bin/python3 -c 'from lowtide.protocol.native import why_plain; print("without the compiled module, so small requests take twice the CPU: BUILD_IMAGE has no C compiler or no headers of Python" if why_plain() else "with the compiled module")'

FROM ${BASE_IMAGE}
ARG VERSION=unknown
LABEL org.opencontainers.image.title="Lowtide" \
      org.opencontainers.image.description="A Kafka-compatible broker in which deleting data is a first-class operation" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/lowtide /opt/lowtide
# Numbers, for a base may know no users; a new volume takes over who owns the folder. `lowtide certificates` fills the last two.
RUN mkdir -p /var/lib/lowtide /etc/lowtide/brokers /etc/lowtide/etcd \
 && chown -R 10001:10001 /var/lib/lowtide /etc/lowtide
USER 10001:10001
WORKDIR /var/lib/lowtide
VOLUME /var/lib/lowtide
# A container's address is not known beforehand: clients get the one by which they come, unless LOWTIDE_ADVERTISED_LISTENERS names another.
ENV PATH=/opt/lowtide/bin:$PATH LOWTIDE_LOG_DIRS=/var/lib/lowtide/log LOWTIDE_ADVERTISE_LOCAL_ADDRESS=true
EXPOSE 9092
# docker run alone listens for HTTP on loopback, where it is asked. A cluster of compose has the same check, more often.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9644/health/ready', timeout=3)"]
# The broker is process 1 and stops in order on SIGTERM: open requests are answered, files are synced, leaderships are handed over.
STOPSIGNAL SIGTERM
ENTRYPOINT ["lowtide"]
CMD ["serve"]
