# Denies pods that mount a path of the node, except below the prefixes in the settings. For execution mode `opa`: the entrypoint returns
# the response of an AdmissionReview, and the settings are `data`.
package kubewarden.host_paths

main := {"response": response}

response := {"uid": input.request.uid, "allowed": true} if count(denied) == 0

response := {
	"uid": input.request.uid,
	"allowed": false,
	"status": {"message": sprintf("these volumes mount paths of the node: %s", [concat(", ", sort(denied))]), "code": 403},
} if count(denied) > 0

denied contains volume.name if {
	some volume in input.request.object.spec.volumes
	path := volume.hostPath.path
	not is_allowed(path)
}

is_allowed(path) if strings.any_prefix_match(path, data.allowedPrefixes)
