package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
)

// Help texts are plain text: a terminal, a pager and grep can show them.
func TestHelpHasNoControlCharacters(t *testing.T) {
	var check func(command *cobra.Command)
	check = func(command *cobra.Command) {
		var help bytes.Buffer
		command.SetOut(&help)
		if err := command.Help(); err != nil {
			t.Fatal(err)
		}
		if at := strings.IndexFunc(help.String(),
			func(r rune) bool { return r != '\n' && unicode.IsControl(r) }); at >= 0 {
			t.Errorf("%s: %q", command.CommandPath(), help.String()[max(0, at-20):at+1])
		}
		for _, sub := range command.Commands() {
			check(sub)
		}
	}
	check(newRoot())
}
