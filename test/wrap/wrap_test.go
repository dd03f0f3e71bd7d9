package main

import (
	"strings"
	"testing"
)

// Lines that are too wide are broken, and everything else stays.
func TestLinesAreBroken(t *testing.T) {
	long := strings.Repeat("word ", 30)
	long = long[:len(long)-1]
	argument := strings.Repeat("a", 40)
	for name, test := range map[string]struct{ source, want string }{
		"nothing to do": {"package p\n\n// Short.\nvar x = 1 // short\n", ""},
		"a comment": {
			"// " + long + "\n// more\n//\n// Another paragraph.\n",
			"// " + long[:19*5-1] + "\n// " + long[19*5:] + " more\n//\n// Another paragraph.\n",
		},
		"an element of a list": {
			"//   - " + long + "\n", "//   - " + long[:18*5-1] + "\n//     " + long[18*5:] + "\n",
		},
		"preformatted":   {"//\t" + long + "\n", ""},
		"a directive":    {"//go:generate " + long + "\n", ""},
		"a raw string":   {"var x = `\n" + long + "`\n", ""},
		"behind a field": {"\tx int // " + long[:89] + "\n", "\t// " + long[:89] + "\n\tx int\n"},
		"behind a brace": {"\tif x { // " + long[:89] + "\n", "\tif x {\n\t\t// " + long[:89] +
			"\n"},
		"behind a case": {"\tcase x: // " + long[:89] + "\n", "\tcase x:\n\t\t// " + long[:89] +
			"\n"},
		"a long text":      {"var x = \"" + long + "\"\n", ""},
		"many results":     {argument + ", " + argument + ", " + argument + " := f()\n", ""},
		"a unary operator": {"var x = f(" + argument + argument + argument + ", -1)\n", ""},
		"an outer comma": {
			"f(g(" + argument + ", b), h(" + argument + ", " + argument + "))\n",
			"f(g(" + argument + ", b),\n\th(" + argument + ", " + argument + "))\n",
		},
		"a condition": {
			"if " + argument + " == 1 && " + argument + " == 2 || " + argument + " {\n",
			"if " + argument + " == 1 && " + argument + " == 2 ||\n\t" + argument + " {\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := test.want
			if want == "" {
				want = test.source
			}
			if got, err := Wrap(test.source); err != nil || got != want {
				t.Errorf("%v, %q, want %q", err, got, want)
			}
		})
	}
}
