{{- define "holdfast.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Labels of the user's own: those by which things are found, or that say what made them, stay as they are. */}}
{{- define "holdfast.ownLabels" -}}
{{- $labels := omit . "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "app.kubernetes.io/part-of" "helm.sh/chart" }}
{{- if $labels }}{{ toYaml $labels }}{{ end }}
{{- end }}

{{/* Short enough for the suffixes of pods and services, and without the dots that a release's name may have. */}}
{{- define "holdfast.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | replace "." "-" | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{ .Release.Name | replace "." "-" | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | replace "." "-" | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "holdfast.clusterName" -}}
{{ default (printf "%s-%s" .Release.Namespace (include "holdfast.fullname" .)) .Values.clusterName }}
{{- end }}

{{- define "holdfast.headless" -}}
{{ include "holdfast.fullname" . }}-headless
{{- end }}

{{/* The DNS domain of the pods. */}}
{{- define "holdfast.domain" -}}
{{ include "holdfast.headless" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{- define "holdfast.adminURL" -}}
https://{{ include "holdfast.fullname" . }}-admin.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:7401
{{- end }}

{{/* Labels by which selectors find things: they never change. Called with a list of the context and the component. */}}
{{- define "holdfast.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ include "holdfast.name" $ }}
app.kubernetes.io/instance: {{ $.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "holdfast.labels" -}}
{{- $ := index . 0 -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
app.kubernetes.io/part-of: holdfast
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" }}
{{- with include "holdfast.ownLabels" $.Values.commonLabels }}
{{ . }}
{{- end }}
{{- end }}

{{- define "holdfast.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "holdfast.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "holdfast.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end }}

{{- define "holdfast.tlsSecret" -}}
{{- if eq .Values.tls.source "existingSecret" -}}
{{ required "tls.existingSecret is missing: the Secret with the members' certificate" .Values.tls.existingSecret }}
{{- else -}}
{{ include "holdfast.fullname" . }}-tls
{{- end -}}
{{- end }}

{{- define "holdfast.adminSecret" -}}
{{- if eq .Values.tls.source "existingSecret" -}}
{{ required "tls.existingAdminSecret is missing: the Secret with the administrators' certificate" .Values.tls.existingAdminSecret }}
{{- else -}}
{{ include "holdfast.fullname" . }}-admin-tls
{{- end -}}
{{- end }}

{{/* Names in the members' certificate, as a YAML list: every pod that there may ever be, so that scaling needs no new one. */}}
{{- define "holdfast.certificateNames" -}}
{{- range $i := until 9 }}
- {{ include "holdfast.fullname" $ }}-{{ $i }}
{{- end }}
- "*.{{ include "holdfast.domain" . }}"
- {{ include "holdfast.fullname" . }}-admin
- {{ include "holdfast.fullname" . }}-admin.{{ .Release.Namespace }}.svc
- {{ include "holdfast.fullname" . }}-admin.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
- localhost
{{- end }}

{{- define "holdfast.brokerAddresses" -}}
{{- if .Values.broker.addresses -}}
{{ toYaml .Values.broker.addresses }}
{{- else if .Values.demoBroker.enabled -}}
- mqtt://{{ include "holdfast.fullname" . }}-broker.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:1883
{{- else -}}
{{ fail "broker.addresses is empty: name a broker, or set demoBroker.enabled for a trial" }}
{{- end -}}
{{- end }}

{{/* Whether the nodes are behind the broker of the trial. */}}
{{- define "holdfast.usesDemo" -}}
{{- if and .Values.demoBroker.enabled (not .Values.broker.addresses) }}true{{ else }}false{{ end -}}
{{- end }}

{{- define "holdfast.brokerUsername" -}}
{{ default (ternary "holdfast-node" "" (include "holdfast.usesDemo" . | eq "true")) .Values.broker.auth.username }}
{{- end }}

{{/* The Secret with the password at the broker; empty when there is none. */}}
{{- define "holdfast.brokerSecret" -}}
{{- if .Values.broker.auth.existingSecret -}}
{{ .Values.broker.auth.existingSecret }}
{{- else if or .Values.broker.auth.password (include "holdfast.usesDemo" . | eq "true") -}}
{{ include "holdfast.fullname" . }}-broker-auth
{{- end -}}
{{- end }}

{{/* Whether the broker is reached by TLS. The image has no certificates of public authorities: the broker's has to be given. */}}
{{- define "holdfast.brokerTLS" -}}
{{- $secured := false }}
{{- range .Values.broker.addresses }}
{{- if hasPrefix "mqtts://" . }}{{ $secured = true }}{{ end }}
{{- end }}
{{- with .Values.broker.tls }}
{{- if and $secured (not (or .ca .existingSecret)) }}
{{- fail "broker.tls.ca or broker.tls.existingSecret is missing: mqtts:// needs the certificates that vouch for the broker" }}
{{- end }}
{{- if and (not $secured) (or .ca .existingSecret .serverName .clientCertificate) }}
{{- fail "broker.tls has no effect: no address of the broker begins with mqtts://" }}
{{- end }}
{{- if and .clientCertificate (not .existingSecret) }}
{{- fail "broker.tls.existingSecret is missing: the client certificate is in it" }}
{{- end }}
{{- end }}
{{- if $secured }}true{{ end -}}
{{- end }}

{{- define "holdfast.brokerTLSVolume" -}}
- name: broker-tls
  projected:
    defaultMode: 0440
    sources:
    {{- if .Values.broker.tls.ca }}
    - configMap: {name: {{ include "holdfast.fullname" . }}-broker-ca}
    {{- end }}
    {{- $secret := .Values.broker.tls.existingSecret }}
    {{- if and $secret (or (not .Values.broker.tls.ca) .Values.broker.tls.clientCertificate) }}
    - secret:
        name: {{ $secret }}
        items:
        {{- if not $.Values.broker.tls.ca }}
        - {key: ca.crt, path: ca.crt}
        {{- end }}
        {{- if $.Values.broker.tls.clientCertificate }}
        - {key: tls.crt, path: tls.crt}
        - {key: tls.key, path: tls.key}
        {{- end }}
    {{- end }}
{{- end }}

{{/* Arguments of the client commands. */}}
{{- define "holdfast.clientArguments" -}}
- --broker={{ include "holdfast.brokerAddresses" . | fromYamlArray | join "," }}
{{- with include "holdfast.brokerUsername" . }}
- --username={{ . }}
{{- end }}
{{- if include "holdfast.brokerSecret" . }}
- --password-file=/etc/holdfast/broker-auth/password
{{- end }}
{{- if include "holdfast.brokerTLS" . }}
- --ca-file=/etc/holdfast/broker-tls/ca.crt
{{- if .Values.broker.tls.clientCertificate }}
- --cert-file=/etc/holdfast/broker-tls/tls.crt
- --key-file=/etc/holdfast/broker-tls/tls.key
{{- end }}
{{- with .Values.broker.tls.serverName }}
- --server-name={{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* What a container needs to use the admin API as an administrator. */}}
{{- define "holdfast.adminEnvironment" -}}
- {name: HOLDFAST_ADMIN, value: {{ include "holdfast.adminURL" . | quote }}}
- {name: HOLDFAST_ADMIN_CA, value: /etc/holdfast/admin-tls/ca.crt}
- {name: HOLDFAST_ADMIN_CERT, value: /etc/holdfast/admin-tls/tls.crt}
- {name: HOLDFAST_ADMIN_KEY, value: /etc/holdfast/admin-tls/tls.key}
{{- end }}

{{- define "holdfast.adminVolume" -}}
- name: admin-tls
  secret: {secretName: {{ include "holdfast.adminSecret" . }}, defaultMode: 0440}
{{- end }}

{{/* The head of every pod specification. */}}
{{- define "holdfast.podBasics" -}}
serviceAccountName: {{ include "holdfast.serviceAccount" . }}
{{ include "holdfast.hookBasics" . }}
{{- end }}

{{/* The same for a job that runs before anything of its revision is there, the service account among it. */}}
{{- define "holdfast.hookBasics" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- {name: {{ . }}}
{{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* The head of every container. */}}
{{- define "holdfast.containerBasics" -}}
image: {{ include "holdfast.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
{{- end }}
