package main

import "encoding/json"

// request is the part of an admission request that this policy looks at.
type request struct {
	Kind struct {
		Group, Kind string
	}
	// Object is absent on DELETE, and read only when its kind is a workload.
	Object json.RawMessage
}

// images lists all images of the object. Only workloads have any.
func (r request) images() ([]image, error) {
	if len(r.Object) == 0 || !isWorkload(r.Kind.Group, r.Kind.Kind) {
		return nil, nil
	}
	var object part
	if err := json.Unmarshal(r.Object, &object); err != nil {
		return nil, err
	}
	return object.images(nil), nil
}

func isWorkload(group, kind string) bool {
	switch group + "/" + kind {
	case "/Pod", "/PodTemplate", "/ReplicationController",
		"apps/DaemonSet", "apps/Deployment", "apps/ReplicaSet", "apps/StatefulSet",
		"batch/CronJob", "batch/Job":
		return true
	}
	return false
}

// part is an object of any workload kind, or a part of one on the way to its containers:
// spec, spec.template.spec, spec.jobTemplate.spec.template.spec, or template.spec.
type part struct {
	Spec, Template, JobTemplate *part

	Containers, InitContainers, EphemeralContainers []container

	Volumes []struct {
		Name  string
		Image *struct{ Reference string }
	}
}

type container struct {
	Name, Image string
}

// images appends the images of this part and of all parts below. An empty one is left out: the
// API server refuses it in a pod, and in a template it is filled in later.
func (p *part) images(found []image) []image {
	if p == nil {
		return found
	}
	add := func(where, reference string) {
		if reference != "" {
			found = append(found, image{where, reference})
		}
	}
	for _, c := range p.Containers {
		add("container "+c.Name, c.Image)
	}
	for _, c := range p.InitContainers {
		add("init container "+c.Name, c.Image)
	}
	for _, c := range p.EphemeralContainers {
		add("ephemeral container "+c.Name, c.Image)
	}
	for _, v := range p.Volumes {
		if v.Image != nil {
			add("volume "+v.Name, v.Image.Reference)
		}
	}
	for _, below := range []*part{p.Spec, p.Template, p.JobTemplate} {
		found = below.images(found)
	}
	return found
}
