module portcullis.dev/guests/host-capabilities-go

go 1.24

require github.com/kubewarden/policy-sdk-go v0.12.0

require (
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	github.com/wapc/wapc-guest-tinygo v0.3.3 // indirect
)
