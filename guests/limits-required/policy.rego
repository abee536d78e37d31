# Denies objects in namespaces that have no LimitRange, except in namespaces with the label in the settings. For execution mode `opa` with
# objects of the cluster: they are in `data.kubernetes`, by plural and, if they have one, by namespace.
package kubewarden.limits_required

main := {"response": response}

response := {"uid": input.request.uid, "allowed": true} if count(denied) == 0

response := {
	"uid": input.request.uid,
	"allowed": false,
	"status": {"message": concat("; ", sort(denied))},
} if count(denied) > 0

denied contains sprintf("namespace %s has no LimitRange", [namespace]) if {
	namespace := input.request.namespace
	count(object.get(data.kubernetes.limitranges, namespace, {})) == 0
	not is_exempt(namespace)
}

# If this policy does not know a namespace that exists, its host is at fault.
denied contains sprintf("namespace %s is not known", [namespace]) if {
	namespace := input.request.namespace
	not data.kubernetes.namespaces[namespace]
}

is_exempt(namespace) if data.kubernetes.namespaces[namespace].metadata.labels[data.exemptLabel]
