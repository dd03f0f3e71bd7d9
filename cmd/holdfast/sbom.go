package main

import (
	"cmp"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// billOfMaterials is a CycloneDX 1.6 document with the modules that a binary was built from.
type billOfMaterials struct {
	Schema      string      `json:"$schema"`
	Format      string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    bomMetadata `json:"metadata"`
	Components  []component `json:"components"`
}

type bomMetadata struct {
	Component component `json:"component"`
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl,omitempty"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

func newSBOM() *cobra.Command {
	product := ""
	command := &cobra.Command{
		Use:   "sbom [FILE]",
		Short: "Print what this binary was built from, as a CycloneDX document",
		Long: `Prints the bill of materials of this binary, or of another Holdfast binary: the modules with their versions and checksums, as the Go
linker has written them into it.`,
		Example: "  holdfast sbom > holdfast.cdx.json",
		Args:    positional(cobra.MaximumNArgs(1)),
		RunE: func(command *cobra.Command, arguments []string) error {
			var name string
			if len(arguments) > 0 {
				name = arguments[0]
			} else {
				var err error
				if name, err = os.Executable(); err != nil {
					return err
				}
				product = cmp.Or(product, version)
			}
			info, err := buildinfo.ReadFile(name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			product = cmp.Or(product, info.Main.Version)
			return printJSON(command.OutOrStdout(), newBillOfMaterials(info, product))
		},
	}
	command.Flags().StringVar(&product, "product-version", "", "`version` of Holdfast to name (default: this binary's, or the one that is recorded in FILE)")
	return command
}

func newBillOfMaterials(info *debug.BuildInfo, product string) *billOfMaterials {
	target := map[string]string{}
	for _, setting := range info.Settings {
		target[setting.Key] = setting.Value
	}
	bill := &billOfMaterials{
		Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Metadata: bomMetadata{component{
			Type: "application", Ref: info.Main.Path, Name: info.Main.Path, Version: product,
			PURL: fmt.Sprintf("pkg:golang/%s@%s?goos=%s&goarch=%s", info.Main.Path, url.QueryEscape(product), target["GOOS"], target["GOARCH"]),
		}},
		Components: []component{{
			Type: "library", Ref: "std", Name: "std", Version: info.GoVersion, PURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go"),
		}},
	}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		purl := "pkg:golang/" + module.Path + "@" + url.QueryEscape(module.Version)
		c := component{Type: "library", Ref: purl, Name: module.Path, Version: module.Version, PURL: purl}
		// The checksum of a module is the SHA-256 of the list of its files' checksums: golang.org/x/mod/sumdb/dirhash.
		if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:")); err == nil && len(sum) > 0 {
			c.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum)}}
		}
		bill.Components = append(bill.Components, c)
	}
	return bill
}
