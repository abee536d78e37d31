module github.com/portcullis-dev/portcullis/e2e/pod

go 1.26.0
