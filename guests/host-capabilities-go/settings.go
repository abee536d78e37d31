package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/kubewarden/policy-sdk-go/pkg/capabilities/kubernetes"
)

// settings say what the host is asked for.
type settings struct {
	Calls   []call `json:"calls"`
	Swallow bool   `json:"swallow"`
}

// call is one call of the host. Exactly one of its fields is set.
type call struct {
	LookupHost        *string      `json:"lookupHost"`
	ManifestDigest    *string      `json:"manifestDigest"`
	Manifest          *string      `json:"manifest"`
	ManifestAndConfig *string      `json:"manifestAndConfig"`
	VerifyKeys        *keys        `json:"verifyKeys"`
	VerifyCertificate *certificate `json:"verifyCertificate"`
	GetResource       *getResource `json:"getResource"`
	ListAll           *listAll     `json:"listAll"`
	ListByNamespace   *listInOne   `json:"listByNamespace"`
	Raw               *raw         `json:"raw"`
}

type (
	getResource = kubernetes.GetResourceRequest
	listAll     = kubernetes.ListAllResourcesRequest
	listInOne   = kubernetes.ListResourcesByNamespaceRequest
)

// keys is an image, and the keys that must have signed it.
type keys struct {
	Image string   `json:"image"`
	Keys  []string `json:"keys"`
}

// certificate is a certificate and the chain to its root, in PEM.
type certificate struct {
	Certificate string   `json:"certificate"`
	Chain       []string `json:"chain"`
}

// raw is any call, with its names and its payload.
type raw struct {
	Namespace string          `json:"namespace"`
	Operation string          `json:"operation"`
	Payload   json.RawMessage `json:"payload"`
}

// parseSettings reads and checks settings. The error is for the author of the policy.
func parseSettings(input []byte) (settings, error) {
	var s settings
	decoder := json.NewDecoder(bytes.NewReader(input))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return settings{}, fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "json: "))
	}
	for i, call := range s.Calls {
		if count := call.count(); count != 1 {
			return settings{}, fmt.Errorf("calls[%d] names %d calls: name exactly one", i, count)
		}
	}
	return s, nil
}

// count returns the number of calls that are named, which should be one.
func (c call) count() int {
	count := 0
	fields := reflect.ValueOf(c)
	for i := range fields.NumField() {
		if !fields.Field(i).IsNil() {
			count++
		}
	}
	return count
}
