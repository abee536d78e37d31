// Command host-capabilities-go asks its host for what its settings say, with the functions of Kubewarden's SDK for
// Go, and denies. The message holds all answers, the audit annotations call-0, call-1 and so on hold one each. With
// swallow it does not mention them, like a policy that handles errors badly. It is the guest host-capabilities in
// another language and execution mode.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/kubewarden/policy-sdk-go/pkg/capabilities"
	"github.com/kubewarden/policy-sdk-go/protocol"
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
	switch args[0] {
	case "validate":
		return validate(input, out)
	case "validate-settings":
		return json.NewEncoder(out).Encode(validateSettings(input))
	default:
		return fmt.Errorf("unknown call %q", args[0])
	}
}

func validateSettings(input []byte) protocol.SettingsValidationResponse {
	if _, err := parseSettings(input); err != nil {
		message := err.Error()
		return protocol.SettingsValidationResponse{Message: &message}
	}
	return protocol.SettingsValidationResponse{Valid: true}
}

func validate(input []byte, out io.Writer) error {
	var request protocol.ValidationRequest
	if err := json.Unmarshal(input, &request); err != nil {
		return fmt.Errorf("failed to read the request: %w", err)
	}
	settings, err := parseSettings(request.Settings)
	if err != nil {
		return fmt.Errorf("failed to read the settings: %w", err)
	}
	host := capabilities.NewHost()
	answers := make([]string, len(settings.Calls))
	for i, call := range settings.Calls {
		answer, err := call.ask(&host)
		answers[i] = show(answer, err)
	}
	return json.NewEncoder(out).Encode(deny(answers, settings.Swallow))
}

// longest is the largest answer that is shown as it is, in bytes: the host cuts longer texts.
const longest = 1024

// show returns an answer as it appears in the verdict. A longer one is shown by its length and digest, from which a
// test knows that all of it arrived.
func show(answer string, err error) string {
	switch {
	case err != nil:
		return "error: " + err.Error()
	case len(answer) > longest:
		return fmt.Sprintf("%d bytes, sha256:%x", len(answer), sha256.Sum256([]byte(answer)))
	default:
		return answer
	}
}

// denial is a verdict with the audit annotations that the SDK's type lacks.
type denial struct {
	protocol.ValidationResponse
	AuditAnnotations map[string]string `json:"audit_annotations,omitempty"`
}

// deny makes a verdict that shows the answers, or one that hides them.
func deny(answers []string, swallow bool) denial {
	message := "something is wrong"
	if swallow {
		return denial{ValidationResponse: protocol.ValidationResponse{Message: &message}}
	}
	message = strings.Join(answers, "; ")
	annotations := make(map[string]string, len(answers))
	for i, answer := range answers {
		annotations[fmt.Sprintf("call-%d", i)] = answer
	}
	return denial{protocol.ValidationResponse{Message: &message}, annotations}
}
