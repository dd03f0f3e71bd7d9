# The image holds one static binary and nothing else, so it needs no registry to build: `make image` builds the binary first.
FROM scratch
ARG VERSION=development
LABEL org.opencontainers.image.title="holdfast" \
      org.opencontainers.image.description="Replicated key-value state store for MQTT 5 systems" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY bin/holdfast /holdfast
USER 65532:65532
WORKDIR /data
VOLUME /data
ENV HOLDFAST_NODE_DATADIR=/data
EXPOSE 7402
ENTRYPOINT ["/holdfast"]
CMD ["server"]
