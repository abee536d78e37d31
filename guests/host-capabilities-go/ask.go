package main

import (
	"encoding/json"

	"github.com/kubewarden/policy-sdk-go/pkg/capabilities"
	"github.com/kubewarden/policy-sdk-go/pkg/capabilities/crypto"
	"github.com/kubewarden/policy-sdk-go/pkg/capabilities/kubernetes"
	"github.com/kubewarden/policy-sdk-go/pkg/capabilities/net"
	"github.com/kubewarden/policy-sdk-go/pkg/capabilities/oci/manifest"
	"github.com/kubewarden/policy-sdk-go/pkg/capabilities/oci/manifest_config"
	"github.com/kubewarden/policy-sdk-go/pkg/capabilities/oci/manifest_digest"
	"github.com/kubewarden/policy-sdk-go/pkg/capabilities/oci/verify_v2"
)

// ask makes the call and returns the answer as the host wrote it, or as much as the SDK reads of it.
func (c call) ask(host *capabilities.Host) (string, error) {
	switch {
	case c.LookupHost != nil:
		addresses, err := net.LookupHost(host, *c.LookupHost)
		return text(net.LookupHostResponse{Ips: addresses}, err)
	case c.ManifestDigest != nil:
		digest, err := manifest_digest.GetOCIManifestDigest(host, *c.ManifestDigest)
		return text(manifest_digest.OciManifestResponse{Digest: digest}, err)
	case c.Manifest != nil:
		answer, err := manifest.GetOCIManifest(host, *c.Manifest)
		if err != nil {
			return "", err
		}
		if index := answer.IndexManifest(); index != nil {
			return text(index, nil)
		}
		return text(answer.ImageManifest(), nil)
	case c.ManifestAndConfig != nil:
		return text(manifest_config.GetOCIManifestAndConfig(host, *c.ManifestAndConfig))
	case c.VerifyKeys != nil:
		return text(verify_v2.VerifyPubKeysImage(host, c.VerifyKeys.Image, c.VerifyKeys.Keys, nil))
	case c.VerifyCertificate != nil:
		chain := make([]crypto.Certificate, len(c.VerifyCertificate.Chain))
		for i, one := range c.VerifyCertificate.Chain {
			chain[i] = pem(one)
		}
		return text(crypto.VerifyCert(host, pem(c.VerifyCertificate.Certificate), chain, ""))
	case c.GetResource != nil:
		answer, err := kubernetes.GetResource(host, *c.GetResource)
		return string(answer), err
	case c.ListAll != nil:
		answer, err := kubernetes.ListResources(host, *c.ListAll)
		return string(answer), err
	case c.ListByNamespace != nil:
		answer, err := kubernetes.ListResourcesByNamespace(host, *c.ListByNamespace)
		return string(answer), err
	default:
		answer, err := host.Client.HostCall("kubewarden", c.Raw.Namespace, c.Raw.Operation, c.Raw.Payload)
		return string(answer), err
	}
}

// text turns what the SDK has read into JSON again.
func text(answer any, err error) (string, error) {
	if err != nil {
		return "", err
	}
	bytes, err := json.Marshal(answer)
	return string(bytes), err
}

// pem returns a certificate in the SDK's type.
func pem(text string) crypto.Certificate {
	return crypto.Certificate{Encoding: crypto.Pem, Data: []rune(text)}
}
