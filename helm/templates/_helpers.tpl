{{/* The prefix of the names of cluster-scoped objects. */}}
{{- define "portcullis.prefix" -}}
portcullis-{{ .Values.policyServer }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "portcullis.labels" -}}
{{- include "portcullis.labelsAnd" (list . dict dict) }}
{{- end }}

{{/* Labels of some objects: (list . specific own). `specific` are those of a value for these objects, `own` those by which selectors find
     them. Where a label is given more than once, the chart's own counts, then the specific one, then that of the value `labels`, which is
     about every object. Written with toYaml, like all values of users, as a name may look like a number. */}}
{{- define "portcullis.labelsAnd" -}}
{{- $root := index . 0 -}}
{{- $chart := dict
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_"))
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/version" ($root.Chart.AppVersion | replace "+" "_")
  "app.kubernetes.io/part-of" "portcullis"
  "app.kubernetes.io/managed-by" $root.Release.Service
  "policies.portcullis.dev/policy-server" $root.Values.policyServer
-}}
{{- $labels := dict -}}
{{- /* The last one counts. Not with merge, for which an empty label is none. */ -}}
{{- range list (omit $root.Values.labels "app.kubernetes.io/name") (index . 1) $chart (index . 2) -}}
{{- range $label, $value := . }}{{ $_ := set $labels $label $value }}{{ end -}}
{{- end -}}
{{- toYaml $labels }}
{{- end }}

{{/* Annotations of what stays without the chart: Argo CD, for one, heeds Helm's when it deletes an application, and not when it prunes. */}}
{{- define "portcullis.keep" -}}
helm.sh/resource-policy: keep
argocd.argoproj.io/sync-options: Prune=false,Delete=false
kustomize.toolkit.fluxcd.io/prune: disabled
{{- end }}

{{/* Labels of the pods of a component: (list . "policy-server" specific). */}}
{{- define "portcullis.podLabels" -}}
{{- $own := include "portcullis.selector" (list (index . 0) (index . 1)) | fromYaml }}
{{- include "portcullis.labelsAnd" (list (index . 0) (index . 2) $own) }}
{{- end }}

{{/* Selects the pods of a component: (list . "policy-server"). It never changes, since a Deployment's selector may not:
     `refuseToRename` ends an upgrade that would. */}}
{{- define "portcullis.selector" -}}
app.kubernetes.io/name: portcullis-{{ index . 1 }}
policies.portcullis.dev/policy-server: {{ (index . 0).Values.policyServer | quote }}
{{- end }}

{{/* A quantity of Kubernetes as a decimal number, in bytes or processors: (list "evaluator.resources.limits.memory" quantity). Ends with the
     name of the value if it is none. `quantity` in cli/src/migrate/server.rs reads the same. */}}
{{- define "portcullis.quantity" -}}
{{- $text := index . 1 | toString | trim -}}
{{- if not (regexMatch "^[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]{1,2})?$" $text) -}}
{{- fail (printf "%s is %q, which is not a quantity that Kubernetes knows: want for instance 500m, 1.5 or 2Gi" (index . 0) $text) -}}
{{- end -}}
{{- $number := regexFind "[0-9.]+" $text -}}
{{- $unit := $text | trimPrefix "+" | trimPrefix $number -}}
{{- $tens := dict "" "0" "n" "-9" "u" "-6" "m" "-3" "k" "3" "M" "6" "G" "9" "T" "12" "P" "15" "E" "18" -}}
{{- $twos := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- if hasKey $twos $unit -}}
{{- mulf (float64 $number) (get $twos $unit) -}}
{{- else -}}
{{- float64 (printf "%se%s" $number (get $tens $unit | default (regexFind "[-+]?[0-9]+$" $unit))) -}}
{{- end -}}
{{- end }}

{{/* The same in whole bytes, rounded up as Kubernetes does, and no more than fit into 64 bits. Sizes of the programs (128MiB) are quantities
     without their B. */}}
{{- define "portcullis.bytes" -}}
{{- $bytes := include "portcullis.quantity" . | float64 -}}
{{- if gt $bytes 9e18 }}9000000000000000000{{ else }}{{ ceil $bytes | int64 }}{{ end -}}
{{- end }}

