package main

import (
	"strconv"
	"strings"
	"testing"

	"holdfast/client"
)

// readOperations accepts only text with 1 to MaxOps operations. It reads a key that strconv.Quote
// has quoted as the original key.
func FuzzReadOperations(f *testing.F) {
	f.Add("set a 1 --nx --px 1s # a comment\nget b\ndel c --if-version 1:0:StateStore\nvdel 'd e' \"\\x00\"", "a key")
	f.Add("\ufeffset -- -a @@b\r\n", "'\"#@-")
	f.Fuzz(func(t *testing.T, text, key string) {
		if operations, err := readOperations(t.Context(), strings.NewReader(text),
			nil); err == nil && (len(operations) == 0 || len(operations) > client.MaxOps) {
			t.Errorf("%q has %d operations", text, len(operations))
		}
		operations, err := readOperations(t.Context(),
			strings.NewReader("get -- "+strconv.Quote(key)), nil)
		if err != nil || operations[0].key != key {
			t.Errorf("%q is read as %+v, %v", key, operations, err)
		}
	})
}
