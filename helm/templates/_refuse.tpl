{{/* What the chart refuses, so that helm names the value and the cause, and not a pod that restarts for ever. `refuse.yaml` includes all of
     them; each renders nothing. */}}

{{/* Ends an upgrade to another name. Helm would change the Service first, which then selects no pod, and the API server would refuse the
     Deployment, whose selector cannot be changed. */}}
{{- define "portcullis.refuseToRename" -}}
{{- $root := . -}}
{{- range list (list "Deployment" "policy-server") (list "StatefulSet" "policy-server") (list "Deployment" "controller") -}}
{{- $object := lookup "apps/v1" (index . 0) $root.Release.Namespace (printf "portcullis-%s" (index . 1)) | default dict -}}
{{- $name := dig "spec" "selector" "matchLabels" "policies.portcullis.dev/policy-server" "" $object -}}
{{- if and $name (ne $name $root.Values.policyServer) -}}
{{- fail (printf "policyServer is %s, but the installation in the namespace %s is called %s and cannot be renamed: helm would leave its Service without a pod. Use policyServer=%s, or uninstall it and install again, or install %s in another namespace" $root.Values.policyServer $root.Release.Namespace $name $name $root.Values.policyServer) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Ends an upgrade that would remove every pod that serves, as helm removes what is no longer in the chart without waiting for what takes
     its place. */}}
{{- define "portcullis.refuseToReplace" -}}
{{- $isStateful := .Values.volume.persistence.enabled -}}
{{- $old := ternary "Deployment" "StatefulSet" $isStateful -}}
{{- $object := lookup "apps/v1" $old .Release.Namespace "portcullis-policy-server" | default dict -}}
{{- $serves := dig "status" "readyReplicas" 0 $object | int -}}
{{- if and $serves (ne "keep" (dig "metadata" "annotations" "helm.sh/resource-policy" "" $object)) -}}
{{- $kubectl := printf "kubectl --namespace %s" .Release.Namespace -}}
{{- fail (printf "volume.persistence.enabled is %t, and helm would remove the %s with all pods that serve before others are ready. Let it stay until then: `%s annotate %s portcullis-policy-server helm.sh/resource-policy=keep`, upgrade again with --wait, then `%s delete %s portcullis-policy-server`" $isStateful $old $kubectl (lower $old) $kubectl (lower $old)) -}}
{{- end -}}
{{- end }}

