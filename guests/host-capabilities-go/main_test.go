package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestSettings(t *testing.T) {
	for input, want := range map[string]string{
		`{}`: `{"valid":true}`,
		`{"calls": [{"lookupHost": "a.example"}], "swallow": true}`:                       `{"valid":true}`,
		`{"calls": [{"getResource": {"api_version": "v1", "kind": "Pod", "name": "a"}}]}`: `{"valid":true}`,
		`{"calls": [{"raw": {"namespace": "a", "operation": "b", "payload": {"c": 1}}}]}`: `{"valid":true}`,
		`{"calls": [{}]}`: "calls[0] names 0 calls: name exactly one",
		`{"calls": [{"manifest": "a", "lookupHost": "b"}]}`: "calls[0] names 2 calls: name exactly one",
		`{"calls": [{"lookup": "a.example"}]}`:              `unknown field \"lookup\"`,
		`{"calls": "all"}`:                                  "cannot unmarshal string",
		`{`:                                                 "unexpected EOF",
	} {
		out := new(strings.Builder)
		if err := run([]string{"validate-settings"}, strings.NewReader(input), out); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: %s, want %s", input, out, want)
		}
	}
}

func TestTheDenialHasTheAnswers(t *testing.T) {
	answers := []string{show("one", nil), show("", errors.New("two")), show("", nil)}
	for swallow, want := range map[bool]string{
		false: `{"accepted":false,"message":"one; error: two; ","audit_annotations":{"call-0":"one","call-1":"error: two","call-2":""}}`,
		true:  `{"accepted":false,"message":"something is wrong"}`,
	} {
		reply, err := json.Marshal(deny(answers, swallow))
		if err != nil {
			t.Fatal(err)
		}
		if string(reply) != want {
			t.Errorf("swallow %v: %s, want %s", swallow, reply, want)
		}
	}
}

func TestLongAnswersAreShownByLengthAndDigest(t *testing.T) {
	if answer := strings.Repeat("x", longest); show(answer, nil) != answer {
		t.Error("an answer of the greatest length is not shown as it is")
	}
	want := "1025 bytes, sha256:c6d8e9905300876046729949cc95c2385221270d389176f7234fe7ac00c4e430"
	if shown := show(strings.Repeat("x", longest+1), nil); shown != want {
		t.Errorf("%s, want %s", shown, want)
	}
}

func TestFailedCalls(t *testing.T) {
	for _, c := range []struct{ args, input, want string }{
		{"validate", `{`, "failed to read the request"},
		{"validate", `{"request": {}, "settings": {"call": []}}`, "failed to read the settings"},
		{"mutate", ``, `unknown call "mutate"`},
		{"", ``, "one argument is expected"},
	} {
		err := run(strings.Fields(c.args), strings.NewReader(c.input), new(strings.Builder))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %s", c.args, c.input, err, c.want)
		}
	}
}