{{/* evaluator.memoryLimit in bytes. */}}
{{- define "portcullis.memoryLimit" -}}
{{- include "portcullis.bytes" (list "evaluator.memoryLimit" (trimSuffix "B" .Values.evaluator.memoryLimit)) -}}
{{- end }}

{{/* The size of the volume: that of the claim, or of the folder on the node's disk. */}}
{{- define "portcullis.volumeSize" -}}
{{- ternary .Values.volume.persistence.size .Values.volume.sizeLimit .Values.volume.persistence.enabled -}}
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

{{/* The environment of a program: (list . "loader"). It is the chart's variables, and then the program's extraEnv, whose variables may refer to
     them. None may be there twice: server-side apply would refuse the object in the middle of an installation. So one that extraEnv names too
     is taken from there; `refuseVariablesOfPods` names those for which that would be wrong. */}}
{{- define "portcullis.env" -}}
{{- $extra := (get (index . 0).Values (index . 1)).extraEnv | default list -}}
{{- $given := list -}}
{{- range $extra }}{{ $given = append $given .name }}{{ end -}}
{{- $env := list -}}
{{- range include "portcullis.chartEnv" . | fromYamlArray -}}
{{- if not (has .name $given) }}{{ $env = append $env . }}{{ end -}}
{{- end -}}
{{- with concat $env $extra }}{{ toYaml . }}{{ end -}}
{{- end }}

{{/* The variables that the chart sets for a program: (list . "loader"). POD_NAME comes before those that refer to it. */}}
{{- define "portcullis.chartEnv" -}}
{{- $root := index . 0 }}{{ $program := index . 1 -}}
{{- $exports := include "portcullis.exports" . -}}
{{- if eq $program "loader" }}
# Memory of large lists and modules goes back to the system as soon as it is free (mallopt(3)).
- {name: MALLOC_MMAP_THRESHOLD_, value: "131072"}
{{- end }}
{{- if or $exports (has $program (list "reporter" "controller")) }}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
{{- end }}
{{- if eq $program "reporter" }}
- {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
{{- end }}
{{- if and (eq $program "loader") $root.Values.siblings.enabled }}
- {name: PORTCULLIS_SIBLINGS_OWN_ADDRESS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}
{{- end }}
{{- if $exports }}
{{- $otlp := $root.Values.telemetry.otlp }}
{{- if ne $program "evaluator" }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ toJson $otlp.endpoint }}}
{{- with $otlp.headersSecret }}
- {name: OTEL_EXPORTER_OTLP_HEADERS, valueFrom: {secretKeyRef: {name: {{ toJson . }}, key: headers, optional: true}}}
{{- end }}
{{- if not $otlp.metrics }}
- {name: OTEL_METRICS_EXPORTER, value: none}
{{- end }}
{{- end }}
- {name: OTEL_RESOURCE_ATTRIBUTES, value: "k8s.namespace.name={{ $root.Release.Namespace }},k8s.pod.name=$(POD_NAME)"}
{{- if and (eq $program "evaluator") $otlp.samplerRatio }}
- {name: OTEL_TRACES_SAMPLER, value: parentbased_traceidratio}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ toJson $otlp.samplerRatio }}}
{{- end }}
{{- end }}
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

{{/* Spread evenly over nodes and zones: (list . "policy-server" isDeployment). Nodes without the label of zones would get no pod at all if
     the spread over zones were a must. */}}
{{- define "portcullis.spread" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $isDeployment := index . 2 -}}
{{- range $key, $otherwise := dict "kubernetes.io/hostname" $root.Values.server.whenUnspreadable "topology.kubernetes.io/zone" "ScheduleAnyway" }}
- topologyKey: {{ $key }}
  maxSkew: 1
  whenUnsatisfiable: {{ $otherwise }}
  # Nodes whose taints keep these pods out do not count; otherwise DoNotSchedule could never be met.
  nodeTaintsPolicy: Honor
  labelSelector:
    matchLabels: {{- include "portcullis.selector" (list $root $component) | nindent 6 }}
  {{- if $isDeployment }}
  # Pods of a rollout are spread among themselves.
  matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
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