{{/* The least memory that the evaluator needs: the same sum as `Wanted::least` in evaluator/src/memory/plan.rs. */}}
{{- define "portcullis.refuseTooLittleMemory" -}}
{{- $each := include "portcullis.memoryLimit" . | int64 -}}
{{- with .Values.evaluator -}}
{{- $limit := ((.resources | default dict).limits | default dict).memory | default 0 -}}
{{- $has := include "portcullis.bytes" (list "evaluator.resources.limits.memory" $limit) | int64 -}}
{{- $guests := max (mul 4 $each) (add (mul (int64 .instances) 1507328) (mul 2 $each)) -}}
{{- $least := max (div (add (mul 8 $guests) 4) 5) (add (div (add (mul 4 $guests) 2) 3) 29360128) -}}
{{- if and $has (lt $has $least) -}}
{{- fail (printf "evaluator.resources.limits.memory is %v, which has no room for %d instances (evaluator.instances) of up to %s (evaluator.memoryLimit): want %dMi at least, or fewer or smaller instances" $limit (int64 .instances) .memoryLimit (div (add $least 1048575) 1048576)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The API server refuses a pod that requests more of something than its limit, in the middle of an installation. Where only one of the two
     is set, the other one may be the chart's default. */}}
{{- define "portcullis.refuseRequestsAboveLimits" -}}
{{- range $program := list "loader" "evaluator" "reporter" "controller" -}}
{{- $resources := (get $.Values $program).resources -}}
{{- $numbers := dict "requests" dict "limits" dict -}}
{{- range $side, $read := $numbers -}}
{{- range $of, $quantity := get $resources $side | default dict -}}
{{- if not (kindIs "invalid" $quantity) -}}
{{- $number := include "portcullis.quantity" (list (printf "%s.resources.%s.%s" $program $side $of) $quantity) | float64 -}}
{{- $_ := set $read $of $number -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $of, $request := $numbers.requests -}}
{{- if and (hasKey $numbers.limits $of) (gt $request (get $numbers.limits $of)) -}}
{{- $shown := list (get $resources.requests $of | toString) (get $resources.limits $of | toString) -}}
{{- fail (printf "%s.resources.requests.%s is %s, which is more than %s.resources.limits.%s, %s, and the API server would refuse the pods: lower the request or raise the limit; one that you did not set is the chart's default" $program $of (index $shown 0) $program $of (index $shown 1)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The programs stay below these sizes by themselves, and refuse what is too little to work with: the same numbers as in their `args.rs`. */}}
{{- define "portcullis.refuseTooLittleDisk" -}}
{{- $volume := ternary "volume.persistence.size" "volume.sizeLimit" .Values.volume.persistence.enabled -}}
{{- range $name, $size := dict $volume (include "portcullis.volumeSize" .) "evaluator.privateSizeLimit" .Values.evaluator.privateSizeLimit -}}
{{- if lt (include "portcullis.bytes" (list $name $size) | int64) 33554432 -}}
{{- fail (printf "%s is %v, which has no room for modules: want 32Mi at least, and 1Gi or more where modules are as large as they may be" $name $size) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Settings that the programs refuse and that no pattern of the schema can, so that helm says what is wrong, and not a pod that restarts
     for ever. The limits are those of each program's `args.rs`. */}}
{{- define "portcullis.refuseOutOfBounds" -}}
{{- $memory := include "portcullis.memoryLimit" . | int64 -}}
{{- if or (lt $memory 2097152) (gt $memory 4294967296) -}}
{{- fail (printf "evaluator.memoryLimit is %s: want 2MiB, which policies may have from the start, to 4GiB, which is all that they can address" .Values.evaluator.memoryLimit) -}}
{{- end -}}
{{- if eq (include "portcullis.milliseconds" .Values.evaluator.policyTimeout) "0" -}}
{{- fail (printf "evaluator.policyTimeout is %s, which leaves no evaluation any time: want for instance 2s" .Values.evaluator.policyTimeout) -}}
{{- end -}}
{{- if lt (include "portcullis.milliseconds" .Values.audit.interval | int64) 1000 -}}
{{- fail (printf "audit.interval is %s, and the reporter would do nothing but look at objects: want 1s at least, and an hour in most clusters" .Values.audit.interval) -}}
{{- end -}}
{{- $drain := include "portcullis.milliseconds" .Values.evaluator.drainDelay | int64 -}}
{{- $grace := int64 .Values.server.terminationGracePeriodSeconds -}}
{{- if le (mul 1000 $grace) (add $drain 20000) -}}
{{- fail (printf "server.terminationGracePeriodSeconds is %d, and a pod needs more than the %s of evaluator.drainDelay and the 20 s that running requests may take, or they would be cut off: want %d at least, or a shorter evaluator.drainDelay" $grace .Values.evaluator.drainDelay (add (div $drain 1000) 21)) -}}
{{- end -}}
{{- end }}

{{/* The same for where modules come from. */}}
{{- define "portcullis.refuseSources" -}}
{{- $v4 := "([0-9]{1,3}[.]){3}[0-9]{1,3}/(3[0-2]|[12]?[0-9])" -}}
{{- $v6 := "[0-9a-fA-F]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*" -}}
{{- $bits := "/(12[0-8]|1[01][0-9]|[1-9]?[0-9])" -}}
{{- $known := printf "^([A-Za-z0-9._-]+|%s|%s|%s%s|[[]%s[]])$" $v4 $v6 $v6 $bits $v6 -}}
{{- range .Values.modules.allowedPrivate -}}
{{- if not (regexMatch $known .) -}}
{{- fail (printf "modules.allowedPrivate lists %q, which is no network (10.0.0.0/8), address (10.0.0.1) or host (registry.internal): leave out scheme, port and path, as all ports of a host are meant" .) -}}
{{- end -}}
{{- end -}}
{{- with .Values.modules.verification -}}
{{- if not (or .allOf .anyOf) -}}
{{- fail "modules.verification names no signer in allOf or anyOf, and the loader would refuse it: name one, or leave modules.verification empty" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The same for times that changes of keys and certificates take: twice `--tls-pause` (5m), and `--ca-pause` (1m) and `--tls-pause`. If the
     controller is given other pauses, its own words count. */}}
{{- define "portcullis.refuseShortLives" -}}
{{- $given := list -}}
{{- range .Values.controller.extraArgs }}{{ $given = append $given . }}{{ end -}}
{{- range .Values.controller.extraEnv }}{{ $given = append $given .name }}{{ end -}}
{{- if not (regexMatch "--(tls|ca)-pause|PORTCULLIS_(TLS|CA)_PAUSE" (join " " $given)) -}}
{{- if le (include "portcullis.milliseconds" .Values.webhooks.pathKeyAge | int64) 600000 -}}
{{- fail (printf "webhooks.pathKeyAge is %s, and replacing a key takes 10m: want more, for instance 30d" .Values.webhooks.pathKeyAge) -}}
{{- end -}}
{{- $needs := ternary "30m" "18m" .Values.siblings.enabled -}}
{{- if le (include "portcullis.milliseconds" .Values.certificates.caLifetime | int64) (include "portcullis.milliseconds" $needs | int64) -}}
{{- fail (printf "certificates.caLifetime is %s, and an authority is replaced in the last third of its life, which takes a third of %s: want more, for instance 365d" .Values.certificates.caLifetime $needs) -}}
{{- end -}}
{{- end -}}
{{- if lt (include "portcullis.milliseconds" .Values.certificates.servingLifetime | int64) 10000 -}}
{{- fail (printf "certificates.servingLifetime is %s, and a certificate would be renewed all the time: want 10s at least, and days as a rule" .Values.certificates.servingLifetime) -}}
{{- end -}}
{{- end }}

{{/* The evaluator refuses these flags while paths that name policies are closed, and no pod would start. */}}
{{- define "portcullis.refuseClosedPaths" -}}
{{- range $name := list "audit" "validateRaw" -}}
{{- if and (get $.Values.evaluator $name) (not $.Values.server.policyPaths) -}}
{{- fail (printf "evaluator.%s is true, but paths that name policies are closed: set server.policyPaths as well, or leave it out" $name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A program knows its own pod by these variables: replicas with one name or address would take each other for themselves. And POD_NAME comes
     first, so that the variables after it may refer to it. */}}
{{- define "portcullis.refuseVariablesOfPods" -}}
{{- range $program := list "evaluator" "loader" "reporter" "controller" -}}
{{- $given := list -}}
{{- range (get $.Values $program).extraEnv }}{{ $given = append $given .name }}{{ end -}}
{{- range include "portcullis.chartEnv" (list $ $program) | fromYamlArray -}}
{{- if and (dig "valueFrom" "fieldRef" "" .) (has .name $given) -}}
{{- fail (printf "%s.extraEnv sets %s, which each pod gets from Kubernetes (%s): remove it, as no fixed value is right for every pod" $program .name .valueFrom.fieldRef.fieldPath) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Names without authorities would limit nobody: evaluators would ask no client for a certificate. */}}
{{- define "portcullis.refuseNamesWithoutAuthorities" -}}
{{- with .Values.certificates -}}
{{- if and .clientNames (not .clientAuthorities) -}}
{{- fail (printf "certificates.clientNames lists %s, but certificates.clientAuthorities is empty, so that no client needs a certificate and everyone is answered: set certificates.clientAuthorities as well (`--set-file certificates.clientAuthorities=ca.pem`), or leave the names out" (join ", " .clientNames)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* No number of pods would be right. */}}
{{- define "portcullis.refuseAutoscaling" -}}
{{- with .Values.autoscaling -}}
{{- if and .enabled (gt (int64 .minReplicas) (int64 .maxReplicas)) -}}
{{- fail (printf "autoscaling.minReplicas is %d, which is more than autoscaling.maxReplicas, %d: raise the latter" (int64 .minReplicas) (int64 .maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Each metric would be there twice. */}}
{{- define "portcullis.refuseTwoMonitors" -}}
{{- if and .Values.monitoring.podMonitor.enabled .Values.monitoring.serviceMonitor.enabled -}}
{{- fail "monitoring.podMonitor.enabled and monitoring.serviceMonitor.enabled are both true, so that everything would be counted twice: choose one" -}}
{{- end -}}
{{- end }}

{{/* A chart that its parent's condition switches off is not rendered at all, so here it would switch nothing off. */}}
{{- define "portcullis.refuseDisabled" -}}
{{- if not (dig "enabled" true (.Values | merge (dict))) -}}
{{- fail "enabled is false, which only the condition of a chart that depends on this one reads: to have no installation, do not install it" -}}
{{- end -}}
{{- end }}
