# The image holds one static binary, and what it is made of; it needs no registry to build. `make image` puts both into bin/.
FROM scratch
ARG VERSION=development
ARG REVISION=unknown
# Set by BuildKit, or else by the Makefile. A default would win over BuildKit's word.
ARG TARGETARCH
LABEL org.opencontainers.image.title="holdfast" \
      org.opencontainers.image.description="Replicated key-value state store for MQTT 5 systems" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY bin/linux-${TARGETARCH}/holdfast /holdfast
COPY bin/linux-${TARGETARCH}/holdfast.cdx.json /sbom.cdx.json
USER 65532:65532
WORKDIR /data
VOLUME /data
ENV HOLDFAST_NODE_DATADIR=/data
EXPOSE 7400 7401 7402
# Whether it runs: what restarts containers that are not healthy must not do so because the broker or a majority is away. It asks at
# HOLDFAST_HEALTH_LISTEN, 127.0.0.1:7402 by default.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["/holdfast", "health", "--live"]
ENTRYPOINT ["/holdfast"]
CMD ["server"]
