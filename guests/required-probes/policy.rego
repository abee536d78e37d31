# Denies containers without the probes that the settings name. For execution mode `gatekeeper`: the entrypoint is a set of violations, and the
# settings are `input.parameters`.
package required_probes

violation contains {"msg": msg, "details": {"container": container.name, "probe": probe}} if {
	some container in input.review.object.spec.containers
	some probe in input.parameters.probes
	not container[probe]
	msg := sprintf("container %q has no %s", [container.name, probe])
}
