# Denies an object with the name of a namespace, or of a LimitRange in another namespace. For execution mode `gatekeeper` with objects of
# the cluster: they are in `data.inventory`.
package unique_names

name := input.review.object.metadata.name

violation contains {"msg": msg} if {
	some namespace, versions in data.inventory.namespace
	namespace != input.review.namespace
	versions.v1.LimitRange[name]
	msg := sprintf("LimitRange %s/%s has this name", [namespace, name])
}

violation contains {"msg": msg} if {
	data.inventory.cluster.v1.Namespace[name]
	msg := sprintf("Namespace %s has this name", [name])
}
