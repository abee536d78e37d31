{{/* Labels of an alert: (list . "critical"). Critical: requests are not evaluated now, or will not be within days. */}}
{{- define "portcullis.alertLabels" -}}
{{- $own := dict "severity" (index . 1) "policy_server" (index . 0).Values.policyServer }}
{{- toYaml (merge $own (index . 0).Values.monitoring.prometheusRule.labels) }}
{{- end }}

{{/* Words for Prometheus that name the policies with a reason of Ready: (list . "Error"); or those of them that another label selects:
     (list . "Error" "enforced='False'"). */}}
{{- define "portcullis.alertNames" -}}
{{- $labels := printf "namespace='%s',status='%s'" (index . 0).Release.Namespace (index . 1) -}}
{{- $series := printf "portcullis_reporter_troubled_policies{%s}" (join "," (prepend (slice . 2) $labels)) -}}
{{ `{{ range query ` }}"{{ $series }}"{{ ` | sortByLabel "policy" }}{{ .Labels.policy }} {{ end }}` }}
{{- end }}

{{/* An alert comes when a certificate has fewer seconds left than this: (list . "serving"). The controller renews its own when a third of
     their lifetime is left, so a quarter is late. How long those of others live is not known. An authority outlives what it signs. */}}
{{- define "portcullis.alertSeconds" -}}
{{- $root := index . 0 }}{{ $name := index . 1 -}}
{{- $certificates := $root.Values.certificates -}}
{{- $seconds := mul $root.Values.monitoring.prometheusRule.certificateDays 86400 -}}
{{- if or (eq $certificates.mode "own") (hasPrefix "siblings" $name) -}}
{{- $lives := list $certificates.caLifetime -}}
{{- if not (hasSuffix "ca" $name) }}{{ $lives = append $lives $certificates.servingLifetime }}{{ end -}}
{{- range $lives -}}
{{- $seconds = min $seconds (div (include "portcullis.milliseconds" . | int64) 4000) -}}
{{- end -}}
{{- end -}}
{{- $seconds -}}
{{- end }}
