# syntax=docker/dockerfile:1

# The image of retry-consumer: one static binary and the CA certificates, nothing else. A scenes file whose handlers are
# of kind exec needs programs that are not in here: copy the binary into an image that has them.
#
#   docker build --build-arg VERSION=v0.1.0 -t retry-consumer .

FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
ARG TARGETOS TARGETARCH
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG VERSION=dev
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/retry-consumer ./cmd/retry-consumer \
    && mkdir -m 1777 /out/tmp

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/ /
USER 65532:65532
ENTRYPOINT ["/retry-consumer"]
CMD ["serve"]
