{{/* The prefix of the names of cluster-scoped objects. */}}
{{- define "portcullis.prefix" -}}
portcullis-{{ .Values.policyServer }}
{{- end }}

{{/* Labels of every object. Written with toYaml, like all values of users, as a name may look like a number. */}}
{{- define "portcullis.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_"))
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" (.Chart.AppVersion | replace "+" "_")
  "app.kubernetes.io/part-of" "portcullis"
  "app.kubernetes.io/managed-by" .Release.Service
  "policies.portcullis.dev/policy-server" .Values.policyServer
-}}
{{- toYaml (merge $own (omit .Values.labels "app.kubernetes.io/name")) }}
{{- end }}

{{/* The labels of every object, plus others, which never override them: (list . others). */}}
{{- define "portcullis.labelsAnd" -}}
{{- toYaml (merge (include "portcullis.labels" (index . 0) | fromYaml) (index . 1)) }}
{{- end }}

{{/* Labels of the pods of a component: (list . "policy-server" others). */}}
{{- define "portcullis.podLabels" -}}
{{- $own := include "portcullis.selector" (list (index . 0) (index . 1)) | fromYaml }}
{{- toYaml (merge $own (include "portcullis.labels" (index . 0) | fromYaml) (index . 2)) }}
{{- end }}

{{/* Selects the pods of a component: (list . "policy-server"). It never changes, since a Deployment's selector may not:
     `refuseToRename` ends an upgrade that would. */}}
{{- define "portcullis.selector" -}}
app.kubernetes.io/name: portcullis-{{ index . 1 }}
policies.portcullis.dev/policy-server: {{ (index . 0).Values.policyServer | quote }}
{{- end }}

{{/* A quantity of Kubernetes, or of the programs (128MiB), in bytes; 0 if it is not a quantity. */}}
{{- define "portcullis.bytes" -}}
{{- $text := kindIs "string" . | ternary (toString .) (int64 . | toString) | trimSuffix "B" -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $text -}}
{{- $factors := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mulf (float64 $number) (get $factors (trimPrefix $number $text) | default 0 | float64) | int64 -}}
{{- end }}

