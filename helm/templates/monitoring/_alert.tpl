{{/* Labels of an alert: (list . "critical"). Critical: requests are not evaluated now, or will not be within days. */}}
{{- define "portcullis.alertLabels" -}}
{{- $own := dict "severity" (index . 1) "policy_server" (index . 0).Values.policyServer }}
{{- toYaml (merge $own (index . 0).Values.monitoring.prometheusRule.labels) }}
{{- end }}

{{/* Words for Prometheus that name the policies with a reason of Ready: (list . "Error"). */}}
{{- define "portcullis.alertNames" -}}
{{- $series := printf "portcullis_reporter_troubled_policies{namespace='%s',status='%s'}" (index . 0).Release.Namespace (index . 1) -}}
{{ `{{ range query ` }}"{{ $series }}"{{ ` | sortByLabel "policy" }}{{ .Labels.policy }} {{ end }}` }}
{{- end }}
