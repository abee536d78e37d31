{{/* Labels of an alert: (list . "critical"). Critical: requests go unjudged now, or will within hours. */}}
{{- define "portcullis.alertLabels" -}}
severity: {{ index . 1 }}
policy_server: {{ (index . 0).Values.policyServer }}
{{- with (index . 0).Values.monitoring.prometheusRule.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}
