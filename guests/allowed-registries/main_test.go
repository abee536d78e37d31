package main

import (
	"strings"
	"testing"
)

func TestShortNamesAreExpanded(t *testing.T) {
	for reference, want := range map[string]string{
		"busybox":                              "docker.io/library/busybox",
		"busybox:1.36":                         "docker.io/library/busybox",
		"grafana/grafana":                      "docker.io/grafana/grafana",
		"docker.io/busybox":                    "docker.io/library/busybox",
		"index.docker.io/library/busybox":      "docker.io/library/busybox",
		"localhost/tool":                       "localhost/tool",
		"localhost:5000/tool:v1":               "localhost:5000/tool",
		"registry:5000/a/b@sha256:00":          "registry:5000/a/b",
		"registry.example.com/a:v1@sha256:00":  "registry.example.com/a",
		"GHCR.io/team/app":                     "ghcr.io/team/app",
		"[2001:db8::1]:5000/team/app:v1":       "[2001:db8::1]:5000/team/app",
		"ghcr.io/team/app:v1.0.0-rc.1_special": "ghcr.io/team/app",
	} {
		if got := repository(reference); got != want {
			t.Errorf("repository(%q) = %q, want %q", reference, got, want)
		}
	}
}

func TestEntriesCoverWholeSegments(t *testing.T) {
	s, err := parseSettings([]byte(`{"registries": ["ghcr.io", "registry.example.com/team", "index.docker.io/library"]}`))
	if err != nil {
		t.Fatal(err)
	}
	for reference, want := range map[string]bool{
		"ghcr.io/any/thing:v1":            true,
		"ghcr.io.evil.example/any":        false,
		"ghcr.io:443/any":                 false,
		"registry.example.com/team/app":   true,
		"registry.example.com/team":       true,
		"registry.example.com/team-b/app": false,
		"registry.example.com/other":      false,
		"busybox":                         true,
		"grafana/grafana":                 false,
		"evil.example/ghcr.io/any":        false,
	} {
		if got := s.allow(repository(reference)); got != want {
			t.Errorf("allow(%q) = %v, want %v", reference, got, want)
		}
	}
}

func TestDenialNamesEachImage(t *testing.T) {
	answer := call(t, "validate", `{"settings": {"registries": ["ghcr.io"]}, "request": {
		"uid": "1", "operation": "CREATE", "kind": {"group": "", "version": "v1", "kind": "Pod"},
		"object": {"spec": {
			"containers": [{"name": "app", "image": "ghcr.io/team/app"}, {"name": "web", "image": "nginx:1"}],
			"initContainers": [{"name": "setup", "image": "quay.io/setup"}],
			"ephemeralContainers": [{"name": "debug", "image": "busybox"}],
			"volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "data", "image": {"reference": "quay.io/data"}}]
		}}}}`)
	want := `{"accepted":false,"message":"images from outside the allowed registries (ghcr.io): ` +
		`nginx:1 of container web, quay.io/setup of init container setup, busybox of ephemeral container debug, quay.io/data of volume data"}`
	if answer != want {
		t.Errorf("got  %s\nwant %s", answer, want)
	}
}

func TestEveryWorkloadKindIsLookedInto(t *testing.T) {
	template := `{"template": {"spec": {"containers": [{"name": "web", "image": "nginx"}]}}}`
	for kind, object := range map[string]string{
		`"group": "apps", "kind": "Deployment"`:        `{"spec": ` + template + `}`,
		`"group": "apps", "kind": "DaemonSet"`:         `{"spec": ` + template + `}`,
		`"group": "apps", "kind": "ReplicaSet"`:        `{"spec": ` + template + `}`,
		`"group": "apps", "kind": "StatefulSet"`:       `{"spec": ` + template + `}`,
		`"group": "batch", "kind": "Job"`:              `{"spec": ` + template + `}`,
		`"group": "", "kind": "ReplicationController"`: `{"spec": ` + template + `}`,
		`"group": "", "kind": "PodTemplate"`:           template,
		`"group": "batch", "kind": "CronJob"`:          `{"spec": {"jobTemplate": {"spec": ` + template + `}}}`,
	} {
		answer := call(t, "validate",
			`{"settings": {"registries": ["ghcr.io"]}, "request": {"kind": {`+kind+`}, "object": `+object+`}}`)
		if !strings.Contains(answer, "nginx of container web") {
			t.Errorf("%s: %s", kind, answer)
		}
	}
}

func TestAccepted(t *testing.T) {
	for name, request := range map[string]string{
		"allowed image":  `{"kind": {"kind": "Pod"}, "object": {"spec": {"containers": [{"image": "ghcr.io/a"}]}}}`,
		"delete":         `{"kind": {"kind": "Pod"}, "oldObject": {"spec": {"containers": [{"image": "nginx"}]}}}`,
		"null object":    `{"kind": {"kind": "Pod"}, "object": null}`,
		"another kind":   `{"kind": {"kind": "ConfigMap"}, "object": {"spec": {"containers": "text"}}}`,
		"another group":  `{"kind": {"group": "example.com", "kind": "Pod"}, "object": {"spec": 1}}`,
		"no image named": `{"kind": {"kind": "Pod"}, "object": {"spec": {"containers": [{"name": "a"}], "volumes": null}}}`,
	} {
		answer := call(t, "validate", `{"settings": {"registries": ["ghcr.io"]}, "request": `+request+`}`)
		if answer != `{"accepted":true}` {
			t.Errorf("%s: %s", name, answer)
		}
	}
}

func TestSettings(t *testing.T) {
	for input, want := range map[string]string{
		`{"registries": ["ghcr.io", "localhost:5000/team", "docker.io/library"]}`: `{"valid":true}`,
		`{"registries": []}`:                     "registries is empty",
		`{}`:                                     "registries is empty",
		`null`:                                   "registries is empty",
		`{"registry": "ghcr.io"}`:                `unknown field \"registry\"; expected is registries`,
		`{"registries": "ghcr.io"}`:              "expected is registries, a list of text",
		`{"registries": ["grafana"]}`:            "write docker.io/grafana",
		`{"registries": [""]}`:                   "does not start with a registry",
		`{"registries": ["ghcr.io/"]}`:           "empty path segment",
		`{"registries": ["ghcr.io/a:1"]}`:        "names a tag or a digest",
		`{"registries": ["ghcr.io/a@sha256:1"]}`: "names a tag or a digest",
		`{"registries": ["https://ghcr.io"]}`:    "leave out the scheme",
		`{"registries": ["*.example.com"]}`:      "no wildcards",
	} {
		if answer := call(t, "validate-settings", input); !strings.Contains(answer, want) {
			t.Errorf("%s: %s, want %s", input, answer, want)
		}
	}
}

func TestFailedCalls(t *testing.T) {
	for _, c := range []struct{ args, input, want string }{
		{"validate", `{`, "failed to read the request"},
		{"validate", `{"request": {}, "settings": {}}`, "failed to read the settings"},
		{"validate", `{"request": {"kind": {"kind": "Pod"}, "object": 1}, "settings": {"registries": ["a.b"]}}`, "failed to read the object"},
		{"mutate", ``, `unknown call "mutate"`},
		{"", ``, "one argument is expected"},
	} {
		err := run(strings.Fields(c.args), strings.NewReader(c.input), new(strings.Builder))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %s", c.args, c.input, err, c.want)
		}
	}
}

// call runs the policy as the host does and returns its answer without the final newline.
func call(t *testing.T, name, input string) string {
	t.Helper()
	out := new(strings.Builder)
	if err := run([]string{name}, strings.NewReader(input), out); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}