{{/* The least memory that the evaluator needs: the same sum as `Wanted::least` in evaluator/src/memory/plan.rs. */}}
{{- define "portcullis.refuseTooLittleMemory" -}}
{{- with .Values.evaluator -}}
{{- $limit := dig "limits" "memory" "" (dict "limits" ((.resources | default dict).limits | default dict)) -}}
{{- $has := include "portcullis.bytes" $limit | int64 -}}
{{- $each := include "portcullis.bytes" .memoryLimit | int64 -}}
{{- $guests := max (mul 4 $each) (add (mul (int64 .instances) 1474560) (mul 2 $each)) -}}
{{- $least := max (div (add (mul 8 $guests) 4) 5) (add (div (add (mul 4 $guests) 2) 3) 29360128) -}}
{{- if and $has (lt $has $least) -}}
{{- fail (printf "evaluator.resources.limits.memory is %v, which has no room for %d instances (evaluator.instances) of up to %s (evaluator.memoryLimit): want %dMi at least, or fewer or smaller instances" $limit (int64 .instances) .memoryLimit (div (add $least 1048575) 1048576)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The size of the volume: that of the claim, or of the folder on the node's disk. */}}
{{- define "portcullis.volumeSize" -}}
{{- ternary .Values.volume.persistence.size .Values.volume.sizeLimit .Values.volume.persistence.enabled -}}
{{- end }}

{{/* The programs stay below these sizes by themselves, and refuse what is too little to work with: the same numbers as in their `args.rs`. */}}
{{- define "portcullis.refuseTooLittleDisk" -}}
{{- $volume := ternary "volume.persistence.size" "volume.sizeLimit" .Values.volume.persistence.enabled -}}
{{- range $name, $size := dict $volume (include "portcullis.volumeSize" .) "evaluator.privateSizeLimit" .Values.evaluator.privateSizeLimit -}}
{{- if lt (include "portcullis.bytes" $size | int64) 33554432 -}}
{{- fail (printf "%s is %v, which has no room for modules: want 32Mi at least, and 1Gi or more where modules are as large as they may be" $name $size) -}}
{{- end -}}
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

{{/* A time like 1h30m in milliseconds. */}}
{{- define "portcullis.milliseconds" -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h|d)" . -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $factor := get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000) $unit -}}
{{- $sum = add $sum (mul (trimSuffix $unit . | float64 | int64) $factor) -}}
{{- end -}}
{{- $sum -}}
{{- end }}

{{/* Settings that the programs refuse and that no pattern of the schema can, so that helm says what is wrong, and not a pod that restarts
     for ever. The limits are those of each program's `args.rs`. */}}
{{- define "portcullis.refuseOutOfBounds" -}}
{{- $memory := include "portcullis.bytes" .Values.evaluator.memoryLimit | int64 -}}
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

{{/* Names without authorities would limit nobody: evaluators would ask no client for a certificate. */}}
{{- define "portcullis.refuseNamesWithoutAuthorities" -}}
{{- with .Values.certificates -}}
{{- if and .clientNames (not .clientAuthorities) -}}
{{- fail (printf "certificates.clientNames lists %s, but certificates.clientAuthorities is empty, so that no client needs a certificate and everyone is answered: set certificates.clientAuthorities as well (`--set-file certificates.clientAuthorities=ca.pem`), or leave the names out" (join ", " .clientNames)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The resources of reports about objects that exist, as the first lines of a rule. */}}
{{- define "portcullis.auditReports" -}}
{{- if eq .Values.audit.format "wgpolicy" -}}
apiGroups: [wgpolicyk8s.io]
resources: [policyreports, clusterpolicyreports]
{{- else -}}
apiGroups: [openreports.io]
resources: [reports, clusterreports]
{{- end -}}
{{- end }}

{{/* Whether a program exports spans or metrics, of its own or, for loaders, of the evaluator: (list . "loader"). Empty if not. */}}
{{- define "portcullis.exports" -}}
{{- $otlp := (index . 0).Values.telemetry.otlp }}{{ $program := index . 1 -}}
{{- $evaluator := and $otlp.evaluator (has $program (list "evaluator" "loader")) -}}
{{- $own := and $otlp.metrics (ne $program "evaluator") -}}
{{- if and $otlp.endpoint (or $evaluator $own) }}true{{ end -}}
{{- end }}

{{/* OpenTelemetry's variables of a program that exports: (list . "loader"). POD_NAME must come before them. Those that the program's
     extraEnv names are left out, since none may be there twice. */}}
{{- define "portcullis.otlpEnv" -}}
{{- $root := index . 0 }}{{ $program := index . 1 -}}
{{- $otlp := $root.Values.telemetry.otlp -}}
{{- $env := list -}}
{{- if ne $program "evaluator" -}}
{{- $env = append $env (dict "name" "OTEL_EXPORTER_OTLP_ENDPOINT" "value" $otlp.endpoint) -}}
{{- with $otlp.headersSecret -}}
{{- $key := dict "name" . "key" "headers" "optional" true -}}
{{- $env = append $env (dict "name" "OTEL_EXPORTER_OTLP_HEADERS" "valueFrom" (dict "secretKeyRef" $key)) -}}
{{- end -}}
{{- if not $otlp.metrics -}}
{{- $env = append $env (dict "name" "OTEL_METRICS_EXPORTER" "value" "none") -}}
{{- end -}}
{{- end -}}
{{- $attributes := printf "k8s.namespace.name=%s,k8s.pod.name=$(POD_NAME)" $root.Release.Namespace -}}
{{- $env = append $env (dict "name" "OTEL_RESOURCE_ATTRIBUTES" "value" $attributes) -}}
{{- if and (eq $program "evaluator") $otlp.samplerRatio -}}
{{- $env = append $env (dict "name" "OTEL_TRACES_SAMPLER" "value" "parentbased_traceidratio") -}}
{{- $env = append $env (dict "name" "OTEL_TRACES_SAMPLER_ARG" "value" $otlp.samplerRatio) -}}
{{- end -}}
{{- $given := list -}}
{{- range (get $root.Values $program).extraEnv }}{{ $given = append $given .name }}{{ end -}}
{{- range $env }}{{ if not (has .name $given) }}
- {{ toJson . }}
{{- end }}{{ end -}}
{{- end }}

{{/* The image of a program: (list . "loader"). */}}
{{- define "portcullis.image" -}}
{{- $root := index . 0 }}{{ $name := index . 1 -}}
{{- $image := $root.Values.image -}}
{{- $digest := get $image.digests $name -}}
{{ $image.registry }}/{{ $name }}{{ if $digest }}@{{ $digest }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The security context of every container. */}}
{{- define "portcullis.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The security context of every pod. */}}
{{- define "portcullis.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Startup, readiness and liveness of a container, by the name of its port. A start waits for /livez alone: that a policy server is
     ready may take as long as its start gate, and no container is restarted for that. */}}
{{- define "portcullis.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: {{ . }}}
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 3
livenessProbe:
  httpGet: {path: /livez, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{/* The token of the pod's account, as a volume that only named containers mount. */}}
{{- define "portcullis.tokenVolume" -}}
- name: token
  projected:
    # 0440: for the programs' group alone.
    defaultMode: 288
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}

{{/* Where API clients look for the token. */}}
{{- define "portcullis.tokenMount" -}}
- {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{/* Flags that every program has. */}}
{{- define "portcullis.logFlags" -}}
- --log-format={{ .Values.logs.format }}
- {{ printf "--log-level=%s" .Values.logs.level | quote }}
{{- end }}

{{/* Environment of programs that must know their own pod. */}}
{{- define "portcullis.podEnv" -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
{{- end }}

{{/* Spread evenly over nodes and zones: (list . "policy-server" isDeployment). Nodes without the label of zones would get no pod at all if
     the spread over zones were a must. */}}
{{- define "portcullis.spread" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $isDeployment := index . 2 -}}
{{- range $key, $otherwise := dict "kubernetes.io/hostname" $root.Values.server.whenUnspreadable "topology.kubernetes.io/zone" "ScheduleAnyway" }}
- topologyKey: {{ $key }}
  maxSkew: 1
  whenUnsatisfiable: {{ $otherwise }}
  # Nodes that these pods may not run on count for nothing, or a must could never be met.
  nodeTaintsPolicy: Honor
  labelSelector:
    matchLabels: {{- include "portcullis.selector" (list $root $component) | nindent 6 }}
  {{- if $isDeployment }}
  # Pods of a rollout are spread among themselves.
  matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
{{- end }}

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
     its place: (list . isStateful). */}}
{{- define "portcullis.refuseToReplace" -}}
{{- $root := index . 0 }}{{ $old := ternary "Deployment" "StatefulSet" (index . 1) -}}
{{- $object := lookup "apps/v1" $old $root.Release.Namespace "portcullis-policy-server" | default dict -}}
{{- $serves := dig "status" "readyReplicas" 0 $object | int -}}
{{- if and $serves (ne "keep" (dig "metadata" "annotations" "helm.sh/resource-policy" "" $object)) -}}
{{- $kubectl := printf "kubectl --namespace %s" $root.Release.Namespace -}}
{{- fail (printf "volume.persistence.enabled is %t, and helm would remove the %s with all pods that serve before others are ready. Let it stay until then: `%s annotate %s portcullis-policy-server helm.sh/resource-policy=keep`, upgrade again with --wait, then `%s delete %s portcullis-policy-server`" (index . 1) $old $kubectl (lower $old) $kubectl (lower $old)) -}}
{{- end -}}
{{- end }}

{{/* Settings of the loader that are files. */}}
{{- define "portcullis.hasLoaderConfig" -}}
{{- if or .Values.modules.sources .Values.modules.verification .Values.modules.trustRoot .Values.modules.authorities }}true{{ end }}
{{- end }}

{{/* Annotations of a hook before uninstalling, with its weight. */}}
{{- define "portcullis.uninstallHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
# A failed Job stays for inspection, until the next try.
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* Annotations of a hook of `helm test`, with its weight. */}}
{{- define "portcullis.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
