# For all architectures at once: `make image-all IMAGE=registry.example/holdfast:1.2.3`, with BuildKit and a registry.
variable "VERSION" { default = "development" }
variable "REVISION" { default = "unknown" }
variable "IMAGE" { default = "holdfast:development" }

target "default" {
  context    = "."
  platforms  = ["linux/amd64", "linux/arm64"]
  tags       = [IMAGE]
  args       = { VERSION = VERSION, REVISION = REVISION }
  attest     = ["type=provenance,disabled=true"]
}
