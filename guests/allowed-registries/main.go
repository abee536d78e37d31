// Command allowed-registries is an admission policy: container images may come from the
// listed registries and repositories only.
//
// It is written against the protocol of WASI policies, without an SDK: the first argument
// is the call, standard input holds JSON, the answer goes to standard output. Standard
// error and an exit code other than 0 tell the host that the call itself failed.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run answers one call.
func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("one argument is expected, validate or validate-settings, not %q", args)
	}
	input, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("failed to read the input: %w", err)
	}

	var answer any
	switch args[0] {
	case "validate":
		answer, err = validate(input)
	case "validate-settings":
		answer = validateSettings(input)
	default:
		err = fmt.Errorf("unknown call %q", args[0])
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(answer)
}

// settingsAnswer is what the host expects from validate-settings.
type settingsAnswer struct {
	Valid   bool   `json:"valid"`
	Message string `json:"message,omitempty"`
}

func validateSettings(input []byte) settingsAnswer {
	if _, err := parseSettings(input); err != nil {
		return settingsAnswer{Message: err.Error()}
	}
	return settingsAnswer{Valid: true}
}

// verdict is what the host expects from validate.
type verdict struct {
	Accepted bool   `json:"accepted"`
	Message  string `json:"message,omitempty"`
}

func validate(input []byte) (verdict, error) {
	var payload struct {
		Request  request
		Settings json.RawMessage
	}
	if err := json.Unmarshal(input, &payload); err != nil {
		return verdict{}, fmt.Errorf("failed to read the request: %w", err)
	}
	settings, err := parseSettings(payload.Settings)
	if err != nil {
		return verdict{}, fmt.Errorf("failed to read the settings: %w", err)
	}
	images, err := payload.Request.images()
	if err != nil {
		return verdict{}, fmt.Errorf("failed to read the object: %w", err)
	}
	return decide(settings, images), nil
}
