# A broker. The build uses its context and Python's package index. With PIP_NO_INDEX=1 and PIP_FIND_LINKS=build/wheels (`make image-wheels`) it needs no
# network: docs/compose.md.
# Both images need the same Python, 3.11 or newer; BUILD_IMAGE also needs the venv module. If BUILD_IMAGE has a C compiler and Python's headers, as
# python:3.12 has, a module is compiled: small requests take half the CPU, and compaction a quarter of the time.
ARG BUILD_IMAGE=python:3.12
ARG BASE_IMAGE=python:3.12-slim

FROM ${BUILD_IMAGE} AS build
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
# What is installed: this folder, or a release, such as lowtide[etcd]==0.1.0 with PIP_FIND_LINKS=dist (docs/releasing.md).
ARG LOWTIDE=.[etcd]
WORKDIR /source
COPY . .
# Lowtide's environment has no pip; that of the other environment installs into it.
RUN python3 -m venv /opt/installer \
 && python3 -m venv --without-pip /opt/lowtide \
 && /opt/installer/bin/python -m pip --python /opt/lowtide/bin/python install \
      --no-cache-dir --disable-pip-version-check --constraint constraints.txt "${LOWTIDE}" \
 && /opt/lowtide/bin/python3 -c 'from lowtide.protocol.native import why_plain; print("without the compiled module, so small requests take twice the CPU: BUILD_IMAGE has no C compiler or no headers of Python" if why_plain() else "with the compiled module")'

FROM ${BASE_IMAGE}
ARG VERSION=unknown
LABEL org.opencontainers.image.title="Lowtide" \
      org.opencontainers.image.description="A Kafka-compatible broker in which deleting data is a first-class operation" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/lowtide /opt/lowtide
# User ids as numbers, because the base may have no users. A new volume takes over the folder's owner. `lowtide certificates` fills the last three.
RUN mkdir -p /var/lib/lowtide /etc/lowtide/brokers /etc/lowtide/etcd /etc/lowtide/console \
 && chown -R 10001:10001 /var/lib/lowtide /etc/lowtide
USER 10001:10001
WORKDIR /var/lib/lowtide
VOLUME /var/lib/lowtide
# A container's address is not known beforehand, so the broker advertises the address that a client connected to, unless
# LOWTIDE_ADVERTISED_LISTENERS is set.
ENV PATH=/opt/lowtide/bin:$PATH LOWTIDE_LOG_DIRS=/var/lib/lowtide/log LOWTIDE_ADVERTISE_LOCAL_ADDRESS=true
EXPOSE 9092
# With docker run, HTTP listens on loopback in the container. docker-compose.yml has the same check, more often.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9644/health/ready', timeout=3)"]
# The broker is process 1. SIGTERM stops it in order: it answers open requests, syncs files, and hands over leaderships.
STOPSIGNAL SIGTERM
ENTRYPOINT ["lowtide"]
CMD ["serve"]
