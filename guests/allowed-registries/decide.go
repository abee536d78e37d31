package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// settings name where images may come from.
type settings struct {
	// Registries are expanded entries, like ghcr.io or docker.io/library.
	Registries []string `json:"registries"`
}

// parseSettings reads and checks settings. The error is for the author of the policy.
func parseSettings(input []byte) (settings, error) {
	var s settings
	decoder := json.NewDecoder(bytes.NewReader(input))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return settings{}, fmt.Errorf("%s; expected is registries, a list of text", strings.TrimPrefix(err.Error(), "json: "))
	}
	if len(s.Registries) == 0 {
		return settings{}, fmt.Errorf("registries is empty: name at least one, as in registries: [ghcr.io]")
	}
	for i, entry := range s.Registries {
		if err := checkEntry(entry); err != nil {
			return settings{}, err
		}
		host, path, _ := strings.Cut(entry, "/")
		s.Registries[i] = join(canonicalHost(host), path)
	}
	return s, nil
}

// checkEntry refuses entries that could never match, or would not match as their author expects.
func checkEntry(entry string) error {
	host, path, hasPath := strings.Cut(entry, "/")
	lastSegment := path[strings.LastIndex(path, "/")+1:]
	switch {
	case strings.Contains(entry, "://"):
		return fmt.Errorf("%q: leave out the scheme, as in ghcr.io", entry)
	case !isHost(host):
		return fmt.Errorf("%q does not start with a registry: write docker.io/%s for an image of Docker Hub", entry, entry)
	case hasPath && (path == "" || strings.Contains("/"+path+"/", "//")):
		return fmt.Errorf("%q has an empty path segment: leave out the slash", entry)
	case strings.ContainsAny(path, "@") || strings.Contains(lastSegment, ":"):
		return fmt.Errorf("%q names a tag or a digest: only registries and repositories are compared", entry)
	case strings.ContainsAny(entry, "* \t\n"):
		return fmt.Errorf("%q: there are no wildcards; an entry covers all repositories below it", entry)
	}
	return nil
}

// image is the reference of one image, and the place that names it.
type image struct {
	where, reference string
}

// decide accepts the images if entries cover all of them, and otherwise names each one that no entry covers.
func decide(s settings, images []image) verdict {
	var refused []string
	for _, image := range images {
		if !s.allow(repository(image.reference)) {
			refused = append(refused, fmt.Sprintf("%s of %s", image.reference, image.where))
		}
	}
	if len(refused) == 0 {
		return verdict{Accepted: true}
	}
	return verdict{Message: fmt.Sprintf("images from outside the allowed registries (%s): %s",
		strings.Join(s.Registries, ", "), strings.Join(refused, ", "))}
}

// allow compares whole path segments: ghcr.io/team does not cover ghcr.io/team-b.
func (s settings) allow(repository string) bool {
	for _, entry := range s.Registries {
		if repository == entry || strings.HasPrefix(repository, entry+"/") {
			return true
		}
	}
	return false
}

// repository expands an image reference as container runtimes do, and drops tag and digest.
func repository(reference string) string {
	name, _, _ := strings.Cut(reference, "@")
	if tag := strings.LastIndex(name, ":"); tag > strings.LastIndex(name, "/") {
		name = name[:tag]
	}
	host, path, found := strings.Cut(name, "/")
	if !found || !isHost(host) {
		host, path = dockerHub, name
	}
	host = canonicalHost(host)
	if host == dockerHub && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	return join(host, path)
}

const dockerHub = "docker.io"

// isHost reports whether the first segment of a reference is a host, and not a user of Docker Hub.
func isHost(segment string) bool {
	return segment == "localhost" || strings.ContainsAny(segment, ".:") || strings.ToLower(segment) != segment
}

// canonicalHost returns the same spelling for all hosts that are the same registry.
func canonicalHost(host string) string {
	host = strings.ToLower(host)
	if host == "index.docker.io" {
		return dockerHub
	}
	return host
}

func join(host, path string) string {
	if path == "" {
		return host
	}
	return host + "/" + path
}
