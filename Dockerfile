# syntax=docker/dockerfile:1
#
# The images of Portcullis for users who build with BuildKit: one static program each on an empty root.
#
#   docker build --target loader --tag registry.example.com/portcullis/loader:0.1.0 .
#
# Targets: loader, evaluator, reporter, controller, portcullis. `cargo xtask images` makes the same without an engine.
# `--build-arg REVISION=$(git rev-parse HEAD)` tells the commit.

ARG VERSION=0.1.0

FROM rust:1.95-bookworm AS source
WORKDIR /portcullis
COPY . .
# The C library goes into the programs, and the folders of this build stay out of them.
ENV RUSTFLAGS="-Ctarget-feature=+crt-static --remap-path-prefix=/usr/local/cargo=/cargo"
# One package a command: cargo joins the features of what it builds together, and so would give the evaluator the loader's compiler.
COPY --chmod=755 <<"SCRIPT" /usr/local/bin/build-program
#!/bin/sh
set -eu
target="$(rustc -vV | sed -n 's/^host: //p')"
# Made by `cargo xtask pgo`, for one compiler and one target.
profile="$PWD/evaluator/profiles/$(rustc -vV | sed -n 's/^release: //p')-$target.profdata"
if [ "$1" = portcullis-evaluator ] && [ -f "$profile" ]; then
    export RUSTFLAGS="$RUSTFLAGS -Cprofile-use=$profile"
fi
cargo build --locked --release --target "$target" --package "$1" --bins
mkdir /out
cp "target/$target/release/$1" /out/
SCRIPT

FROM source AS build-loader
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/portcullis/target build-program portcullis-loader

FROM source AS build-evaluator
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/portcullis/target build-program portcullis-evaluator

FROM source AS build-reporter
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/portcullis/target build-program portcullis-reporter

FROM source AS build-controller
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/portcullis/target build-program portcullis-controller

FROM source AS build-portcullis
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/portcullis/target build-program portcullis

FROM scratch AS loader
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="portcullis-loader" \
      org.opencontainers.image.description="Fetches, verifies and precompiles policy modules onto the shared volume" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/portcullis-dev/portcullis" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=source /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
COPY --from=build-loader /out/portcullis-loader /portcullis-loader
USER 65531:65530
ENTRYPOINT ["/portcullis-loader"]

FROM scratch AS evaluator
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="portcullis-evaluator" \
      org.opencontainers.image.description="Runs policies, swaps them live and answers admission reviews" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/portcullis-dev/portcullis" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build-evaluator /out/portcullis-evaluator /portcullis-evaluator
USER 65532:65530
ENTRYPOINT ["/portcullis-evaluator"]

FROM scratch AS reporter
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="portcullis-reporter" \
      org.opencontainers.image.description="Tells every policy's state in its status" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/portcullis-dev/portcullis" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=source /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
COPY --from=build-reporter /out/portcullis-reporter /portcullis-reporter
USER 65533:65530
ENTRYPOINT ["/portcullis-reporter"]

FROM scratch AS controller
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="portcullis-controller" \
      org.opencontainers.image.description="Keeps revisions, webhooks and certificates of a policy server" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/portcullis-dev/portcullis" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=source /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
COPY --from=build-controller /out/portcullis-controller /portcullis-controller
USER 65534:65530
ENTRYPOINT ["/portcullis-controller"]

FROM scratch AS portcullis
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="portcullis" \
      org.opencontainers.image.description="The command-line tool: read the status of policies, move modules between registries, translate manifests" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/portcullis-dev/portcullis" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=source /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
COPY --from=build-portcullis /out/portcullis /portcullis
USER 65530:65530
ENTRYPOINT ["/portcullis"]
