module portcullis.dev/guests/allowed-registries

go 1.24
